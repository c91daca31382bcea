"""A proof from a frontier and what came after is the one that RFC 6962 makes from all leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.audit.consistency import TreeRange, prove_consistency
from kvrun.audit.merkle import (
    Frontier,
    leaf_hash,
    tree_root,
    verify_consistency,
)
from support.merkle_proofs import consistency_proof

LEAVES = [leaf_hash(b"%d" % number) for number in range(300)]


def frontier(size: int) -> Frontier:
    made = Frontier()
    made.extend(LEAVES[:size])
    return made


def test_every_pair_of_small_sizes_gives_the_same_proof() -> None:
    for new in range(70):
        for old in range(new + 1):
            newer = TreeRange(old)
            newer.extend(LEAVES[old:new])
            assert prove_consistency(frontier(old), newer) == consistency_proof(LEAVES[:new], old)


@given(st.integers(0, 300), st.lists(st.integers(0, 60), max_size=8))
def test_a_range_does_not_depend_on_how_it_grew(old: int, steps: list[int]) -> None:
    newer = TreeRange(old)
    for step in steps:
        newer.extend(LEAVES[newer.end : newer.end + step])
    new = newer.end
    proof = prove_consistency(frontier(old), newer)
    assert proof == consistency_proof(LEAVES[:new], old)
    assert verify_consistency(old, new, tree_root(LEAVES[:old]), tree_root(LEAVES[:new]), proof)
    assert len(newer.nodes) <= 2 * max(1, new.bit_length())


def test_leaves_that_do_not_follow_the_old_tree_are_refused() -> None:
    with pytest.raises(ValueError, match="do not follow"):
        prove_consistency(frontier(3), TreeRange(4))
