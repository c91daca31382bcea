"""The daemon's end of one connection: non-blocking socket, frames in, bounded frames out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable

from kvrun.instance.protocol import AnyMessage, FrameReader, Message, ProtocolError, encode_frame

_READ_BYTES = 1 << 18
_MAX_QUEUED_BYTES = 64 * 1024 * 1024
_CREDENTIALS = struct.Struct("3i")


class Peer:
    """One connected process. All methods run on the event loop except ``send_soon``."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Peer, AnyMessage], None],
        on_close: Callable[[Peer, str], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = loop
        self._on_message = on_message
        self._on_close = on_close
        self._reader = FrameReader()
        self._outgoing: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._writing = False
        self.closed = False
        self.pid, self.uid, _ = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Message) -> None:
        """Queue one message; a peer that stopped reading is dropped when its queue is full."""
        if self.closed:
            return
        frame = memoryview(encode_frame(message))
        if self._queued_bytes + len(frame) > _MAX_QUEUED_BYTES:
            self.close("it stopped reading")
            return
        self._outgoing.append(frame)
        self._queued_bytes += len(frame)
        self._flush()

    def send_with_fd(self, message: Message, fd: int) -> None:
        """Send the first message of the connection with a descriptor beside it."""
        frame = encode_frame(message)
        try:
            sent = socket.send_fds(self._sock, [frame], [fd])
        except OSError as error:
            self.close(str(error))
            return
        if sent != len(frame):
            self._outgoing.appendleft(memoryview(frame)[sent:])
            self._queued_bytes += len(frame) - sent
            self._flush()

    def send_soon(self, message: Message) -> None:
        """``send`` from any thread."""
        if not self.closed:
            self._loop.call_soon_threadsafe(self.send, message)

    def hang_up(self) -> None:
        """End the connection from any thread; both ends know when this returns."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self, reason: str) -> None:
        """Close the socket and tell the owner once."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        if self._writing:
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._outgoing.clear()
        self._on_close(self, reason)

    def same_user(self) -> bool:
        """Whether the process on the other side runs as this daemon's user."""
        return bool(self.uid == os.geteuid())

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error))
            return
        if not data:
            self.close("it closed the connection")
            return
        try:
            for message in self._reader.feed(data):
                self._on_message(self, message)
                if self.closed:
                    return
        except ProtocolError as error:
            self.close(error.message)

    def _flush(self) -> None:
        while self._outgoing:
            head = self._outgoing[0]
            try:
                written = self._sock.send(head)
            except BlockingIOError:
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError as error:
                self.close(str(error))
                return
            self._queued_bytes -= written
            if written == len(head):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = head[written:]
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())
