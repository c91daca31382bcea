"""The connection to the instance daemon: made when first needed, made again when lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from kvrun.gateway.errors import GatewayError
from kvrun.gateway.salts import SessionGrant


class InstanceConnection(Protocol):
    """An open connection, as ``kvrun.instance.client.AsyncInstanceClient`` is one."""

    @property
    def workspace(self) -> str: ...

    @property
    def deployment(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    async def open_session(self, tenant: str, session: str) -> SessionGrant: ...

    async def close(self) -> None: ...


Connect = Callable[[], Awaitable[InstanceConnection]]


class InstanceLink:
    """A SessionGranter that survives restarts of the daemon.

    ``on_lost`` is called when a connection is replaced: pushes may have been missed meanwhile.
    """

    def __init__(self, connect: Connect, on_lost: Callable[[], None]) -> None:
        self._connect = connect
        self._on_lost = on_lost
        self._connection: InstanceConnection | None = None
        self._lock = asyncio.Lock()

    @property
    def workspace(self) -> str:
        return self._established().workspace

    @property
    def deployment(self) -> str:
        return self._established().deployment

    async def open_session(self, tenant: str, session: str) -> SessionGrant:
        """Ask the daemon, connecting first where needed. Raises what connecting raises."""
        return await (await self._connected()).open_session(tenant, session)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _connected(self) -> InstanceConnection:
        async with self._lock:
            if self._connection is not None and not self._connection.closed:
                return self._connection
            if self._connection is not None:
                self._on_lost()
            self._connection = await self._connect()
            return self._connection

    def _established(self) -> InstanceConnection:
        if self._connection is None:
            raise GatewayError("the instance daemon is not connected", status=503)
        return self._connection
