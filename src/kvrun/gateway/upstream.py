"""The engine behind the gateway: kept HTTP/1.1 connections over a Unix socket or loopback.

A client of its own, on asyncio and httptools, since a general one costs more time a request and an
event than all of the gateway's checks (``kvrun bench gateway``). It speaks to one trusted server
and needs no redirects, cookies, proxies or compression.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Self, cast

import httptools

KEEPALIVE_S = 3.0  # below the engine's own 5 s, so that it rarely closes a connection we reuse
HIGH_WATER_BYTES = 1 << 18


class EngineUnavailableError(Exception):
    """The engine could not be reached, or closed the connection before it answered."""


class EngineTimeoutError(Exception):
    """The engine stayed silent for too long."""


class EngineBrokeError(Exception):
    """The engine's answer ended before it was complete, or was not HTTP."""


class EngineAnswer:
    """An answer whose head has arrived. ``read`` gives the next bytes, empty at the end."""

    def __init__(self, connection: "_Connection", release: "Callable[[_Connection], None]") -> None:
        self._connection: _Connection | None = connection
        self._release = release
        self.status = connection.status
        self.content_type = connection.field(b"content-type") or "application/json"
        self.retry_after = connection.field(b"retry-after")

    async def read(self) -> bytes:
        """Raises EngineTimeoutError or EngineBrokeError."""
        if self._connection is None:
            return b""
        data = await self._connection.read()
        if not data:
            self._release(self._connection)
            self._connection = None
        return data

    async def read_all(self) -> bytes:
        """The rest of the answer. Raises EngineTimeoutError or EngineBrokeError."""
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Hang up on an answer that is not complete: that is what stops the engine."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


class Engine:
    """Requests to the engine at ``url`` (``unix:/path`` or ``http://127.0.0.1:port``)."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        connect_timeout_s: float,
        response_timeout_s: float,
    ) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self._response_timeout_s = response_timeout_s
        credential = f"authorization: Bearer {api_key}\r\n" if api_key is not None else ""
        self._fixed = (
            "host: engine\r\nuser-agent: kvrun-gateway\r\naccept: */*\r\n"
            f"accept-encoding: identity\r\n{credential}"
        ).encode()
        self._idle: list[_Connection] = []
        self._open = False

    async def open(self) -> Self:
        """Begin to serve; the engine itself need not be there yet."""
        self._open = True
        return self

    async def close(self) -> None:
        """Close the kept connections."""
        self._open = False
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def request(
        self, method: str, path: str, request_id: str, body: bytes | None = None
    ) -> EngineAnswer:
        """Send one request. Raises EngineUnavailableError or EngineTimeoutError."""
        head = b"%b %b HTTP/1.1\r\n%bx-request-id: %b\r\n" % (
            method.encode(),
            path.encode(),
            self._fixed,
            request_id.encode(),
        )
        if body is not None:
            head += b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        head += b"\r\n"
        kept = self._kept_connection()
        if kept is not None:
            try:
                return await self._exchange(kept, head, body)
            except EngineBrokeError:
                pass  # closed by the engine meanwhile: nothing was answered, so once more
        try:
            return await self._exchange(await self._connect(), head, body)
        except EngineBrokeError:
            raise EngineUnavailableError from None

    async def _exchange(
        self, connection: "_Connection", head: bytes, body: bytes | None
    ) -> EngineAnswer:
        try:
            await connection.exchange(head, body)
        except BaseException:
            connection.abort()
            raise
        return EngineAnswer(connection, self._keep)

    def _kept_connection(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: "_Connection") -> None:
        if self._open and connection.reusable:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()

        def make() -> _Connection:
            return _Connection(loop, self._response_timeout_s)

        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if self._url.startswith("unix:"):
                    _, made = await loop.create_unix_connection(make, self._url[5:])
                else:
                    host, port = _host_and_port(self._url)
                    _, made = await loop.create_connection(make, host, port)
        except OSError:  # TimeoutError included
            raise EngineUnavailableError from None
        return made


class _Connection(asyncio.Protocol):
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
        self._timer = self._loop.call_at(self._last_heard + self._timeout_s, self._check_silence)
        while not self.status:
            await self._news()

    async def read(self) -> bytes:
        while not self._chunks:
            if self._complete:
                return b""
            await self._news()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._waiting_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def rest(self) -> None:
        """Between two requests."""
        self._stop_timer()
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
        """One timer an answer, set anew when it finds that the engine has spoken."""
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


def _host_and_port(url: str) -> tuple[str, int]:
    match = re.fullmatch(r"http://(.+):(\d+)", url)
    if match is None:
        raise ValueError(f"{url!r} is not http://host:port")
    return match.group(1).strip("[]"), int(match.group(2))
