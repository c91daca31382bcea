"""The blocking-free end of the instance socket that engine adapters use.

An adapter lives inside the engine's step: it must never wait for the daemon, but for the few
milliseconds that ``poll`` may be told to. ``send`` queues and writes what the socket takes at once,
``poll`` reads what is there. A daemon that stopped reading
fills the bounded queue and the connection is given up; the owner reconnects later.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from pathlib import Path

from kvrun.errors import KvrunError
from kvrun.instance.protocol import (
    PROTOCOL_VERSION,
    AnyMessage,
    FrameReader,
    Hello,
    Message,
    ProtocolError,
    Refused,
    Welcome,
    encode_frame,
)

_READ_BYTES = 1 << 18
_MAX_QUEUED_BYTES = 32 * 1024 * 1024


class InstanceUnavailableError(KvrunError):
    """The instance daemon cannot be reached, or it refused the connection."""

    exit_code = 3


class Connection:
    """One authenticated connection to the instance daemon."""

    def __init__(self, sock: socket.socket, welcome: Welcome, staging_fd: int | None) -> None:
        self.welcome = welcome
        self.staging_fd = staging_fd
        self._sock = sock
        self._reader = FrameReader()
        self._pending: deque[AnyMessage] = deque()
        self._outgoing: deque[memoryview] = deque()
        self._queued_bytes = 0
        self.closed = False

    @classmethod
    def connect(cls, path: Path, hello: Hello, *, timeout_s: float) -> Connection:
        """Connect, say hello and wait for the welcome.

        Raises:
            InstanceUnavailableError: nobody listens, no answer in time, or the daemon refused.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(encode_frame(hello))
            welcome, fd, reader, rest = _receive_welcome(sock, timeout_s)
        except (OSError, ProtocolError) as error:
            sock.close()
            raise InstanceUnavailableError(
                f"the instance daemon at {path} does not answer: {error}",
                hint="start it with `kvrun instance` or `kvrun up` and check the socket path",
            ) from error
        if isinstance(welcome, Refused):
            sock.close()
            raise InstanceUnavailableError(
                f"the instance daemon at {path} refused: {welcome.reason}",
                hint=welcome.hint or None,
            )
        sock.setblocking(False)
        connection = cls(sock, welcome, fd)
        connection._reader = reader
        connection._pending.extend(rest)
        return connection

    def fileno(self) -> int:
        """The socket's descriptor, for select."""
        return self._sock.fileno()

    def send(self, message: Message) -> bool:
        """Queue a message and write what fits; False when the connection is gone."""
        if self.closed:
            return False
        frame = memoryview(encode_frame(message))
        if self._queued_bytes + len(frame) > _MAX_QUEUED_BYTES:
            self.close()
            return False
        self._outgoing.append(frame)
        self._queued_bytes += len(frame)
        return self.flush()

    def flush(self) -> bool:
        """Write queued bytes as far as the socket takes them; False when it is gone."""
        while self._outgoing and not self.closed:
            head = self._outgoing[0]
            try:
                written = self._sock.send(head)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                break
            self._queued_bytes -= written
            if written == len(head):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = head[written:]
        return not self.closed

    def poll(self, wait_s: float = 0.0) -> list[AnyMessage]:
        """Every message that is there; with ``wait_s`` wait at most that long for the first."""
        self.flush()
        if not self.closed and not self._pending and wait_s > 0:
            with contextlib.suppress(OSError, ValueError):
                select.select([self._sock], [], [], wait_s)
        while not self.closed:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                break
            if not data:
                self.close()
                break
            try:
                self._pending.extend(self._reader.feed(data))
            except ProtocolError:
                self.close()
        messages = list(self._pending)
        self._pending.clear()
        return messages

    def has_mail(self, wait_s: float = 0.0) -> bool:
        """Whether a poll would find something within ``wait_s``, the daemon's end included."""
        if self.closed or self._pending:
            return True
        try:
            return bool(select.select([self._sock], [], [], wait_s)[0])
        except (OSError, ValueError):
            return True

    def hung_up(self) -> bool:
        """Whether the daemon has ended the connection, also where its last messages are unread."""
        if self.closed:
            return True
        ended = select.poll()
        ended.register(self._sock, select.POLLRDHUP)
        return bool(ended.poll(0))

    def close(self) -> None:
        """Close the socket; queued messages are dropped."""
        if not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                # Closing alone leaves it open for as long as another thread waits for mail.
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()
            self._outgoing.clear()
            self._queued_bytes = 0


class Reconnector:
    """Finds the daemon again after a loss, in a thread, so that the engine's step never waits."""

    def __init__(self, path: Path, hello: Hello, *, timeout_s: float = 2.0) -> None:
        self._path = path
        self._hello = hello
        self._timeout_s = timeout_s
        self._found: Connection | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def first(self, timeout_s: float) -> Connection:
        """The first connection; an engine refuses to start without it.

        Raises:
            InstanceUnavailableError: nobody listens within ``timeout_s``, or the daemon refused.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return Connection.connect(self._path, self._hello, timeout_s=timeout_s)
            except InstanceUnavailableError as error:
                refused = error.__cause__ is None
                if refused or time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)

    def poll(self) -> Connection | None:
        """A new connection once the daemon answers again; call it until it does."""
        if self._found is not None:
            found, self._found = self._found, None
            return found
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._search, name="kvrun-reconnect", daemon=True
            )
            self._thread.start()
        return None

    @property
    def found(self) -> bool:
        """Whether a poll would give a connection."""
        return self._found is not None

    def close(self) -> None:
        """Stop searching."""
        self._stop.set()

    def _search(self) -> None:
        pause_s = 0.2
        while not self._stop.wait(pause_s):
            with contextlib.suppress(InstanceUnavailableError):
                self._found = Connection.connect(self._path, self._hello, timeout_s=self._timeout_s)
                return
            pause_s = min(pause_s * 2, 5.0)


def make_hello(role: str, token: str, software: str, **fields: object) -> Hello:
    """A hello of this process."""
    return Hello(
        version=PROTOCOL_VERSION,
        role=role,  # type: ignore[arg-type]
        token=token,
        pid=os.getpid(),
        software=software,
        **fields,  # type: ignore[arg-type]
    )


def _receive_welcome(
    sock: socket.socket, timeout_s: float
) -> tuple[Welcome | Refused, int | None, FrameReader, list[AnyMessage]]:
    reader = FrameReader()
    fd: int | None = None
    deadline = time.monotonic() + timeout_s
    while True:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        data, fds, _, _ = socket.recv_fds(sock, _READ_BYTES, 1)
        if fds:
            fd = fds[0]
        if not data:
            raise ProtocolError("the daemon closed the connection")
        messages = list(reader.feed(data))
        if messages:
            first = messages[0]
            if not isinstance(first, Welcome | Refused):
                raise ProtocolError(f"expected a welcome, got {type(first).__name__}")
            return first, fd, reader, messages[1:]
