"""A proxy before an object store that does what networks and stores do on bad days."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from enum import Enum
from urllib.parse import urlsplit


class Fault(Enum):
    """What becomes of every request from now on."""

    NONE = "passed on"
    GONE = "the connection is reset before a byte"
    HANGS = "no answer ever"
    SLOW = "an answer of a few bytes a second"
    ERROR_500 = "500"
    ERROR_503 = "503"
    FORBIDDEN = "403"
    FULL = "507 to whoever writes, else passed on"
    TRUNCATED = "an answer that ends in the middle of its body"
    LIES = "an answer with changed bytes in its body"


class FaultProxy:
    """Listens on 127.0.0.1 and passes bytes on to ``upstream`` (``http://HOST:PORT``).

    ``fault`` may be changed at any time, and counts for connections and requests from then on:
    every answer closes its connection. ``requests`` counts those about packs by method.
    """

    def __init__(self, upstream: str) -> None:
        split = urlsplit(upstream)
        assert split.hostname is not None
        self._upstream = (split.hostname, split.port or 80)
        self.fault = Fault.NONE
        self.requests: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Ends it, and every connection."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(RuntimeError):
            self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._one(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await _body(reader, head)
        method = head.split(b" ", 1)[0].decode()
        target = head.split(b" ", 2)[1]
        if b"kv/" in target or b"kv%2F" in target:
            self.requests[method] += 1
        fault = self.fault
        if fault is Fault.GONE:
            writer.transport.abort()
            return
        if fault is Fault.HANGS:
            await asyncio.sleep(3600)
        if fault in (Fault.ERROR_500, Fault.ERROR_503, Fault.FORBIDDEN):
            await _answer(writer, fault.value, "Unavailable")
            return
        if fault is Fault.FULL and method in ("PUT", "POST"):
            await _answer(writer, "507", "Insufficient Storage")
            return
        answer_head, answer = await self._ask(_closing(head), body, method)
        if fault is Fault.SLOW:
            writer.write(answer_head)
            for byte in answer:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.3)
            return
        if fault is Fault.TRUNCATED and method == "GET":
            answer = answer[: len(answer) // 2]
        if fault is Fault.LIES and method == "GET":
            answer = _changed(answer)
        writer.write(answer_head + answer)
        await writer.drain()

    async def _ask(self, head: bytes, body: bytes, method: str) -> tuple[bytes, bytes]:
        up, down = await asyncio.open_connection(*self._upstream)
        try:
            down.write(head + body)
            await down.drain()
            answer_head = await up.readuntil(b"\r\n\r\n")
            if answer_head.startswith(b"HTTP/1.1 100"):
                answer_head = await up.readuntil(b"\r\n\r\n")
            answer = b"" if method == "HEAD" else await up.read()
            return answer_head, answer
        finally:
            down.close()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == b"content-length":
            return await reader.readexactly(int(value))
    return b""


async def _answer(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()


def _closing(head: bytes) -> bytes:
    """The head with a connection that ends after the answer."""
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([lines[0], b"Connection: close", *lines[1:]])


def _changed(answer: bytes) -> bytes:
    """Every 64th byte is another one; what an XML parser reads is left alone."""
    if answer.startswith(b"<?xml"):
        return answer
    changed = bytearray(answer)
    for at in range(0, len(changed), 64):
        changed[at] ^= 0x5A
    return bytes(changed)
