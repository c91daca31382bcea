"""Frames on a socket, and raw keys behind them, read into memory that the caller chose."""

import contextlib
import os
import select
import socket
import struct
import threading

from kvrun.keys.wire import LENGTH_BYTES, Message, WireError, encode, frame_length

_SEND_TIMEOUT_S = 5
_CREDENTIALS = struct.Struct("3i")


class StreamClosedError(WireError):
    """The other side is gone, or does not read."""


class Stream:
    """One connection. ``send`` is thread-safe; one thread receives."""

    def __init__(self, connection: socket.socket, *, at_most: int) -> None:
        """``at_most`` bounds the frames that are received."""
        self._socket = connection
        self._at_most = at_most
        self._sending = threading.Lock()
        timeout = struct.pack("ll", _SEND_TIMEOUT_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        # Nothing of a key is read ahead: what is asked for goes where it is to be.
        self._head = bytearray(LENGTH_BYTES)

    def send(self, message: Message, keys: memoryview | None = None) -> None:
        """Send a message, and raw keys behind it. Raises StreamClosedError; it is closed then."""
        frame = encode(message)
        try:
            with self._sending:
                self._socket.sendall(frame)
                if keys is not None:
                    self._socket.sendall(keys)
        except OSError as error:
            self.close()
            raise StreamClosedError(f"it cannot be sent: {error.strerror or error}") from None

    def receive(self) -> bytearray:
        """The next frame's payload. Raises StreamClosedError or WireError."""
        self.receive_into(memoryview(self._head))
        payload = bytearray(frame_length(self._head, at_most=self._at_most))
        self.receive_into(memoryview(payload))
        return payload

    def receive_into(self, target: memoryview) -> None:
        """Fill ``target``. Raises StreamClosedError."""
        filled = 0
        try:
            while filled < len(target):
                count = self._socket.recv_into(target[filled:])
                if not count:
                    raise StreamClosedError("the other side closed the connection")
                filled += count
        except OSError as error:
            raise StreamClosedError(f"nothing can be read: {error.strerror or error}") from None

    def within(self, seconds: float | None) -> None:
        """How long one receive may take from now on."""
        with contextlib.suppress(OSError):
            whole = int(seconds or 0)
            rest = int(((seconds or 0.0) - whole) * 1e6)
            timeout = struct.pack("ll", whole, rest)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def close(self) -> None:
        """End it; whoever receives is woken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the descriptor back; called by the thread that receives."""
        self.close()
        self._socket.close()


class PeerProcess:
    """The process at the other end, as the kernel says."""

    def __init__(self, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, _ = _CREDENTIALS.unpack(raw)
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.pidfd_open(self.pid)

    @property
    def seen(self) -> bool:
        """Whether its end can be seen from here."""
        return self._descriptor >= 0

    @property
    def ended(self) -> bool:
        """Whether it ended; False where nobody can tell."""
        if self._descriptor < 0:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
