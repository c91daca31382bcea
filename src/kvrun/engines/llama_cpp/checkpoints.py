"""Where a state may be kept, and what its sealed pieces are called. Pure.

A state is the KV of one sequence from its first token on. It is kept only at multiples of
:data:`CHECKPOINT_TOKENS`, so that a few hashes of a new prompt name every state that could serve.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence

CHECKPOINT_TOKENS = 64
HASH_BYTES = 32
_CHAIN = b"kvrun/token-chain/v1\0"
_CHUNK = b"kvrun/state-chunk/v1\0"


def last_checkpoint(tokens: int) -> int:
    """The longest length at which a state of so many tokens may be kept; 0 for none."""
    return tokens // CHECKPOINT_TOKENS * CHECKPOINT_TOKENS


def chain_hashes(tokens: Sequence[int]) -> list[bytes]:
    """The hash of the token chain up to each checkpoint: entry ``i`` covers ``64 * (i + 1)``."""
    found: list[bytes] = []
    before = _CHAIN
    for start in range(0, last_checkpoint(len(tokens)), CHECKPOINT_TOKENS):
        page = array("i", tokens[start : start + CHECKPOINT_TOKENS]).tobytes()
        before = hashlib.sha256(before + page).digest()
        found.append(before)
    return found


def chunk_hash(chain: bytes, chunk: int) -> bytes:
    """What piece number ``chunk`` of the state at the end of ``chain`` is called."""
    return hashlib.sha256(_CHUNK + chain + struct.pack(">I", chunk)).digest()
