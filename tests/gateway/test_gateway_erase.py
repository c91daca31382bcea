"""An application erases a user: only under the scope, only its tenant; the answer certifies it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from gateway_rig import FakeEngine, Gateway
from hypothesis import given
from hypothesis import strategies as st

from kvrun.erasure.certificate import ErasureStatement, RequestKind, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.gateway.apikeys import ApiKeyRecord, hash_api_key, make_api_key, save_api_keys
from kvrun.gateway.erase import PREFIX, parse_target
from kvrun.gateway.errors import GatewayError
from kvrun.instance.client import AsyncInstanceClient
from support.daemon import Daemon

KEYS = {
    "asks": (("inference",), None),
    "erases": (("erase",), None),
    "alices": (("inference", "erase"), "alice"),
}
TOKENS = {name: make_api_key(name.ljust(32).encode()) for name in KEYS}
IDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def served(daemon: Daemon, start_gateway: Any, tmp_path: Path) -> Gateway:
    path = tmp_path / "keys.json"
    save_api_keys(
        path,
        [
            ApiKeyRecord(id=name, sha256=hash_api_key(TOKENS[name]), scopes=scopes, tenant=tenant)
            for name, (scopes, tenant) in KEYS.items()
        ],
    )
    client = AsyncInstanceClient(
        daemon.socket,
        daemon.gateway_token,
        on_invalidated=lambda tenant, session: None,
        on_lost=lambda: None,
    )
    gateway: Gateway = await start_gateway(client, require_auth=True, api_keys_file=path)
    return gateway


async def delete(gateway: Gateway, path: str, key: str = "erases") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {TOKENS[key]}"} if key else {}
    async with gateway.client.delete(gateway.url + path, headers=headers) as answer:
        return answer.status, await answer.read()


async def opened(gateway: Gateway, tenant: str, session: str) -> int:
    """The generation of the session's key, made when there is none."""
    assert gateway.parts.link is not None
    return (await gateway.parts.link.open_session(tenant, session)).generation


def stated(answer: tuple[int, bytes]) -> ErasureStatement:
    status, certificate = answer
    assert status == 200, certificate
    return decode_statement(payload_of(parse_certificate(certificate)))


async def test_the_answer_is_the_certificate_and_the_key_is_gone(served: Gateway) -> None:
    first = await opened(served, "ann", "one")
    kept = await opened(served, "ann", "two")
    query = "?reference=DSAR-9&legal_basis=GDPR%20Art.%2017"
    statement = stated(await delete(served, f"{PREFIX}ann/sessions/one{query}"))
    assert statement.request.kind is RequestKind.SESSION
    assert statement.request.reference == "DSAR-9"
    assert statement.request.legal_basis == "GDPR Art. 17"
    assert statement.request.requester == "API key erases"
    assert [key.generation for key in statement.keys] == [first]
    assert await opened(served, "ann", "one") > first
    assert await opened(served, "ann", "two") == kept


async def test_a_user_is_erased_with_every_session(served: Gateway) -> None:
    generations = {await opened(served, "u/x", name) for name in ("a", "b")}
    statement = stated(await delete(served, PREFIX + quote("u/x", safe="")))
    assert statement.request.kind is RequestKind.TENANT
    assert {key.generation for key in statement.keys} == generations | {0}


async def test_a_user_without_keys_gets_a_certificate_that_nothing_was_held(
    served: Gateway,
) -> None:
    statement = stated(await delete(served, PREFIX + "nobody"))
    assert (statement.keys, statement.claim_class) == ([], None)


@pytest.mark.parametrize(
    ("key", "path", "status", "named"),
    [
        ("asks", "ann", 403, "'erase'"),
        ("", "ann", 401, "credentials"),
        ("alices", "ann", 403, "another tenant"),
        ("erases", "ann/sessions", 404, "not served"),
        ("erases", "ann/sessions/s/more", 404, "not served"),
        ("erases", "a%20b", 400, "printable"),
        ("erases", "ann?force=1", 400, "legal_basis, reference"),
    ],
)
async def test_what_is_not_allowed_is_refused_by_name(
    served: Gateway, key: str, path: str, status: int, named: str
) -> None:
    before = await opened(served, "ann", "refused")
    found, body = await delete(served, PREFIX + path, key)
    assert (found, named in body.decode()) == (status, True), body
    assert await opened(served, "ann", "refused") == before


async def test_a_key_of_a_tenant_erases_that_tenant(served: Gateway) -> None:
    before = await opened(served, "alice", "default")
    stated(await delete(served, PREFIX + "alice", "alices"))
    assert await opened(served, "alice", "default") > before


async def test_anonymous_callers_erase_nothing(daemon: Daemon, start_gateway: Any) -> None:
    client = AsyncInstanceClient(
        daemon.socket, daemon.gateway_token, on_invalidated=lambda *_: None, on_lost=lambda: None
    )
    gateway = await start_gateway(client)
    status, body = await delete(gateway, PREFIX + "ann", "")
    assert (status, b"erase" in body) == (403, True)


async def test_it_works_while_the_engine_streams_for_others(
    served: Gateway, engine: FakeEngine
) -> None:
    go_on = asyncio.Event()

    async def slowly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"n": 1}\n\n')
        await go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    engine.handler = slowly
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"Authorization": f"Bearer {TOKENS['asks']}", "X-KV-Tenant": "streaming"}
    async with served.client.post(
        served.url + "/v1/chat/completions", json=body, headers=headers
    ) as answer:
        assert await answer.content.readline() == b'data: {"n": 1}\n'
        await opened(served, "ann", "meanwhile")
        stated(await delete(served, PREFIX + "ann/sessions/meanwhile"))
        go_on.set()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")


@given(IDS, st.none() | IDS)
def test_every_id_survives_its_encoding(tenant: str, session: str | None) -> None:
    path = PREFIX + quote(tenant, safe="")
    if session is not None:
        path += "/sessions/" + quote(session, safe="")
    target = parse_target(path.encode(), b"")
    assert (target.tenant, target.session) == (tenant, session or "")


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_path_is_a_target_or_a_refusal(rest: bytes, query: bytes) -> None:
    try:
        target = parse_target(PREFIX.encode() + rest, query)
    except GatewayError:
        return
    assert target.tenant.isprintable()
