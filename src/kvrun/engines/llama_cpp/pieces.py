"""A saved state as equal pieces, each of which is sealed as one block. Pure.

The first piece begins with a head that says how long the state is; the last is filled up with
zeros. ``docs/spec/slot-states.md`` is the format's page.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kvrun.errors import KvrunError

PIECE_BYTES = 1 << 20
HEAD_BYTES = 64
MAX_PIECES = 1 << 16
TOKENS_PER_PIECE = 4096
"""Tokens that one piece stands for in the daemon's count: no model has less than 256 bytes each."""

LAYERS = "llama.cpp:state:1MiB"
_HEAD = struct.Struct("<8sIQQ")
_MAGIC = b"KVRSTATE"
_VERSION = 1


class PieceError(KvrunError):
    """A head that does not describe a state."""


@dataclass(frozen=True, slots=True)
class StateHead:
    """How many tokens a state covers and how many bytes it has."""

    tokens: int
    size_bytes: int

    @property
    def pieces(self) -> int:
        """How many pieces the state has."""
        return -(-(HEAD_BYTES + self.size_bytes) // PIECE_BYTES)


def encode_head(head: StateHead) -> bytes:
    """The first 64 bytes of the first piece."""
    return _HEAD.pack(_MAGIC, _VERSION, head.tokens, head.size_bytes).ljust(HEAD_BYTES, b"\0")


def decode_head(data: bytes) -> StateHead:
    """Raises PieceError for anything but a head of this version within the limits."""
    if len(data) != HEAD_BYTES:
        raise PieceError(f"a state's head has {HEAD_BYTES} bytes, not {len(data)}")
    magic, version, tokens, size_bytes = _HEAD.unpack_from(data)
    head = StateHead(tokens, size_bytes)
    if magic != _MAGIC or version != _VERSION or any(data[_HEAD.size :]):
        raise PieceError("a piece does not begin with a state's head of version 1")
    if not 0 < tokens < 1 << 31 or not size_bytes > 0 or head.pieces > MAX_PIECES:
        raise PieceError(f"a state of {tokens} tokens and {size_bytes} bytes is not possible")
    return head


def piece_range(piece: int, size_bytes: int) -> tuple[int, int, int]:
    """Where a piece's bytes are: offset in the piece, and start and end in the state."""
    offset = HEAD_BYTES if piece == 0 else 0
    start = piece * PIECE_BYTES - (0 if piece == 0 else HEAD_BYTES)
    return offset, start, min(start + PIECE_BYTES - offset, size_bytes)
