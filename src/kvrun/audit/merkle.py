"""RFC 6962 Merkle trees: heads, frontier, inclusion and consistency proofs. Pure.

Leaves enter as leaf hashes, ``SHA-256(0x00 || data)``; inner nodes are
``SHA-256(0x01 || left || right)``. Proof verification follows RFC 9162 section 2.1.3.2 and 2.1.4.2.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()
_LEAF_START = sha256(b"\x00")
_NODE_START = sha256(b"\x01")


def leaf_hash(data: bytes | bytearray) -> bytes:
    """The leaf hash of one entry's bytes."""
    state = _LEAF_START.copy()
    state.update(data)
    return state.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    state = _NODE_START.copy()
    state.update(left + right)
    return state.digest()


def leaf_hashes(entries: Iterable[bytes]) -> list[bytes]:
    """The leaf hashes of many entries."""
    start = _LEAF_START.copy
    hashes = []
    for entry in entries:
        # A copied state costs half of what a new one does.
        state = start()
        state.update(entry)
        hashes.append(state.digest())
    return hashes


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """The tree head over leaf hashes; ``EMPTY_ROOT`` for none."""
    frontier = Frontier()
    frontier.extend(leaves)
    return frontier.root()


def blocks_root(names: Iterable[bytes]) -> str:
    """Hex tree head over block names, in the order given.

    The names must be keyed (a MAC under a key that dies with the session): a root over plain
    content hashes would let a reader of the log confirm a guessed prompt.
    """
    return tree_root(leaf_hashes(names)).hex()


class Frontier:
    """The roots of the perfect subtrees of a growing tree, largest first.

    It holds all that is needed to append and to compute the head: one hash per 1 bit of ``size``.
    """

    __slots__ = ("_roots", "size")

    def __init__(self, size: int = 0, roots: Sequence[bytes] = ()) -> None:
        if size < 0 or len(roots) != size.bit_count():
            raise ValueError(
                f"a frontier of size {size} has {size.bit_count()} hashes, not {len(roots)}"
            )
        self.size = size
        self._roots = list(roots)

    @property
    def roots(self) -> tuple[bytes, ...]:
        """The subtree roots, largest first."""
        return tuple(self._roots)

    def copy(self) -> "Frontier":
        """An independent frontier with the same content."""
        return Frontier(self.size, self._roots)

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        roots, size, node = self._roots, self.size, leaf
        while size & 1:
            node = node_hash(roots.pop(), node)
            size >>= 1
        roots.append(node)
        self.size += 1

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add many leaf hashes; level by level, which is faster than one by one."""
        if len(leaves) == 1:
            self.append(leaves[0])
            return
        roots, level, odd = self._roots, list(leaves), []
        size = self.size
        while level:
            # ``size`` counts the finished nodes of this level; an odd one waits for its sibling.
            if size & 1:
                level.insert(0, roots.pop())
            if len(level) & 1:
                odd.append(level.pop())
            level = _parents(level)
            size >>= 1
        roots += reversed(odd)
        self.size += len(leaves)

    def root(self) -> bytes:
        """The tree head at the present size."""
        if not self._roots:
            return EMPTY_ROOT
        head = self._roots[-1]
        for left in self._roots[-2::-1]:
            head = node_hash(left, head)
        return head


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The audit path of ``leaves[index]``, from the leaf's sibling up (RFC 6962, 2.1.1)."""
    if not 0 <= index < len(leaves):
        raise ValueError(f"leaf {index} is not in a tree of {len(leaves)}")
    path: list[bytes] = []
    low, high = 0, len(leaves)
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            path.append(tree_root(leaves[middle:high]))
            high = middle
        else:
            path.append(tree_root(leaves[low:middle]))
            low = middle
    path.reverse()
    return path


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether ``leaf`` is at ``index`` of the tree of ``size`` with head ``root``."""
    if not 0 <= index < size:
        return False
    position, last, head = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            head = node_hash(sibling, head)
            while position and not position & 1:
                position >>= 1
                last >>= 1
        else:
            head = node_hash(head, sibling)
        position >>= 1
        last >>= 1
    return last == 0 and head == root


def verify_consistency(
    old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether the old tree is a prefix of the new one.

    Every tree extends the empty one, whose only head is ``EMPTY_ROOT``.
    """
    if not 0 <= old_size <= new_size:
        return False
    if old_size == new_size:
        return not proof and old_root == new_root
    if old_size == 0:
        return not proof and old_root == EMPTY_ROOT
    path = list(proof)
    if old_size & (old_size - 1) == 0:
        path.insert(0, old_root)
    if not path:
        return False
    position, last = old_size - 1, new_size - 1
    while position & 1:
        position >>= 1
        last >>= 1
    old_head = new_head = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old_head = node_hash(sibling, old_head)
            new_head = node_hash(sibling, new_head)
            while position and not position & 1:
                position >>= 1
                last >>= 1
        else:
            new_head = node_hash(new_head, sibling)
        position >>= 1
        last >>= 1
    return last == 0 and old_head == old_root and new_head == new_root


def _split(count: int) -> int:
    """The largest power of two smaller than ``count`` (which is at least 2)."""
    return 1 << ((count - 1).bit_length() - 1)


def perfect_root(level: Sequence[bytes]) -> bytes:
    """The root over a power of two of leaf hashes."""
    while len(level) > 1:
        level = _parents(level)
    return level[0]


def _parents(level: Sequence[bytes]) -> list[bytes]:
    """The nodes above an even number of neighbours."""
    start = _NODE_START.copy
    pairs = iter(level)
    above = []
    for left, right in zip(pairs, pairs, strict=True):
        state = start()
        state.update(left + right)
        above.append(state.digest())
    return above
