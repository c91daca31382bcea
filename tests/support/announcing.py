"""Requests of engines that get their claims announced: the gateway's part without HTTP."""

from __future__ import annotations

import asyncio
import secrets

from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.grant import SessionGrant
from support.client import grant
from support.daemon import Daemon


def announced(
    daemon: Daemon,
    tenant: str,
    *,
    session: str = "default",
    claim: str | None = None,
    uses: int = 1,
) -> tuple[str, SessionGrant]:
    """Announce a fresh claim of a session (or ``claim``); its request id, and the grant."""
    granted = grant(daemon, tenant, session)
    request_id = secrets.token_hex(8)
    if claim is None:
        claim = daemon.claim(
            tenant,
            granted.salt,
            granted.generation,
            session=session,
            request_id=request_id,
            uses=uses,
        )
    asyncio.run(_announce(daemon, granted.salt, claim, uses))
    return request_id, granted


async def _announce(daemon: Daemon, salt: str, claim: str, uses: int) -> None:
    client = AsyncInstanceClient(
        daemon.socket,
        daemon.gateway_token,
        on_invalidated=lambda tenant, session: None,
        on_lost=lambda: None,
    )
    await client.start()
    try:
        async with asyncio.timeout(20):
            while not client.announces:  # noqa: ASYNC110  a push, of which nobody is told
                await asyncio.sleep(0.005)
        client.announce(salt, claim, uses)
    finally:
        await client.close()
