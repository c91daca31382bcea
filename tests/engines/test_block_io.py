"""Calls that wait for the daemon: what is late or damaged is a miss, and no slot is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from kvrun.engines.blocks import BlockIO
from kvrun.engines.channel import WorkerChannel
from kvrun.engines.transfer import BlockRef
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import AnyMessage, Load, Loaded, Release, Released, Store
from support.lines import SLOT, Line, Search

REFS = [BlockRef(bytes([number]) * 32, 0, number) for number in range(4)]


class Answering(Line):
    """A daemon that answers what it is asked, or does not."""

    def __init__(self, *, slots: int = 8) -> None:
        super().__init__(slots=slots)
        self.bad: set[int] = set()
        self.silent = False
        self.releases = True

    def poll(self, wait_s: float = 0.0) -> Sequence[AnyMessage]:
        if not self.silent:
            self.answers += [a for m in self.sent if (a := self._answer(m)) is not None]
            self.sent = [m for m in self.sent if isinstance(m, Release | Store)]
            self.done = [*getattr(self, "done", []), *self.sent]
            self.sent = []
        return super().poll(wait_s)

    def _answer(self, message: object) -> AnyMessage | None:
        if isinstance(message, Load):
            good = tuple(b.slot for b in message.blocks if b.index not in self.bad)
            bad = tuple(b.slot for b in message.blocks if b.index in self.bad)
            return Loaded(message.job, good, bad)
        if isinstance(message, Release) and self.releases:
            return Released(message.slots, message.generations)
        if isinstance(message, Store) and self.releases:
            return Released(
                tuple(b.slot for b in message.blocks), tuple(b.generation for b in message.blocks)
            )
        return None


class Rig:
    def __init__(self, *, slots: int = 8) -> None:
        self.line, self.search, self.time = Answering(slots=slots), Search(), 0.0
        self.channel = WorkerChannel(cast(Connection, self.line), cast(Reconnector, self.search))
        self.io = BlockIO(self.channel, (SLOT,), self.clock)

    def clock(self) -> float:
        # Time passes only while somebody waits for an answer that does not come.
        self.time += 0.1 if self.line.silent or not self.line.releases else 0.0
        return self.time

    def read(self, refs: Sequence[BlockRef] = REFS) -> tuple[list[bool], list[int]]:
        copied: list[int] = []
        return self.io.read(9, refs, lambda position, slot: copied.append(position)), copied


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_opens_is_copied_and_its_slots_come_back(rig: Rig) -> None:
    assert rig.read() == ([True] * 4, [0, 1, 2, 3])
    rig.io.idle()
    assert rig.channel.free_slots == 8


def test_reading_ends_at_the_first_block_that_does_not_open(rig: Rig) -> None:
    rig.line.bad = {2}
    assert rig.read() == ([True, True, False, False], [0, 1])
    rig.io.idle()
    assert rig.channel.free_slots == 8


def test_more_blocks_than_slots_are_read_as_far_as_slots_go() -> None:
    rig = Rig(slots=3)
    done, copied = rig.read()
    assert done == [True, True, True, False]
    assert copied == [0, 1, 2]


def test_without_a_handle_nothing_is_asked(rig: Rig) -> None:
    assert rig.io.read(0, REFS, lambda position, slot: None) == [False] * 4
    assert rig.io.seal(0, REFS, lambda position, slot: None) == [False] * 4
    assert rig.line.sent == []


def test_a_daemon_that_does_not_answer_is_waited_for_once(rig: Rig) -> None:
    rig.line.silent = True
    assert rig.read() == ([False] * 4, [])
    waited = rig.time
    assert rig.read() == ([False] * 4, [])
    assert rig.time - waited <= 0.1
    # Its late answer heals it; the slots of the late load are not lost.
    rig.line.silent = False
    rig.io.idle()
    rig.io.idle()
    assert rig.read() == ([True] * 4, [0, 1, 2, 3])
    rig.io.idle()
    assert rig.channel.free_slots == 8


def test_what_was_copied_after_the_daemon_hung_up_does_not_count(rig: Rig) -> None:
    rig.line.ended = True
    done, copied = rig.read()
    assert done == [False] * 4
    assert copied == [0, 1, 2, 3]


def test_an_opened_block_is_known_not_to_hold_any_more(rig: Rig) -> None:
    (block, *_) = rig.io.open(9, REFS[:1])
    assert block is not None
    assert rig.io.holds(block)
    rig.line.ended = True
    assert not rig.io.holds(block)
    rig.line.close()
    rig.search.next = rig.line = Answering()
    rig.io.idle()
    assert not rig.io.holds(block)
    # Its slot number is another's now, and is not given back.
    rig.io.close([block])
    assert rig.line.of(Release) == []
    assert rig.read()[0] == [True] * 4


def test_sealing_hands_over_every_block_and_waits_for_slots() -> None:
    rig = Rig(slots=4)
    filled: list[int] = []
    refs = [BlockRef(bytes([number]) * 32, 0, number) for number in range(10)]
    assert all(rig.io.seal(9, refs, lambda position, slot: filled.append(position)))
    assert filled == list(range(10))


def test_sealing_gives_up_where_no_slot_comes_back() -> None:
    rig = Rig(slots=4)
    rig.line.releases = False
    done = rig.io.seal(9, REFS, lambda position, slot: None)
    assert done == [True, True, True, False]


def test_threads_take_turns(rig: Rig) -> None:
    results: list[list[bool]] = []

    def run(call: Callable[[], list[bool]]) -> None:
        results.append(call())

    threads = [
        threading.Thread(target=run, args=(lambda: rig.read()[0],)),
        threading.Thread(target=run, args=(lambda: rig.io.seal(9, REFS, lambda p, s: None),)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [[True] * 4] * 2
