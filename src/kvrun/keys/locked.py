"""Memory for keys: outside core dumps, not swapped, zeroed when it is given back.

:class:`LockedBuffer` is whole pages. :class:`SecretArena` hands out fixed-size secrets from such
pages, so that thousands of 32-byte keys neither cost a page each nor exhaust RLIMIT_MEMLOCK.
"""

import ctypes
import mmap
import os
import resource
import threading
from enum import Enum
from types import TracebackType

from kvrun.keys.errors import KeysError, MemoryLockError
from kvrun.memlock import lock_memory


class Protection(Enum):
    """What the kernel agreed to do for a buffer, strongest first."""

    SECRET = "secret"  # noqa: S105 - memfd_secret(2): not even readable through /proc/PID/mem
    LOCKED = "locked"  # mlock(2): never swapped; left out of core dumps; empty after fork
    PLAIN = "plain"  # mlock was refused; still left out of core dumps and zeroed on close


class LockedBuffer:
    """A zero-filled, page-rounded buffer for key material.

    ``protection`` says what it got. With ``strict`` a buffer that cannot be locked raises
    :class:`MemoryLockError`; otherwise it falls back to ``Protection.PLAIN``. ``prefer_secret``
    False skips memfd_secret(2), for kernels and debuggers that cannot live with it.
    """

    def __init__(self, size: int, *, strict: bool = False, prefer_secret: bool = True) -> None:
        if size < 1:
            raise KeysError(f"A locked buffer needs at least 1 byte, not {size}")
        self._pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        secret = _map_secret(self._pages) if prefer_secret else None
        if secret is not None:
            self._map, self.protection = secret, Protection.SECRET
        else:
            self._map, self.protection = _map_locked(self._pages, strict)
        self._whole = memoryview(self._map)
        self.view = self._whole[:size]

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._map.closed

    def wipe(self) -> None:
        """Overwrite everything with zeros; the buffer stays usable."""
        self._whole[:] = bytes(self._pages)

    def close(self) -> None:
        """Zero the buffer and unmap it. Slices that are still held see zeros."""
        if self._map.closed:
            return
        try:
            self.wipe()
        except ValueError:  # already released by an earlier close that found slices in use
            return
        self.view.release()
        self._whole.release()
        try:
            self._map.close()
        except BufferError:
            # Someone holds a slice. The content is gone; the pages follow with the last slice.
            return

    def __enter__(self) -> "LockedBuffer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Secret:
    """One secret of an arena. ``view`` is writable; ``wipe`` zeroes it and gives it back."""

    __slots__ = ("_arena", "_place", "view")

    def __init__(self, arena: "SecretArena", place: tuple[int, int], view: memoryview) -> None:
        self._arena = arena
        self._place = place
        self.view = view

    @property
    def wiped(self) -> bool:
        """Whether :meth:`wipe` was called."""
        return self._arena is _NO_ARENA

    def wipe(self) -> None:
        """Zero the secret and return its place; calling it again does nothing."""
        arena, self._arena = self._arena, _NO_ARENA
        if arena is _NO_ARENA:
            return
        self.view[:] = bytes(len(self.view))
        self.view.release()
        arena._take_back(self._place)


class SecretArena:
    """Fixed-size secrets in locked pages.

    ``protection`` is the weakest that any of its pages got. Growth takes ``chunk_bytes`` at a
    time; pages are kept until ``close``. Thread-safe.
    """

    def __init__(
        self,
        secret_bytes: int = 32,
        *,
        chunk_bytes: int = 16384,
        strict: bool = False,
        prefer_secret: bool = True,
    ) -> None:
        if not 1 <= secret_bytes <= chunk_bytes:
            raise KeysError(
                f"A secret has 1 to {chunk_bytes} bytes (the chunk size), not {secret_bytes}"
            )
        self._secret_bytes = secret_bytes
        self._chunk_bytes = chunk_bytes
        self._strict = strict
        self._prefer_secret = prefer_secret
        self._chunks: list[LockedBuffer] = []
        self._free: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._grow()

    @property
    def protection(self) -> Protection:
        """The weakest protection that any of its pages got."""
        order = list(Protection)
        return max((chunk.protection for chunk in self._chunks), key=order.index)

    @property
    def in_use(self) -> int:
        """Number of secrets handed out and not yet wiped."""
        total = len(self._chunks) * (self._chunk_bytes // self._secret_bytes)
        return total - len(self._free)

    def take(self) -> Secret:
        """A zero-filled secret."""
        with self._lock:
            if self._closed:
                raise KeysError("The secret arena is closed")
            if not self._free:
                self._grow()
            chunk, start = place = self._free.pop()
            return Secret(self, place, self._chunks[chunk].view[start : start + self._secret_bytes])

    def close(self) -> None:
        """Zero and release every page; secrets that are still held read as zeros."""
        with self._lock:
            self._closed = True
            for chunk in self._chunks:
                chunk.close()

    def _grow(self) -> None:
        chunk = LockedBuffer(
            self._chunk_bytes, strict=self._strict, prefer_secret=self._prefer_secret
        )
        number = len(self._chunks)
        self._chunks.append(chunk)
        last = self._chunk_bytes - self._secret_bytes
        self._free.extend((number, start) for start in range(0, last + 1, self._secret_bytes))

    def _take_back(self, place: tuple[int, int]) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(place)


_SYS_MEMFD_SECRET = 447  # the same number on x86-64 and arm64
_MADV_WIPEONFORK = 18
_libc = ctypes.CDLL(None, use_errno=True)
_NO_ARENA: SecretArena = SecretArena.__new__(SecretArena)


def _map_secret(size: int) -> mmap.mmap | None:
    descriptor = int(_libc.syscall(_SYS_MEMFD_SECRET, ctypes.c_uint(os.O_CLOEXEC)))
    if descriptor < 0:
        return None
    try:
        os.ftruncate(descriptor, size)
        mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError:
        return None  # counts against RLIMIT_MEMLOCK as mlock does
    finally:
        os.close(descriptor)
    # A shared mapping cannot be wiped on fork, so a child does not get it at all.
    mapped.madvise(mmap.MADV_DONTFORK)
    return mapped


def _map_locked(size: int, strict: bool) -> tuple[mmap.mmap, Protection]:
    mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_DONTDUMP)
    mapped.madvise(_MADV_WIPEONFORK)
    anchor = ctypes.c_char.from_buffer(mapped)
    refused = lock_memory(ctypes.addressof(anchor), size)
    del anchor
    if not refused:
        return mapped, Protection.LOCKED
    if strict:
        mapped.close()
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        raise MemoryLockError(
            f"Could not lock memory for keys, {refused}; RLIMIT_MEMLOCK is {soft} bytes",
            hint="Raise it (`ulimit -l`, LimitMEMLOCK= in the systemd unit) or turn strict off.",
        )
    return mapped, Protection.PLAIN
