"""Merkle trees agree with RFC 6962, with a naive definition, and with pymerkle."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree
from pymerkle import verify_consistency as verify_their_consistency

from kvrun.audit.merkle import (
    EMPTY_ROOT,
    Frontier,
    blocks_root,
    inclusion_proof,
    leaf_hash,
    leaf_hashes,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from support.merkle_proofs import consistency_proof

# The eight inputs and roots of the Certificate Transparency reference tests.
INPUTS = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962 section 2.1, word for word, on leaf hashes."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\x01" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()


def numbered(count: int) -> list[bytes]:
    return leaf_hashes(str(number).encode() for number in range(count))


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_equal_the_reference_vectors(size: int) -> None:
    assert tree_root(leaf_hashes(INPUTS[:size])).hex() == ROOTS[size - 1]


def test_the_empty_root_is_the_hash_of_nothing() -> None:
    assert tree_root([]) == EMPTY_ROOT == sha256(b"").digest()
    assert blocks_root([]) == EMPTY_ROOT.hex()


@given(st.lists(st.integers(0, 40), max_size=8))
def test_appending_in_any_portions_gives_the_naive_root(portions: list[int]) -> None:
    leaves = numbered(sum(portions))
    frontier, position = Frontier(), 0
    for portion in portions:
        if portion == 1:
            frontier.append(leaves[position])
        else:
            frontier.extend(leaves[position : position + portion])
        position += portion
        assert frontier.root() == naive_root(leaves[:position])
    resumed = Frontier(frontier.size, frontier.roots)
    resumed.append(leaf_hash(b"next"))
    assert resumed.root() == naive_root([*leaves, leaf_hash(b"next")])


def test_a_frontier_with_the_wrong_number_of_hashes_is_refused() -> None:
    with pytest.raises(ValueError, match="2 hashes"):
        Frontier(3, [b"x" * 32])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13, 32, 33])
def test_every_proof_of_a_tree_verifies_and_no_changed_one_does(size: int) -> None:
    leaves = numbered(size)
    root = tree_root(leaves)
    for index in range(size):
        path = inclusion_proof(leaves, index)
        assert verify_inclusion(leaves[index], index, size, path, root)
        assert not verify_inclusion(leaf_hash(b"other"), index, size, path, root)
        assert not verify_inclusion(leaves[index], index + 1, size, path, root) or size == 1
        assert not verify_inclusion(leaves[index], index, size, [*path, root], root)
        if path:
            assert not verify_inclusion(leaves[index], index, size, path[:-1], root)
    for old in range(size + 1):
        proof = consistency_proof(leaves, old)
        old_root = tree_root(leaves[:old])
        assert verify_consistency(old, size, old_root, root, proof)
        assert not verify_consistency(old, size, leaf_hash(b"x"), root, proof)
        assert not verify_consistency(old, size, old_root, root, [*proof, root])
        if proof:
            assert not verify_consistency(old, size, old_root, leaf_hash(b"x"), proof)
            assert not verify_consistency(old, size, old_root, root, proof[:-1])


def test_a_larger_tree_is_no_prefix_of_a_smaller_one() -> None:
    leaves = numbered(5)
    assert not verify_consistency(5, 4, tree_root(leaves), tree_root(leaves[:4]), [])


@given(st.integers(1, 70), st.data())
def test_roots_and_proofs_agree_with_pymerkle(size: int, data: st.DataObject) -> None:
    other = InmemoryTree(algorithm="sha256")
    for number in range(size):
        other.append_entry(str(number).encode())
    leaves = numbered(size)
    assert tree_root(leaves) == other.get_root()
    index = data.draw(st.integers(0, size - 1))
    theirs = other.prove_inclusion(index + 1, size).path
    assert [bytes(item) for item in theirs][1:] == inclusion_proof(leaves, index)
    old = data.draw(st.integers(1, size))
    assert other.get_root(old) == tree_root(leaves[:old])
    # Its consistency proofs are laid out in another way, but hold for the roots of this tree.
    verify_their_consistency(
        tree_root(leaves[:old]), tree_root(leaves), other.prove_consistency(old, size)
    )


def test_the_example_of_the_rfc_has_the_paths_that_it_names() -> None:
    """RFC 6962 section 2.1.3: seven leaves a to f and j, inner nodes g, h, i, k, l."""
    leaves = numbered(7)
    node = dict(zip("abcdefj", leaves, strict=True))
    for name, (left, right) in {"g": "ab", "h": "cd", "i": "ef", "k": "gh", "l": "ij"}.items():
        node[name] = sha256(b"\x01" + node[left] + node[right]).digest()
    assert tree_root(leaves) == sha256(b"\x01" + node["k"] + node["l"]).digest()
    for index, path in {0: "bhl", 3: "cgl", 4: "fjk", 6: "ik"}.items():
        assert inclusion_proof(leaves, index) == [node[name] for name in path]
    for size, proof in {3: "cdgl", 4: "l", 6: "ijk"}.items():
        assert consistency_proof(leaves, size) == [node[name] for name in proof]
