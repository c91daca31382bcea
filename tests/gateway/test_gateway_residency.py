"""Who may not be processed here is refused before the engine sees the prompt."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from gateway_rig import FakeDaemon, FakeEngine, Gateway

from kvrun.claims import ClaimVerifier
from kvrun.config import parse_config
from kvrun.errors import KvrunError

Start = Callable[..., Awaitable[Gateway]]


class NotHereError(KvrunError):
    status = 403


async def test_a_tenant_whom_the_policy_does_not_allow_here_gets_403_and_the_engine_nothing(
    start_gateway: Start, engine: FakeEngine
) -> None:
    daemon = FakeDaemon()
    daemon.refuse = NotHereError("the residency policy does not allow this tenant in eu-west-1")
    gateway = await start_gateway(daemon)
    status, answer = await gateway.chat(headers={"X-KV-Tenant": "alice"})
    assert status == 403
    assert answer["error"]["code"] == "residency_denied"
    assert answer["error"]["type"] == "permission_error"
    assert engine.requests == []
    daemon.refuse = None
    assert (await gateway.chat(headers={"X-KV-Tenant": "alice"}))[0] == 200
    assert len(engine.requests) == 1


async def test_no_header_and_no_body_says_what_a_policy_sees_of_a_tenant(
    start_gateway: Start, engine: FakeEngine
) -> None:
    said = {"class": "eu", "region": "eu-west-1", "labels": "contract=gdpr"}
    gateway = await start_gateway()
    for name, value in said.items():
        headers = {"X-KV-Tenant": "eve", f"X-KV-{name.title()}": value}
        status, answer = await gateway.chat(headers=headers)
        assert (status, answer["error"]["code"]) == (400, "bad_identity")
    assert engine.requests == []
    headers = {f"X-Tenant-{name.title()}": value for name, value in said.items()}
    status, _ = await gateway.chat(headers={"X-KV-Tenant": "eve", **headers}, metadata=said)
    assert status == 200
    assert set(gateway.daemon.asked) == {("eve", "default")}, "all that the daemon is asked with"
    key = gateway.claim_key.public_key()
    stamped = engine.last_body["kv_transfer_params"]["kvrun_claim"]
    claim = ClaimVerifier([key], "chat", now=time.time, workspace="w1").verify(stamped)
    assert (claim.tenant, claim.attributes) == ("eve", {})


async def test_where_a_policy_is_enforced_nobody_is_served_while_the_daemon_cannot_be_asked(
    start_gateway: Start, engine: FakeEngine
) -> None:
    daemon = FakeDaemon()
    daemon.refuse = ConnectionRefusedError()
    gateway = await start_gateway(daemon, require_daemon=True)
    status, answer = await gateway.chat(headers={"X-KV-Tenant": "alice"})
    assert (status, answer["error"]["code"]) == (503, "residency_unknown")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("settings", "required"),
    [
        ("", False),
        ('[residency]\nrepository = "/srv/policies"\n', True),
        ('[residency]\nrepository = "/srv/policies"\nmode = "warn"\n', False),
        ('[residency]\nmode = "enforce"\n', False),
        (
            '[residency]\nrepository = "/srv/policies"\n[gateway]\nrequire_daemon = false\n',
            False,
        ),
    ],
)
def test_the_gateway_needs_the_daemon_where_a_policy_is_enforced(
    settings: str, required: bool
) -> None:
    assert parse_config(settings, {}).gateway.require_daemon is required
