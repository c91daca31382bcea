"""One HTTP answer of the slot server: no slot waits for a client that reads slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from types import TracebackType
from typing import Any

import msgspec

from kvrun.errors import KvrunError

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Rest = Callable[[], Awaitable[None]]
"""Tells the client what is left of an answer that llama.cpp has completed.

Called once its slot is on its way back: a client may read as slowly as it likes.
"""
_UNREAD_PARTS = 4096
_READS_WITHIN_S = 30.0


class UnreadError(KvrunError):
    """The client does not read the answer that is computed for it."""

    status = 408


class Reply:
    """One HTTP answer, begun at most once."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self.complete = False

    async def whole(self, status: int, body: bytes, kind: bytes = b"application/json") -> None:
        """Send all of it; where a stream has begun, end that."""
        if self._begun:
            await self._send({"type": "http.response.body", "body": b""})
            return
        self._begun = True
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
        self.complete = status == 200

    async def error(self, status: int, message: str, code: str, param: str | None = None) -> None:
        """Send an error in the form of OpenAI's API."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": param, "code": code}
        await self.whole(status, msgspec.json.encode({"error": error}))

    async def part(self, data: bytes) -> None:
        """Send a part of a stream of events."""
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End a stream of events."""
        await self._send({"type": "http.response.body", "body": b""})
        self.complete = True


class Sending:
    """A stream that is sent while the next parts are computed.

    Within ``with``; whoever leaves without having taken ``rest`` gives the stream up.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._unread: asyncio.Queue[bytes] = asyncio.Queue(_UNREAD_PARTS)
        self._given_up = True

    def __enter__(self) -> Sending:
        self._task = asyncio.create_task(self._send())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._given_up:
            self._task.cancel()

    async def add(self, data: bytes) -> None:
        """One more part. Raises UnreadError where too much waits, and nothing of it is read."""
        try:
            async with asyncio.timeout(_READS_WITHIN_S if self._unread.full() else None):
                await self._unread.put(data)
        except TimeoutError:
            raise UnreadError(
                f"the client left {_UNREAD_PARTS} parts of its answer unread for"
                f" {_READS_WITHIN_S:.0f} s"
            ) from None

    def rest(self, last: bytes = b"") -> Rest:
        """What sends all that is left, and ``last``."""
        self._given_up = False
        return partial(self._finish, last)

    async def _finish(self, last: bytes) -> None:
        try:
            for data in (last, b"") if last else (b"",):
                await self._unread.put(data)
            await self._task
        finally:
            self._task.cancel()

    async def _send(self) -> None:
        while data := await self._unread.get():
            await self._reply.part(data)
        await self._reply.end()
