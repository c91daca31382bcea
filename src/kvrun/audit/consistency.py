"""Consistency proofs without the old leaves: from a remembered frontier and what came after. Pure.

A proof from size m to size n (RFC 6962, 2.1.2) consists of roots of perfect subtrees of the old
tree, which its frontier holds, and of subtrees over leaves from m on. So whoever remembers the
frontier at m and has seen the records since can prove that the tree only grew.
"""

from collections.abc import Sequence

from kvrun.audit.merkle import Frontier, node_hash, perfect_root


class TreeRange:
    """The largest perfect, aligned subtrees over the leaves from ``begin`` to ``end``, in order.

    It holds at most two hashes per bit of ``end``.
    """

    __slots__ = ("_nodes", "begin", "end")

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self._nodes: list[tuple[int, bytes]] = []

    @property
    def nodes(self) -> list[tuple[int, int, bytes]]:
        """Each subtree's first leaf, its width in leaves, and its root."""
        found, start = [], self.begin
        for width, root in self._nodes:
            found.append((start, width, root))
            start += width
        return found

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add leaf hashes at the end."""
        position, end = 0, len(leaves)
        while position < end:
            fits = 1 << ((end - position).bit_length() - 1)
            width = min(fits, (self.end & -self.end) or fits)
            self._push(width, perfect_root(leaves[position : position + width]))
            position += width

    def _push(self, width: int, root: bytes) -> None:
        self.end += width
        nodes = self._nodes
        # A left sibling of the same width, whose parent starts at a multiple of its own width.
        while nodes and nodes[-1][0] == width and not self.end % (2 * width):
            root = node_hash(nodes.pop()[1], root)
            width *= 2
        nodes.append((width, root))


def prove_consistency(old: Frontier, newer: TreeRange) -> list[bytes]:
    """The proof that the tree of size ``old.size`` is a prefix of the one of size ``newer.end``.

    Raises ValueError unless ``newer`` begins where ``old`` ends.
    """
    if newer.begin != old.size:
        raise ValueError(f"the leaves from {newer.begin} on do not follow a tree of {old.size}")
    if not old.size or newer.end == old.size:
        return []
    nodes, start = [], 0
    for bit, root in zip(_bits(old.size), old.roots, strict=True):
        nodes.append((start, bit, root))
        start += bit
    nodes += newer.nodes

    def root_of(low: int, high: int) -> bytes:
        inside = [root for at, width, root in nodes if low <= at and at + width <= high]
        head = inside.pop()
        while inside:
            head = node_hash(inside.pop(), head)
        return head

    proof: list[bytes] = []
    low, high, whole, size = 0, newer.end, True, old.size
    while size != high - low:
        split = 1 << ((high - low - 1).bit_length() - 1)
        if size <= split:
            proof.append(root_of(low + split, high))
            high = low + split
        else:
            proof.append(root_of(low, low + split))
            low += split
            size -= split
            whole = False
    if not whole:
        proof.append(root_of(low, high))
    proof.reverse()
    return proof


def _bits(size: int) -> list[int]:
    return [1 << bit for bit in range(size.bit_length() - 1, -1, -1) if size >> bit & 1]
