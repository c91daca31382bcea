"""Records with RFC 6962 inclusion proofs, made where a whole tree is too large to hold. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import (
    HASH_BYTES,
    Frontier,
    leaf_hash,
    node_hash,
    tree_root,
    verify_inclusion,
)
from kvrun.audit.note import decode_base64
from kvrun.audit.proof import MAX_PATH
from kvrun.audit.record import MAX_LINE_BYTES, Count


class ProvenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record of ``log`` and its inclusion path in the tree of its first ``size`` records.

    ``record`` is the record's line without newline; ``path`` is base64, from the leaf up.
    """

    index: Count
    log: str
    path: list[str]
    record: str
    size: Count

    def is_under(self, root: bytes) -> bool:
        """Whether the record is at its place of the tree with that root."""
        try:
            path = [decode_base64(item) for item in self.path[: MAX_PATH + 1]]
        except NoteFormatError:
            return False
        line = self.record.encode()
        fits = len(path) <= MAX_PATH and len(line) <= MAX_LINE_BYTES
        fits = fits and all(len(item) == HASH_BYTES for item in path)
        return fits and verify_inclusion(leaf_hash(line), self.index, self.size, path, root)


def proven(log: str, line: bytes, index: int, size: int, path: Sequence[bytes]) -> ProvenRecord:
    """The record of a line with its path."""
    encoded = [base64.b64encode(item).decode() for item in path]
    return ProvenRecord(index=index, log=log, path=encoded, record=line.decode(), size=size)


def path_at_end(before: Frontier, leaves: Sequence[bytes], position: int) -> list[bytes]:
    """The inclusion path of ``leaves[position]`` in the tree that ends with the last of them.

    ``before`` is the tree before the first of ``leaves``: what is left of a leaf are the perfect
    subtrees of the tree that ends there, and what is right of it lies within ``leaves``.
    """
    if not 0 <= position < len(leaves):
        raise ValueError(f"leaf {position} is not among {len(leaves)}")
    start = before.size
    left = before.copy()
    left.extend(leaves[:position])
    lefts = iter(left.roots)
    index, low, high = start + position, 0, start + len(leaves)
    path: list[bytes] = []
    while high - low > 1:
        middle = low + (1 << ((high - low - 1).bit_length() - 1))
        if index < middle:
            path.append(tree_root(leaves[middle - start : high - start]))
            high = middle
        else:
            path.append(next(lefts))
            low = middle
    path.reverse()
    return path


class Tree:
    """A whole tree over leaf hashes, for many proofs: every inner node is made once."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._leaves = leaves
        self._nodes: dict[tuple[int, int], bytes] = {}

    @property
    def size(self) -> int:
        """How many leaves it has."""
        return len(self._leaves)

    def root(self) -> bytes:
        """Its head."""
        return self._node(0, self.size) if self._leaves else tree_root(())

    def path(self, index: int) -> list[bytes]:
        """The inclusion path of a leaf."""
        path: list[bytes] = []
        low, high = 0, self.size
        while high - low > 1:
            middle = low + (1 << ((high - low - 1).bit_length() - 1))
            if index < middle:
                path.append(self._node(middle, high))
                high = middle
            else:
                path.append(self._node(low, middle))
                low = middle
        path.reverse()
        return path

    def _node(self, low: int, high: int) -> bytes:
        if high - low == 1:
            return self._leaves[low]
        found = self._nodes.get((low, high))
        if found is None:
            middle = low + (1 << ((high - low - 1).bit_length() - 1))
            found = node_hash(self._node(low, middle), self._node(middle, high))
            self._nodes[low, high] = found
        return found
