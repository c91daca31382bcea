"""Proofs by the letter of RFC 6962 over leaves that are all at hand, to compare others with."""

from collections.abc import Sequence

from kvrun.audit.merkle import tree_root


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """Proof that the tree of the first ``old_size`` leaves is a prefix (RFC 6962, 2.1.2)."""
    if not 0 <= old_size <= len(leaves):
        raise ValueError(f"size {old_size} is not within a tree of {len(leaves)}")
    if old_size in (0, len(leaves)):
        return []
    proof: list[bytes] = []
    low, high, whole = 0, len(leaves), True
    old = old_size
    while old != high - low:
        split = 1 << ((high - low - 1).bit_length() - 1)
        if old <= split:
            proof.append(tree_root(leaves[low + split : high]))
            high = low + split
        else:
            proof.append(tree_root(leaves[low : low + split]))
            low += split
            old -= split
            whole = False
    if not whole:
        proof.append(tree_root(leaves[low:high]))
    proof.reverse()
    return proof
