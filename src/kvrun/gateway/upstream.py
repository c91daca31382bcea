"""The engine behind the gateway: one pool of HTTP connections, over a Unix socket or loopback."""

from typing import Self

import aiohttp

KEEPALIVE_S = 3.0  # below the engine's own 5 s, so that it rarely closes a connection we reuse
READ_BUFFER_BYTES = 1 << 18


class EngineUnavailableError(Exception):
    """The engine could not be reached, or closed the connection before it answered."""


class EngineTimeoutError(Exception):
    """The engine stayed silent for too long."""


class EngineBrokeError(Exception):
    """The engine's answer ended before it was complete."""


class EngineAnswer:
    """An answer whose head has arrived. ``read`` gives the next bytes, empty at the end."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "application/json")
        self.retry_after = response.headers.get("Retry-After")

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except TimeoutError:
            raise EngineTimeoutError from None
        except (aiohttp.ClientError, OSError):
            raise EngineBrokeError from None

    async def read_all(self) -> bytes:
        try:
            return await self._response.read()
        except TimeoutError:
            raise EngineTimeoutError from None
        except (aiohttp.ClientError, OSError):
            raise EngineBrokeError from None

    def close(self) -> None:
        """Back to the pool if the answer is complete; otherwise hang up, which stops the engine."""
        self._response.close()


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
        self._socket_path = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._base = "http://engine" if self._socket_path is not None else url
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=response_timeout_s
        )
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> Self:
        """Make the connection pool; the engine itself need not be there yet."""
        connector: aiohttp.BaseConnector
        if self._socket_path is not None:
            connector = aiohttp.UnixConnector(
                self._socket_path, limit=0, keepalive_timeout=KEEPALIVE_S
            )
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        headers = {"Accept-Encoding": "identity", "User-Agent": "kvrun-gateway"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER_BYTES,
        )
        return self

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self, method: str, path: str, request_id: str, body: bytes | None = None
    ) -> EngineAnswer:
        """Send one request. Raises EngineUnavailableError or EngineTimeoutError."""
        try:
            return await self._send(method, path, request_id, body)
        except EngineBrokeError:
            # A kept connection that the engine closed meanwhile: nothing was answered, so the
            # request is sent once more on another one.
            try:
                return await self._send(method, path, request_id, body)
            except EngineBrokeError:
                raise EngineUnavailableError from None

    async def _send(
        self, method: str, path: str, request_id: str, body: bytes | None
    ) -> EngineAnswer:
        if self._session is None:
            raise EngineUnavailableError
        headers = {"X-Request-Id": request_id}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            return EngineAnswer(
                await self._session.request(
                    method, self._base + path, data=body, headers=headers, allow_redirects=False
                )
            )
        except aiohttp.ClientConnectorError:
            raise EngineUnavailableError from None
        except aiohttp.ServerTimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise EngineUnavailableError from None
            raise EngineTimeoutError from None
        except TimeoutError:
            raise EngineTimeoutError from None
        except (aiohttp.ClientError, OSError):
            raise EngineBrokeError from None
