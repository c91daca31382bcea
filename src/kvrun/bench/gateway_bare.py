"""A proxy that does nothing but pass HTTP on: what any proxy in Python costs.

Started as ``python -m kvrun.bench.gateway_bare PORT ENGINE_PORT``. It reads no header, checks
nothing, changes nothing, and keeps one connection to the engine for each of its client's, so no
gateway in this language can be cheaper. uvloop and httptools, as in the gateway.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop

from kvrun.gateway.server import bind


class BareProxy(asyncio.Protocol):
    """The client's side: whole requests go to the engine as they came."""

    def __init__(self, engine_port: int) -> None:
        self._engine_port = engine_port
        self._parser = httptools.HttpRequestParser(self)
        self._request = bytearray()
        self._engine: asyncio.Transport | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._request += data
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """The parser's callback."""
        request = bytes(self._request)
        self._request.clear()
        if self._engine is not None:
            self._engine.write(request)
        else:
            asyncio.ensure_future(self._connect(request))  # noqa: RUF006  one, at the beginning

    def connection_lost(self, exc: Exception | None) -> None:
        if self._engine is not None:
            self._engine.close()

    async def _connect(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._engine, _ = await loop.create_connection(
            lambda: _EngineSide(self), "127.0.0.1", self._engine_port
        )
        self._engine.write(request)


class _EngineSide(asyncio.Protocol):
    """The engine's side: bytes go to the client as they came, parsed only to be comparable."""

    def __init__(self, client: BareProxy) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._client.transport is not None:
            self._client.transport.write(data)


async def serve(port: int, engine_port: int) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BareProxy(engine_port), sock=bind("127.0.0.1", port))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
