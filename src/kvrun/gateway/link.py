"""The connection to the instance daemon, made when first needed.

The client behind it keeps the connection by itself once it has been made. The gateway must not
depend on the daemon being there first, so a failed start is only a request without the cache.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from kvrun.gateway.salts import SessionGrant, SessionGranter


class InstanceClient(SessionGranter, Protocol):
    """``kvrun.instance.client.AsyncInstanceClient`` as far as the gateway uses it."""

    @property
    def connected(self) -> bool:
        """Whether the daemon can be asked now."""

    async def start(self, *, timeout_s: float) -> None:
        """Connect for the first time. Raises KvrunError when that fails within ``timeout_s``."""

    async def erase_user(
        self, tenant: str, session: str, *, requester: str, reference: str, legal_basis: str
    ) -> bytes:
        """Erase a session, or with an empty one a tenant; the certificate."""

    async def close(self) -> None:
        """Close the connection."""


class InstanceLink:
    """A SessionGranter whose client starts with the first question. ``make`` builds the client."""

    def __init__(self, make: Callable[[], InstanceClient]) -> None:
        self._make = make
        self._client: InstanceClient | None = None
        self._lock = asyncio.Lock()

    @property
    def workspace(self) -> str:
        """The workspace that the daemon serves; only after a grant."""
        return self._started.workspace

    @property
    def deployment(self) -> str:
        """The deployment that the daemon serves; only after a grant."""
        return self._started.deployment

    @property
    def connected(self) -> bool:
        """Whether the daemon can be asked now."""
        return self._client is not None and self._client.connected

    async def open_session(self, tenant: str, session: str) -> SessionGrant:
        """Ask the daemon, connecting first where needed. Raises what connecting raises."""
        return await (await self.start()).open_session(tenant, session)

    async def erase_user(
        self, tenant: str, session: str, *, requester: str, reference: str, legal_basis: str
    ) -> bytes:
        """Have the daemon erase, connecting first where needed. Raises what connecting raises."""
        client = await self.start()
        return await client.erase_user(
            tenant, session, requester=requester, reference=reference, legal_basis=legal_basis
        )

    async def start(self) -> InstanceClient:
        """Connect if that has not succeeded yet. Raises what connecting raises."""
        if self._client is None:
            async with self._lock:
                if self._client is None:
                    client = self._make()
                    await client.start(timeout_s=0)
                    self._client = client
        return self._client

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    @property
    def _started(self) -> InstanceClient:
        # Only asked after a grant, which a client that never started cannot have given.
        assert self._client is not None
        return self._client
