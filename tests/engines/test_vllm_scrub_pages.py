"""Which pages a scrub zeroes: all that hold something of the erased session, and no other's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrun.engines.pages import CpuPageCopier
from kvrun.engines.scrub import PageScrubber
from kvrun.engines.vllm.enginepages import EnginePages

ROWS = 4


class Engine:
    """A block pool with contents: each page has rows, and a row remembers whose it is.

    Workers confirm a scrub order when ``work`` is called, as a step of the real engine does.
    """

    def __init__(self, pages: int, ranks: int = 1) -> None:
        self.rows: list[list[str]] = [[""] * ROWS for _ in range(pages)]
        self.held: dict[int, str] = {}
        self.cached: set[int] = set()
        self.scrubber = PageScrubber(self, ranks)
        self.ranks = ranks
        self.told: list[tuple[int, int, int]] = []

    def is_free(self, page: int) -> bool:
        return page not in self.held

    def is_full(self, page: int) -> bool:
        return page in self.cached

    def evict(self, pages: Sequence[int]) -> int:
        found = self.cached.intersection(pages)
        self.cached -= found
        return len(found)

    def give(self, owner: str, page: int, rows: int) -> None:
        """A request gets the page and writes so many of its rows."""
        assert page not in self.held
        self.cached.discard(page)
        self.held[page] = owner
        self.scrubber.own(owner.encode(), [page])
        for row in range(rows):
            self.rows[page][row] = owner
        if rows == ROWS:
            self.cached.add(page)

    def free(self, page: int) -> None:
        del self.held[page]

    def step(self) -> None:
        """One step: what is free now is zeroed by every worker, then confirmed."""
        order = self.scrubber.next_order()
        self.told += [(p.evicted, p.scrubbed, p.held) for p in self.scrubber.progress()]
        if order is None:
            return
        number, pages = order
        for page in pages:
            assert page not in self.held, "a page in use is never zeroed"
            self.rows[page] = [""] * ROWS
        for _ in range(self.ranks):
            self.scrubber.zeroed(number, 1)

    def settle(self) -> None:
        """Step for as long as the scrubber wants to; it must come to rest."""
        for _ in range(50):
            if not self.scrubber.pending:
                return
            self.step()
        raise AssertionError("the scrubber never comes to rest")

    def remains(self, owner: str) -> list[int]:
        return [page for page, rows in enumerate(self.rows) if owner in rows]


@pytest.fixture
def engine() -> Engine:
    return Engine(8)


def erase(engine: Engine, *owners: str, call: int = 1, everything: bool = False) -> None:
    engine.scrubber.ask(call, [owner.encode() for owner in owners], everything)
    engine.settle()


def test_free_pages_of_the_session_are_zeroed_and_others_are_not(engine: Engine) -> None:
    for page, owner in ((1, "alice"), (2, "bob")):
        engine.give(owner, page, ROWS)
        engine.free(page)
    erase(engine, "alice")
    assert (engine.remains("alice"), engine.remains("bob")) == ([], [2])
    assert engine.cached == {2}
    assert engine.told == [(1, 1, 0)]


def test_the_unhashed_end_of_a_prompt_is_zeroed_too(engine: Engine) -> None:
    engine.give("alice", 1, ROWS - 1)
    engine.free(1)
    erase(engine, "alice")
    assert engine.remains("alice") == []
    assert engine.told == [(0, 1, 0)]


def test_what_another_request_left_unwritten_in_a_page_is_found(engine: Engine) -> None:
    engine.give("alice", 1, ROWS)
    engine.free(1)
    engine.give("bob", 1, 1)
    erase(engine, "alice")
    assert engine.told == [(0, 0, 1)], "bob's request still uses the page"
    engine.free(1)
    engine.settle()
    assert engine.remains("alice") == []
    assert engine.told[-1] == (0, 1, 0)


def test_a_page_that_another_session_filled_is_left_alone(engine: Engine) -> None:
    engine.give("alice", 1, ROWS)
    engine.free(1)
    engine.give("bob", 1, ROWS)
    engine.free(1)
    erase(engine, "alice")
    assert engine.remains("bob") == [1]
    assert engine.cached == {1}


def test_a_running_request_keeps_its_pages_until_it_ends(engine: Engine) -> None:
    engine.give("alice", 1, ROWS)
    erase(engine, "alice")
    assert engine.told == [(1, 0, 1)]
    # It goes on and gets another page.
    engine.give("alice", 2, 1)
    engine.free(1)
    engine.free(2)
    engine.settle()
    assert engine.remains("alice") == []
    assert engine.told[-1] == (1, 2, 0)


def test_a_repeated_question_is_answered_again(engine: Engine) -> None:
    engine.give("alice", 1, ROWS)
    engine.free(1)
    erase(engine, "alice")
    erase(engine, "alice")
    assert engine.told == [(1, 1, 0), (1, 1, 0)]


def test_pages_of_a_request_that_nobody_can_name_are_meant_by_every_erasure(
    engine: Engine,
) -> None:
    engine.give("", 1, ROWS)
    engine.free(1)
    engine.give("bob", 2, ROWS)
    engine.free(2)
    engine.rows[1] = ["uncached"] * ROWS
    erase(engine, "alice")
    assert engine.remains("uncached") == []
    assert engine.remains("bob") == [2]


def group(layers: int, page_bytes: int = 64, padded: int | None = None) -> SimpleNamespace:
    spec = SimpleNamespace(block_size=16, page_size_bytes=page_bytes, page_size_padded=padded)
    return SimpleNamespace(layer_names=["layer"] * layers, kv_cache_spec=spec)


@pytest.mark.parametrize(
    ("groups", "full"),
    [
        ([group(4)], True),
        ([group(4), group(4)], True),
        ([group(4), group(3)], False),
        ([group(4), group(4, 128)], False),
        ([group(4, padded=64)], False),
    ],
)
def test_a_page_is_full_only_where_every_group_writes_all_of_it(
    groups: list[SimpleNamespace], full: bool
) -> None:
    block = SimpleNamespace(block_hash=b"h", block_hash_num_tokens=32, ref_cnt=0)
    manager = SimpleNamespace(
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        block_pool=SimpleNamespace(blocks=[block]),
    )
    pages = EnginePages(cast(Any, manager), cast(Any, None))
    assert pages.is_full(0) is full


def test_no_rank_is_forgotten() -> None:
    engine = Engine(4, ranks=2)
    engine.give("alice", 1, ROWS)
    engine.free(1)
    engine.scrubber.ask(1, [b"alice"], False)
    order = engine.scrubber.next_order()
    assert order is not None
    engine.scrubber.zeroed(order[0], 1)
    assert engine.scrubber.progress() == []
    assert engine.scrubber.pending
    engine.scrubber.zeroed(order[0], 1)
    assert [(p.scrubbed, p.held) for p in engine.scrubber.progress()] == [(1, 0)]


def test_another_daemon_may_use_the_same_numbers(engine: Engine) -> None:
    engine.give("alice", 1, ROWS)
    engine.free(1)
    erase(engine, "alice", call=7)
    engine.give("bob", 2, ROWS)
    engine.free(2)
    engine.scrubber.forget_calls()
    erase(engine, "bob", call=7)
    assert engine.remains("bob") == []


def test_everything_means_every_page_that_was_ever_given(engine: Engine) -> None:
    for page, owner in ((1, "alice"), (2, "bob"), (3, "carol")):
        engine.give(owner, page, page)
        if page != 3:
            engine.free(page)
    erase(engine, everything=True)
    assert engine.remains("alice") == engine.remains("bob") == []
    engine.free(3)
    engine.settle()
    assert engine.remains("carol") == []


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), moves=st.integers(10, 120))
def test_nothing_of_an_erased_session_remains_whatever_came_before(seed: int, moves: int) -> None:
    rng = random.Random(seed)
    engine = Engine(6)
    for _ in range(moves):
        page = rng.randrange(1, 6)
        if page in engine.held:
            engine.free(page)
        else:
            engine.give(rng.choice("abc"), page, rng.randint(1, ROWS))
        if rng.random() < 0.2:
            engine.step()
    before = {page: list(rows) for page, rows in enumerate(engine.rows)}
    cached_of_others = {p for p in engine.cached if "a" not in engine.rows[p]}
    engine.scrubber.ask(1, [b"a"], False)
    engine.settle()
    for page in list(engine.held):
        engine.free(page)
        engine.settle()
    assert engine.remains("a") == []
    assert cached_of_others <= engine.cached
    assert all(engine.rows[page] == before[page] for page in cached_of_others)


def test_zeroing_clears_whole_rows_of_every_tensor_and_no_other() -> None:
    tensors = [torch.full((4, 3, 5), 7, dtype=torch.int8), torch.full((4, 8), 9, dtype=torch.int8)]
    copier = CpuPageCopier(tensors, [[(0, 15), (1, 8)]], memoryview(bytearray(64)))
    assert copier.done(copier.submit_zero([1, 3]))
    for tensor, value in zip(tensors, (7, 9), strict=True):
        assert not tensor[1].any()
        assert not tensor[3].any()
        assert (tensor[0] == value).all()
        assert (tensor[2] == value).all()
