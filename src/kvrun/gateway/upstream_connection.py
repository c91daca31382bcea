"""One connection to the engine: HTTP/1.1, one request at a time, its answer as it comes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

KEEPALIVE_S = 3.0  # below the engine's own 5 s, so that it rarely closes a connection we reuse
HIGH_WATER_BYTES = 1 << 18

Sink = Callable[[bytes], bool]


class EngineUnavailableError(Exception):
    """The engine could not be reached, or closed the connection before it answered."""


class EngineTimeoutError(Exception):
    """The engine stayed silent for too long."""


class EngineBrokeError(Exception):
    """The engine's answer ended before it was complete, or was not HTTP."""


class EngineConnection(asyncio.Protocol):
    """One connection: one request at a time, its answer read as it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._rested_at = 0.0
        self.status = 0
        self._fields: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._waiting_bytes = 0
        self._complete = False
        self._keep_alive = False
        self._framed = False
        self._surplus = False
        self._paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._last_heard = 0.0
        self._asked = False
        self._sink: Sink | None = None

    @property
    def usable(self) -> bool:
        """Whether a kept connection may be tried once more."""
        fresh = self._loop.time() - self._rested_at < KEEPALIVE_S
        return self._transport is not None and fresh and not self._surplus

    @property
    def reusable(self) -> bool:
        """Whether the answer ended cleanly and the engine keeps the connection."""
        return (
            self._complete
            and self._keep_alive
            and not self._surplus
            and self._transport is not None
        )

    def field(self, name: bytes) -> str | None:
        """A header of the answer."""
        value = self._fields.get(name)
        return value.decode("latin-1") if value is not None else None

    async def exchange(self, head: bytes, body: bytes | None) -> None:
        """Send a request and wait for the answer's head."""
        self._begin()
        if self._transport is None:
            raise EngineBrokeError
        self._transport.write(head + body if body is not None else head)
        self._last_heard = self._loop.time()
        self._asked = True
        if self._timer is None:
            due = self._last_heard + self._timeout_s
            self._timer = self._loop.call_at(due, self._check_silence)
        while not self.status:
            await self._news()

    async def read(self) -> bytes:
        while not self._chunks:
            if self._complete:
                return b""
            await self._news()
        return self._take()

    async def pump(self, sink: Sink, drain: Callable[[], Awaitable[None]]) -> bytes:
        while not self._complete:
            if not self._chunks:
                self._sink = sink
                try:
                    await self._news()
                finally:
                    self._sink = None
                await drain()
            elif not sink(self._take()):
                await drain()
        return self._take()

    def rest(self) -> None:
        """Between two requests."""
        self._asked = False
        self._rested_at = self._loop.time()

    def abort(self) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._last_heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(EngineBrokeError())
            self.abort()
        if self._sink is None or not self._chunks or self._complete or not self._pass_on():
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.status and not self._complete and not self._framed and exc is None:
            self._complete = True  # an answer without a length ends with its connection
        elif not self._complete:
            self._fail(EngineBrokeError())
        self._stop_timer()
        self._wake()

    # The parser's callbacks, named by httptools.

    def on_message_begin(self) -> None:
        # An answer that nobody asked for must not become the answer to the next request.
        self._surplus = self._surplus or self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._surplus:
            self._fields[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._surplus:
            return
        status = self._parser.get_status_code()
        if status == 101:
            # Nobody asked for another protocol; raised here it breaks the connection.
            raise EngineBrokeError
        if status >= 200:
            self.status = status
            self._keep_alive = self._parser.should_keep_alive()
            self._framed = b"content-length" in self._fields or b"transfer-encoding" in self._fields

    def on_body(self, body: bytes) -> None:
        if self._surplus:
            return
        self._chunks.append(body)
        self._waiting_bytes += len(body)
        if self._waiting_bytes > HIGH_WATER_BYTES and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status:
            self._complete = True
        else:
            self._fields.clear()  # that was an interim answer (1xx)

    def _take(self) -> bytes:
        """All that has arrived."""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._waiting_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def _pass_on(self) -> bool:
        """Give what has arrived to the sink; False where the pump has to be woken."""
        sink, self._sink = self._sink, None
        if sink is None:
            return False
        try:
            flowing = sink(self._take())
        except Exception as error:
            self._fail(error)
            self.abort()  # nothing that follows what could not be passed on may be
            return False
        if flowing:
            self._sink = sink
        return flowing

    def _begin(self) -> None:
        self.status = 0
        self._fields = {}
        self._complete = False
        self._framed = False

    async def _news(self) -> None:
        """Wait until something has arrived. Raises what has gone wrong."""
        self._raise_error()
        if self._transport is None:
            raise EngineBrokeError
        self._waiter = self._loop.create_future()
        await self._waiter
        if not self._chunks and not self._complete:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error

    def _check_silence(self) -> None:
        """One timer a connection, set anew when it finds that the engine has spoken."""
        if not self._asked:
            self._timer = None
            return
        due = self._last_heard + self._timeout_s
        if self._paused:
            due = self._loop.time() + self._timeout_s  # it is the client that is slow
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._check_silence)
            return
        self._fail(EngineTimeoutError())
        self.abort()
        self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
