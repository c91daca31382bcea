"""The engine behind the gateway: kept HTTP/1.1 connections over a Unix socket or loopback.

A client of its own, on asyncio and httptools, since a general one costs more time a request and an
event than all of the gateway's checks (``kvrun bench gateway``). It speaks to one trusted server
and needs no redirects, cookies, proxies or compression.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Self

from kvrun.gateway.upstream_connection import (
    EngineBrokeError,
    EngineConnection,
    EngineTimeoutError,
    EngineUnavailableError,
    Sink,
)

__all__ = [
    "Engine",
    "EngineAnswer",
    "EngineBrokeError",
    "EngineTimeoutError",
    "EngineUnavailableError",
]


class EngineAnswer:
    """An answer whose head has arrived. ``read`` gives the next bytes, empty at the end."""

    def __init__(
        self, connection: EngineConnection, release: Callable[[EngineConnection], None]
    ) -> None:
        self._connection: EngineConnection | None = connection
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

    async def pump(self, sink: Sink, drain: Callable[[], Awaitable[None]]) -> bytes:
        """Give everything to ``sink`` as it comes and return what came with the answer's end.

        ``sink`` is called where bytes arrive, without a task's turn. Where it returns False,
        ``drain`` is awaited before the next call. Raises EngineTimeoutError, EngineBrokeError and
        what ``sink`` raises.
        """
        if self._connection is None:
            return b""
        last = await self._connection.pump(sink, drain)
        self._release(self._connection)
        self._connection = None
        return last

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
        host: str = "engine",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``host`` and ``tls`` are for another gateway in an engine's place, on any machine."""
        self._url = url
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._response_timeout_s = response_timeout_s
        credential = f"authorization: Bearer {api_key}\r\n" if api_key is not None else ""
        self._fixed = (
            f"host: {host}\r\nuser-agent: kvrun-gateway\r\naccept: */*\r\n"
            f"accept-encoding: identity\r\n{credential}"
        ).encode()
        self._idle: list[EngineConnection] = []
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
        self,
        method: str,
        path: str,
        request_id: str,
        body: bytes | None = None,
        traceparent: str = "",
        headers: bytes = b"",
    ) -> EngineAnswer:
        """Send one request. Raises EngineUnavailableError or EngineTimeoutError.

        ``traceparent`` is a valid one (W3C Trace Context) or empty; ``headers`` are more lines of
        the head, each with its end.
        """
        head = b"%b %b HTTP/1.1\r\n%bx-request-id: %b\r\n" % (
            method.encode(),
            path.encode(),
            self._fixed,
            request_id.encode(),
        )
        if body is not None:
            head += b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        if traceparent:
            head += b"traceparent: %b\r\n" % traceparent.encode("ascii")
        head += headers + b"\r\n"
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
        self, connection: EngineConnection, head: bytes, body: bytes | None
    ) -> EngineAnswer:
        try:
            await connection.exchange(head, body)
        except BaseException:
            connection.abort()
            raise
        return EngineAnswer(connection, self._keep)

    def _kept_connection(self) -> EngineConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: EngineConnection) -> None:
        if self._open and connection.reusable:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _connect(self) -> EngineConnection:
        loop = asyncio.get_running_loop()

        def make() -> EngineConnection:
            return EngineConnection(loop, self._response_timeout_s)

        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if self._url.startswith("unix:"):
                    _, made = await loop.create_unix_connection(make, self._url[5:])
                else:
                    host, port = _host_and_port(self._url)
                    _, made = await loop.create_connection(make, host, port, ssl=self._tls)
        except OSError:  # TimeoutError included
            raise EngineUnavailableError from None
        return made


def _host_and_port(url: str) -> tuple[str, int]:
    match = re.fullmatch(r"http://(.+):(\d+)", url)
    if match is None:
        raise ValueError(f"{url!r} is not http://host:port")
    return match.group(1).strip("[]"), int(match.group(2))
