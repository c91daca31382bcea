"""HTTP that leaves no copy of an answer behind: for keys that come over a connection.

Libraries read into ``bytes`` that nobody can zero: keys were found in freed memory long after
their destruction. Here an answer goes from the TLS layer into one buffer that is zeroed. What
OpenSSL keeps of a record is overwritten by the next one.
"""

import contextlib
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit


class QuietHttp:
    """One kept connection to ``url`` (scheme, host, port). Not thread-safe.

    No redirects, proxies, cookies or compression. ``timeout_s`` bounds connecting and each
    silence, and four times that the whole of an answer.
    """

    def __init__(
        self, url: str, *, trust: ssl.SSLContext, timeout_s: float, max_answer_bytes: int
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._trust = trust if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._answer = bytearray(max_answer_bytes + 1)
        self._reader = _Reader()
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytearray | None
    ) -> tuple[int, memoryview]:
        """Status and body of the answer, valid until ``wipe`` or the next request.

        A body of one byte more than allowed was longer than that. Raises OSError or HTTPException.
        """
        self.wipe()
        if self._connection is not None:
            # A kept connection may have been closed by the other side meanwhile: once more, anew.
            with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):
                return self._exchange(self._connection, method, path, headers, body)
            self.close()
        return self._exchange(self._connect(), method, path, headers, body)

    def wipe(self) -> None:
        """Zero the answer."""
        self._answer[:] = bytes(len(self._answer))
        self._reader.wipe()

    def close(self) -> None:
        """Zero the answer and end the connection."""
        self.wipe()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            if self._trust is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._trust
            )
        )
        connection.connect()
        reader = self._reader

        def answer(sock: socket.socket, *_: object, method: str | None = None) -> object:
            reader.attach(sock)
            # http.client takes the reader for a socket and asks it for its file.
            return http.client.HTTPResponse(cast(socket.socket, reader), method=method)

        connection.response_class = answer  # type: ignore[assignment]
        self._connection = connection
        return connection

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytearray | None,
    ) -> tuple[int, memoryview]:
        self._reader.deadline = time.monotonic() + 4 * self._timeout_s
        try:
            connection.request(method, path, body=body, headers=dict(headers))
            response = connection.getresponse()
            view, length = memoryview(self._answer), 0
            while length < len(view):
                count = response.readinto(view[length:])
                if count == 0:
                    break
                length += count
        except BaseException:
            self.close()
            raise
        if length == len(view) or response.will_close:
            connection.close()
            self._connection = None
        response.close()
        return response.status, view[:length]


class _Reader(io.BufferedIOBase):
    """A buffered reader of a socket whose buffer can be zeroed.

    After ``deadline`` (seconds of time.monotonic) it waits for no more.
    """

    def __init__(self) -> None:
        self.deadline = 0.0
        self._buffer = bytearray(65536)
        self._start = self._end = 0
        self._raw: socket.SocketIO | None = None

    def attach(self, sock: socket.socket) -> None:
        self.close()
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket until the answer is read
        self.wipe()

    def makefile(self, *_: object) -> "_Reader":
        return self

    def wipe(self) -> None:
        self._buffer[: self._end] = bytes(self._end)
        self._start = self._end = 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Let the socket go; the reader serves the next answer too."""
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def readline(self, size: int | None = -1, /) -> bytes:
        """For status, headers and sizes of chunks: nothing secret."""
        line = bytearray()
        limit = len(self._buffer) if size is None or size < 0 else size
        while len(line) < limit:
            if self._start == self._end and not self._fill():
                break
            found = self._buffer.find(b"\n", self._start, self._end)
            stop = min(self._end if found < 0 else found + 1, self._start + limit - len(line))
            line += self._buffer[self._start : stop]
            self._start = stop
            if found >= 0 and stop == found + 1:
                break
        return bytes(line)

    def readinto(self, target: memoryview, /) -> int:  # type: ignore[override]
        """Fill ``target``; less only at the end of the stream."""
        length = 0
        while length < len(target):
            if self._start == self._end and not self._fill():
                break
            count = min(len(target) - length, self._end - self._start)
            target[length : length + count] = memoryview(self._buffer)[self._start :][:count]
            self._start += count
            length += count
        return length

    def read(self, size: int | None = -1, /) -> bytes:
        """For the ends of chunks."""
        wanted = bytearray(max(0, size or 0))
        return bytes(wanted[: self.readinto(memoryview(wanted))])

    def _fill(self) -> bool:
        self.wipe()
        if self._raw is None:
            return False
        if time.monotonic() > self.deadline:
            raise TimeoutError("the answer took too long")
        self._end = self._raw.readinto(self._buffer) or 0
        return self._end > 0
