"""Anonymous memory through which llama.cpp saves and restores: a file without a path.

llama.cpp inherits the descriptor and opens it as ``/proc/self/fd/<number>``; nobody else can. It
cuts the file short before it writes, so the memory is mapped only between its calls.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from kvrun.engines.llama_cpp.pieces import (
    HEAD_BYTES,
    PIECE_BYTES,
    StateHead,
    decode_head,
    encode_head,
    piece_range,
)
from kvrun.engines.llama_cpp.statefile import SparseFile

_MADV_DONTDUMP = 16


class Scratch:
    """One state on its way between llama.cpp and the staging memory."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("kvrun-state", os.MFD_CLOEXEC)
        self._map: mmap.mmap | None = None
        self._anchor: ctypes.c_char | None = None
        self._head: StateHead | None = None
        self._found = bytearray(HEAD_BYTES)

    @property
    def name(self) -> str:
        """What llama.cpp calls the file, below ``/proc/self/fd``."""
        return str(self.fd)

    @property
    def size_bytes(self) -> int:
        """Bytes that the file holds now."""
        return os.fstat(self.fd).st_size

    @property
    def view(self) -> memoryview:
        """The mapped state."""
        assert self._map is not None
        return memoryview(self._map)

    def open(self) -> None:
        """Map what llama.cpp wrote."""
        self._mapped(self.size_bytes)

    def describe(self, head: StateHead) -> None:
        """What the first piece of this state is to say."""
        self._head = head

    def expect_head(self) -> None:
        """Get ready for the first piece of a state whose length is not known yet."""
        self._head = None
        os.ftruncate(self.fd, PIECE_BYTES - HEAD_BYTES)
        self._mapped(PIECE_BYTES - HEAD_BYTES)

    def found_head(self) -> StateHead:
        """The head in the first piece that was copied in. Raises PieceError."""
        return decode_head(bytes(self._found))

    def grow(self, head: StateHead) -> None:
        """Make room for the whole state."""
        self.close_map()
        self._head = head
        os.ftruncate(self.fd, head.size_bytes)
        self._mapped(head.size_bytes)

    def copy_out(self, piece: int, target: int) -> None:
        """Write one piece to the memory at address ``target``; what it leaves over is zeroed."""
        assert self._head is not None
        offset, start, end = piece_range(piece, self._head.size_bytes)
        if offset:
            ctypes.memmove(target, encode_head(self._head), HEAD_BYTES)
        ctypes.memmove(target + offset, self._address() + start, end - start)
        ctypes.memset(target + offset + end - start, 0, PIECE_BYTES - offset - (end - start))

    def copy_in(self, piece: int, source: int) -> None:
        """Read one piece from the memory at address ``source``."""
        size = self.size_bytes if self._head is None else self._head.size_bytes
        offset, start, end = piece_range(piece, size)
        if offset:
            self._found[:] = ctypes.string_at(source, HEAD_BYTES)
        ctypes.memmove(self._address() + start, source + offset, end - start)

    def close_map(self) -> None:
        """Let the mapping go: llama.cpp may write again."""
        if self._map is not None:
            self._anchor = None
            self._map.close()
            self._map = None

    def wipe(self) -> None:
        """Overwrite everything with zeros and give it back."""
        size = self.size_bytes
        if size:
            if self._map is None or len(self._map) != size:
                self.close_map()
                self._mapped(size)
            ctypes.memset(self._address(), 0, size)
        self.close_map()
        self._head = None
        self._found[:] = bytes(HEAD_BYTES)
        os.ftruncate(self.fd, 0)

    def fill(self, file: SparseFile) -> None:
        """Hold this file from now on."""
        self.close_map()
        os.ftruncate(self.fd, 0)
        os.ftruncate(self.fd, file.size_bytes)
        for offset, data in file.pieces:
            os.pwrite(self.fd, data, offset)

    def close(self) -> None:
        """Wipe and close."""
        self.wipe()
        os.close(self.fd)

    def _mapped(self, size: int) -> None:
        self.close_map()
        self._map = mmap.mmap(self.fd, size)
        self._map.madvise(_MADV_DONTDUMP)
        self._anchor = ctypes.c_char.from_buffer(self._map)

    def _address(self) -> int:
        assert self._anchor is not None
        return ctypes.addressof(self._anchor)
