"""A user of the deployment without HTTP: opens sessions, stamps claims, asks the engine."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable

from kvrun.errors import KvrunError
from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.grant import SessionGrant
from support.daemon import Daemon
from support.engine import Answer, Ask, Engine


def grant(daemon: Daemon, tenant: str, session: str = "default") -> SessionGrant:
    """What the daemon grants the gateway for a session."""

    async def ask() -> SessionGrant:
        client = AsyncInstanceClient(
            daemon.socket,
            daemon.gateway_token,
            on_invalidated=lambda tenant, session: None,
            on_lost=lambda: None,
        )
        await client.start()
        try:
            return await client.open_session(tenant, session)
        finally:
            await client.close()

    return asyncio.run(ask())


def claimed(
    daemon: Daemon, tenant: str, tokens: list[int], *, session: str = "default", max_tokens: int = 8
) -> tuple[str, Ask]:
    """A request of a tenant's session with a fresh claim, and the claim's request id."""
    granted = grant(daemon, tenant, session)
    request_id = secrets.token_hex(8)
    claim = daemon.claim(
        tenant, granted.salt, granted.generation, session=session, request_id=request_id
    )
    return request_id, Ask(tokens, granted.salt, claim, max_tokens)


def ask(
    daemon: Daemon,
    engine: Engine,
    tenant: str,
    tokens: list[int],
    *,
    session: str = "default",
    max_tokens: int = 8,
) -> Answer:
    """Generate for one tenant's session."""
    _, request = claimed(daemon, tenant, tokens, session=session, max_tokens=max_tokens)
    return engine.ask(request)[0]


def unclaimed(tokens: list[int]) -> Ask:
    """What the gateway sends while the daemon is away: a random salt and no claim."""
    return Ask(tokens, secrets.token_urlsafe(32))


def prompt(seed: int, count: int = 1500) -> list[int]:
    """So many seeded token ids."""
    source = random.Random(seed)
    return [source.randrange(10, 2000) for _ in range(count)]


def eventually(holds: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait until something holds, or fail naming it."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"did not happen in {timeout_s} s: {what}"
        time.sleep(0.02)


def store(
    daemon: Daemon,
    engine: Engine,
    tenant: str,
    tokens: list[int],
    *,
    session: str = "default",
    max_tokens: int = 8,
    block: int = 128,
    already: int = 0,
) -> Answer:
    """Generate, and wait until every whole block of the prompt is sealed and on disk.

    ``already`` counts the blocks that an earlier request sealed.
    """
    request_id, request = claimed(daemon, tenant, tokens, session=session, max_tokens=max_tokens)
    answer = engine.ask(request)[0]
    expected = len(tokens) // block - already
    eventually(
        lambda: daemon.reuse(request_id).sealed_blocks >= expected, f"{expected} sealed blocks"
    )
    daemon.admin("flush")
    return answer


def reconnect(daemon: Daemon, engine: Engine, timeout_s: float = 30.0) -> None:
    """Ask until the engine has found the daemon again, with scheduler and worker."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        request_id, request = claimed(
            daemon, "warm-up", prompt(secrets.randbits(32), 200), max_tokens=2
        )
        engine.ask(request)
        time.sleep(0.1)
        try:
            if daemon.reuse(request_id).sealed_blocks:
                return
        except KvrunError:
            continue
    raise AssertionError(f"the engine did not find the daemon again in {timeout_s} s")
