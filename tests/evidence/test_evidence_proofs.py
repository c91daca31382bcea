"""Proofs made from a part of a tree are those of the whole tree; the draw is what is specified."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from kvrun.audit.merkle import Frontier, inclusion_proof, leaf_hash, tree_root
from kvrun.evidence.proofs import Tree, path_at_end, proven
from kvrun.evidence.sample import Drawn, Frame, draw


def lines(count: int) -> list[bytes]:
    return [f"record {number}".encode() for number in range(count)]


@given(st.integers(1, 70), st.data())
def test_a_path_from_a_segments_records_is_the_whole_trees(end: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, end - 1))
    index = data.draw(st.integers(start, end - 1))
    leaves = [leaf_hash(line) for line in lines(end)]
    before = Frontier()
    before.extend(leaves[:start])
    path = path_at_end(before, leaves[start:], index - start)
    assert path == inclusion_proof(leaves, index) == Tree(leaves).path(index)
    found = proven("log", lines(end)[index], index, end, path)
    assert found.is_under(tree_root(leaves))
    assert Tree(leaves).root() == tree_root(leaves)
    if end > 1:
        other = proven("log", b"another record", index, end, path)
        assert not other.is_under(tree_root(leaves))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=5),
    st.integers(0, 60),
    st.text("abc", max_size=3),
)
def test_a_draw_takes_different_records_of_the_frames(
    spans: list[tuple[int, int]], records: int, seed: str
) -> None:
    frames = [
        Frame("d", f"log-{number}", first, first + size)
        for number, (first, size) in enumerate(spans)
    ]
    found = draw(frames, records, seed)
    total = sum(size for _, size in spans)
    assert len(found) == len(set(found)) == min(records, total)
    assert found == sorted(found) == draw(list(reversed(frames)), records, seed)
    inside = {(frame.log, seq) for frame in frames for seq in range(frame.first, frame.end)}
    assert {(item.log, item.seq) for item in found} <= inside


def test_the_draw_follows_from_the_seed_as_the_page_says() -> None:
    first = int.from_bytes(sha256(b"kvrun-evidence-sample/v1\n7\n0\n").digest(), "big") % 1000
    (drawn,) = draw([Frame("d", "one", 0, 400), Frame("d", "two", 50, 650)], 1, "7")
    expected = Drawn("d", "one", first) if first < 400 else Drawn("d", "two", 50 + first - 400)
    assert drawn == expected
