"""Who may not be processed here goes to a gateway in a region that is allowed, or nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gateway_rig import FakeDaemon, FakeEngine, Gateway, Grant, answer_plainly, stream_events
from pydantic import ValidationError

from kvrun.config.gateway import GatewaySettings
from kvrun.gateway.apikeys import ApiKeyRecord, hash_api_key, make_api_key, save_api_keys
from kvrun.instance.client import SessionRefusedError
from kvrun.instance.elsewhere import OtherRegions
from kvrun.policy.compile import CompiledRevision
from kvrun.policy.document import Tier
from kvrun.policy.matching import InstanceFacts, Tenant
from kvrun.policy.revision import Revision, parse_revision
from support.certificates import Authority

Start = Callable[..., Awaitable[Gateway]]
POLICY = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {{name: {name}}}
match: {{classes: [{name}]}}
allow: {{tiers: [gpu, memory], regions: ["{name}-*"]}}
"""
TENANTS = {"anna": Tenant("eu"), "bob": Tenant("us"), "ken": Tenant("ap")}
EU, US, AP = "eu-west-1", "us-east-1", "ap-south-1"


def revision(*names: str) -> Revision:
    files = {f"policies/{name}.yaml": POLICY.format(name=name).encode() for name in names}
    return parse_revision(files, "test")


class PolicyDaemon(FakeDaemon):
    """Decides as a daemon in a region does, by real policies."""

    def __init__(self, region: str, regions: tuple[str, ...], policy: Revision) -> None:
        super().__init__()
        facts = InstanceFacts(region=region)
        self.compiled = CompiledRevision(policy, facts)
        self.elsewhere = OtherRegions(facts, regions)
        self.elsewhere.use(self.compiled, TENANTS)

    async def open_session(self, tenant: str, session: str) -> Grant:
        granted = await super().open_session(tenant, session)
        if not self.compiled.row(TENANTS.get(tenant, Tenant()))[Tier.GPU].allowed:
            raise SessionRefusedError("not here", 403, self.elsewhere.regions(tenant))
        return granted


@pytest.fixture
async def far_engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    """The engine of the other region."""
    fake = FakeEngine(answer_plainly)
    site = web.Application(client_max_size=1 << 26)
    site.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(site, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "far.sock")).start()
    fake.url = f"unix:{tmp_path / 'far.sock'}"
    yield fake
    await runner.cleanup()


async def pair(
    start: Start, far: FakeEngine, policy: Revision, **settings: Any
) -> tuple[Gateway, Gateway]:
    """A gateway in the EU, and one in the US to which it may send; the EU's is given first."""
    there = await start(PolicyDaemon(US, (EU,), policy), engine_url=far.url, **settings)
    regions = {US: there.url, AP: "http://127.0.0.1:1"}
    here = await start(PolicyDaemon(EU, (US, AP), policy), elsewhere=regions, **settings)
    return here, there


async def test_a_tenant_is_answered_where_its_policy_allows_and_the_others_engine_sees_nothing(
    start_gateway: Start, engine: FakeEngine, far_engine: FakeEngine
) -> None:
    here, there = await pair(start_gateway, far_engine, revision("eu", "us"))
    there.daemon.generation = 2
    assert (await here.chat(headers={"X-KV-Tenant": "anna"}))[0] == 200
    assert (len(engine.requests), len(far_engine.requests)) == (1, 0)
    status, answer = await here.chat(headers={"X-KV-Tenant": "bob", "X-KV-Session": "s1"})
    assert (status, answer["ok"]) == (200, True)
    assert (len(engine.requests), len(far_engine.requests)) == (1, 1)
    # Governed there by its own daemon's salt: none of this gateway's stamps came along.
    assert far_engine.last_body["messages"] == [{"role": "user", "content": "hello"}]
    granted = await there.daemon.open_session("bob", "s1")
    assert far_engine.last_body["cache_salt"] == granted.salt
    page = await (await here.client.get(f"{here.url}/metrics")).text()
    assert f'kvrun_gateway_routed_requests_total{{region="{US}"}} 1.0' in page


async def test_a_stream_comes_through_event_by_event_and_leaving_stops_the_engine_there(
    start_gateway: Start, far_engine: FakeEngine
) -> None:
    go_on = asyncio.Event()

    async def slowly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"n": 1}\n\n')
        await go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    far_engine.handler = slowly
    here, _ = await pair(start_gateway, far_engine, revision("eu", "us"))
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    url, headers = f"{here.url}/v1/chat/completions", {"X-KV-Tenant": "bob"}
    async with here.client.post(url, json=body, headers=headers) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert await answer.content.readuntil(b"\n\n") == b'data: {"n": 1}\n\n'
        go_on.set()
        assert await answer.content.read() == b"data: [DONE]\n\n"
    go_on.clear()
    async with here.client.post(url, json=body, headers=headers) as answer:
        await answer.content.readuntil(b"\n\n")
        answer.close()
    await asyncio.wait_for(far_engine.cancelled.wait(), 20)


async def test_a_region_that_the_policy_denies_is_sent_nothing(
    start_gateway: Start, engine: FakeEngine, far_engine: FakeEngine
) -> None:
    here, there = await pair(start_gateway, far_engine, revision("eu", "us", "ap"))
    # Of Ken only the AP region is allowed, whose gateway is not there: not the next best one.
    status, answer = await here.chat(headers={"X-KV-Tenant": "ken"})
    assert (status, answer["error"]["code"]) == (403, "residency_denied")
    assert AP in answer["error"]["message"]
    assert engine.requests == far_engine.requests == []
    assert there.daemon.asked == []


async def test_nobody_goes_on_from_a_gateway_that_another_one_sent_them_to(
    start_gateway: Start, engine: FakeEngine, far_engine: FakeEngine
) -> None:
    """Two gateways whose policies contradict each other send nobody back and forth."""
    newer = parse_revision(
        {"p.yaml": POLICY.format(name="eu").replace("[eu]", "[us]").encode()}, "n"
    )
    daemon = PolicyDaemon(US, (EU,), newer)
    there = await start_gateway(
        daemon, engine_url=far_engine.url, elsewhere={EU: "http://127.0.0.1:1"}
    )
    here = await start_gateway(
        PolicyDaemon(EU, (US,), revision("eu", "us")), elsewhere={US: there.url}
    )
    assert daemon.elsewhere.regions("bob") == (EU,)
    status, answer = await here.chat(headers={"X-KV-Tenant": "bob"})
    assert (status, answer["error"]["code"]) == (403, "residency_denied")
    assert len(daemon.asked) == 1
    direct = await here.chat(headers={"X-KV-Tenant": "bob", "Via": "1.1 proxy, 1.1 kvrun-gateway"})
    assert direct[0] == 403
    assert len(daemon.asked) == 1
    assert engine.requests == far_engine.requests == []


async def test_the_other_gateway_checks_the_clients_own_credentials(
    start_gateway: Start, far_engine: FakeEngine, tmp_path: Path
) -> None:
    policy = revision("eu", "us")
    keys = [make_api_key(bytes([number]) * 32) for number in (1, 2)]
    for name, known in (("here", keys), ("there", keys[:1])):
        records = [
            ApiKeyRecord(id=str(number), sha256=hash_api_key(key), scopes=("inference",))
            for number, key in enumerate(known)
        ]
        save_api_keys(tmp_path / name, records)
    there = await start_gateway(
        PolicyDaemon(US, (), policy),
        engine_url=far_engine.url,
        require_auth=True,
        api_keys_file=tmp_path / "there",
    )
    here = await start_gateway(
        PolicyDaemon(EU, (US,), policy),
        elsewhere={US: there.url},
        require_auth=True,
        api_keys_file=tmp_path / "here",
    )
    found = []
    for key in keys:
        headers = {"X-KV-Tenant": "bob", "Authorization": f"Bearer {key}"}
        found.append((await here.chat(headers=headers))[0])
    assert found == [200, 401]
    assert len(far_engine.requests) == 1
    assert not any(key in str(far_engine.requests) for key in keys)


async def over_tls(
    start: Start, far: FakeEngine, shown: tuple[Path, Path] | None, trusted: Path | None
) -> tuple[Gateway, Gateway]:
    """A gateway that shows a certificate, or none, and one that sends to it and trusts a file."""
    policy = revision("eu", "us")
    files = {} if shown is None else {"tls_cert": shown[0], "tls_key": shown[1]}
    there = await start(PolicyDaemon(US, (), policy), engine_url=far.url, **files)
    url = there.url.replace("http:", "https:")
    here = await start(
        PolicyDaemon(EU, (US,), policy), elsewhere={US: url}, elsewhere_ca_file=trusted
    )
    return here, there


async def test_a_user_is_sent_on_over_tls_whole_and_streamed(
    start_gateway: Start, far_engine: FakeEngine, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "own")
    shown = authority.issue("127.0.0.1")
    here, there = await over_tls(start_gateway, far_engine, shown, authority.file)
    assert there.url.startswith("https://")
    long = "x" * 300_000  # many records of TLS
    messages = [{"role": "user", "content": long}]
    for _ in range(2):  # the second on the connection that was kept
        status, answer = await here.chat(headers={"X-KV-Tenant": "bob"}, messages=messages)
        assert (status, answer["ok"]) == (200, True)
    assert far_engine.last_body["messages"] == messages

    async def in_events(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream_events(request, [b"data: {}\n\n"] * 50 + [b"data: [DONE]\n\n"])

    far_engine.handler = in_events
    body = {"model": "m", "messages": messages, "stream": True}
    url = f"{here.url}/v1/chat/completions"
    async with here.client.post(url, json=body, headers={"X-KV-Tenant": "bob"}) as streamed:
        assert (await streamed.read()).count(b"data: ") == 51


@pytest.mark.parametrize(
    "wrong", ["another authority", "another name", "expired", "none named", "no certificate"]
)
async def test_a_gateway_that_is_not_who_it_should_be_is_sent_nothing(
    start_gateway: Start, far_engine: FakeEngine, tmp_path: Path, wrong: str
) -> None:
    authority, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    trusted: Path | None = authority.file
    shown: tuple[Path, Path] | None = authority.issue("127.0.0.1")
    if wrong == "another authority":
        shown = other.issue("127.0.0.1")
    elif wrong == "another name":
        shown = authority.issue("us.llm.example.com")
    elif wrong == "expired":
        shown = authority.issue("127.0.0.1", days=-1)
    elif wrong == "none named":
        trusted = None  # the system's authorities alone
    else:
        shown = None
    here, there = await over_tls(start_gateway, far_engine, shown, trusted)
    status, answer = await here.chat(headers={"X-KV-Tenant": "bob"})
    assert (status, answer["error"]["code"]) == (403, "residency_denied")
    assert US in answer["error"]["message"]
    assert far_engine.requests == there.daemon.asked == []


async def test_a_refusal_of_another_kind_goes_nowhere(
    start_gateway: Start, far_engine: FakeEngine
) -> None:
    here, _ = await pair(start_gateway, far_engine, revision("eu", "us"))
    here.daemon.refuse = SessionRefusedError("too many sessions", 429)
    assert (await here.chat(headers={"X-KV-Tenant": "bob"}))[0] == 429
    assert far_engine.requests == []


@pytest.mark.parametrize(
    "url",
    ["http://us.example.com", "https://us.example.com/v1", "https://a:b@us.example.com", "ftp://x",
     "https://us.example.com:99999", "https://", "https://us.example.com\r\nx: y"],
)  # fmt: skip
def test_prompts_go_to_other_machines_by_tls_alone(url: str) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings(elsewhere={"us-east-1": url})


@pytest.mark.parametrize("url", ["https://us.example.com", "https://[2001:db8::1]:8443",
                                 "http://127.0.0.1:8000", "http://[::1]:8000"])  # fmt: skip
def test_other_gateways_are_named_by_scheme_host_and_port(url: str) -> None:
    assert GatewaySettings(elsewhere={"us-east-1": url}).elsewhere == {"us-east-1": url}
