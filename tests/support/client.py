"""A user of the deployment without the HTTP part: opens sessions, stamps claims, asks the engine."""

from __future__ import annotations

import asyncio
import secrets

from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.instance import SessionGrant

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
