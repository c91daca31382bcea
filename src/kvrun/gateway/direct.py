"""The client's connection itself, for what ASGI makes dear on every request and every event.

Through ASGI an event costs a task's turn, an awaited call and a message; noticing that a client
has left costs a task of its own; a body that came with its head costs a wait. ``DirectProtocol``
serves any ASGI application and gives it, beside ``receive`` and ``send``, the connection.
An answer goes either through ``send`` or, chunked, through ``begin``, ``write`` and ``end``.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from kvrun.gateway.asgi import ClientGoneError, Scope
from kvrun.gateway.bounded import BoundedHeadProtocol

_EXTENSION = "kvrun.client"
_NOT_WRITABLE = "the answer has not begun, has a length or is over"


class DirectProtocol(BoundedHeadProtocol):
    """Hands each request its :class:`ClientConnection`."""

    watcher: asyncio.Task[None] | None = None
    left = False

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.refused:
            return
        scope = cast(Scope, self.scope)
        scope["extensions"] = {_EXTENSION: ClientConnection(self, self.cycle)}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.left = True
        if self.watcher is not None:
            self.watcher.cancel()
            self.watcher = None


class ClientConnection:
    """Where one request came from and its answer goes to."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: DirectProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    @property
    def left(self) -> bool:
        """Whether the client has closed the connection."""
        return self._protocol.left

    def whole_body(self) -> bytes | None:
        """The body where all of it has come with its head; else ``receive`` has to be asked."""
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        if self._protocol.cycle is cycle:  # else a request behind this one holds reading back
            cycle.flow.resume_reading()
        return body

    def cancel_when_left(self, task: asyncio.Task[None]) -> None:
        """Cancel ``task`` when the client leaves. Raises ClientGoneError where it has left."""
        if self._protocol.left:
            raise ClientGoneError
        self._protocol.watcher = task

    def stop_watching(self) -> None:
        """The task ends by itself."""
        self._protocol.watcher = None

    def begin(self, head: bytes) -> None:
        """Begin an answer: ``head`` is status line and headers, each line ended by CR LF.

        Date, framing and, where the connection ends with the answer, ``Connection`` are added.
        """
        cycle = self._cycle
        if cycle.response_started:
            raise RuntimeError("the answer has begun already")
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        if cycle.disconnected:
            return
        lines = [head, *(b"%b: %b\r\n" % header for header in cycle.default_headers)]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"transfer-encoding: chunked\r\n\r\n")
        cycle.transport.write(b"".join(lines))

    def write(self, data: bytes) -> bool:
        """Send one chunk; False where ``drain`` should come before the next.

        Never waits: what the client has not taken is kept by the transport.
        """
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.response_complete:
            raise RuntimeError(_NOT_WRITABLE)
        if cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not cycle.flow.write_paused

    def end(self, data: bytes) -> None:
        """Send the last chunk, which may be empty, and end the answer."""
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.response_complete:
            raise RuntimeError(_NOT_WRITABLE)
        if cycle.disconnected:
            return
        last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        cycle.transport.write(last)
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written, or has left."""
        await self._cycle.flow.drain()


def take_connection(scope: Scope) -> ClientConnection:
    """The connection of a request that a :class:`DirectProtocol` serves; once a request."""
    # Taken out, or scope and connection would hold each other until the collector comes.
    connection: ClientConnection = scope["extensions"].pop(_EXTENSION)
    return connection
