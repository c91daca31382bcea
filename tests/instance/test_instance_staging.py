"""Slots are taken once, freed once, and zero in between."""

from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvrun.instance.protocol import ProtocolError
from kvrun.instance.staging import (
    SlotTable,
    StagingError,
    StagingRegion,
    create_region,
    slot_size,
)

SLOTS = 5


class SlotModel(RuleBasedStateMachine):
    """The table against a plain set, with late, repeated and invented releases."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(SLOTS)
        self.taken: dict[int, int] = {}
        self.past: set[tuple[int, int]] = set()

    @rule()
    def take(self) -> None:
        taken = self.table.take()
        if len(self.taken) == SLOTS:
            assert taken is None
            return
        assert taken is not None
        assert taken[0] not in self.taken
        assert taken not in self.past
        self.taken[taken[0]] = taken[1]

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.taken)))
        generation = self.taken.pop(slot)
        assert self.table.give_back(slot, generation)
        self.past.add((slot, generation))

    @rule(slot=st.integers(-2, SLOTS + 2), generation=st.integers(-1, 4))
    def invented(self, slot: int, generation: int) -> None:
        if self.taken.get(slot) == generation:
            return
        assert not self.table.give_back(slot, generation)

    @invariant()
    def every_slot_is_taken_or_free(self) -> None:
        assert self.table.free == SLOTS - len(self.taken)


TestSlotModel = SlotModel.TestCase


def test_a_slot_is_a_whole_number_of_pages() -> None:
    assert [slot_size(n) for n in (1, 4096, 4097)] == [4096, 4096, 8192]


def test_both_ends_see_the_same_slots_and_zeroing_leaves_the_others() -> None:
    daemon_side, fd = create_region(4096, 3)
    worker_side = StagingRegion(fd, 4096, 3)
    os.close(fd)
    for index in range(3):
        worker_side.slot(index, 4096)[:] = bytes([index + 1]) * 4096
    assert bytes(daemon_side.slot(1, 4)) == b"\2\2\2\2"
    daemon_side.zero(1)
    assert [worker_side.slot(index, 4096)[17] for index in range(3)] == [1, 0, 3]
    daemon_side.zero_all()
    assert not any(worker_side.view)
    worker_side.slot(0, 1)[:] = b"x"
    assert bytes(daemon_side.slot(0, 1)) == b"x"
    daemon_side.close()
    worker_side.close()


@pytest.mark.parametrize(("index", "size"), [(-1, 1), (3, 1), (0, -1), (0, 4097), (2**70, 1)])
def test_a_slot_out_of_bounds_is_refused(index: int, size: int) -> None:
    region, fd = create_region(4096, 3)
    os.close(fd)
    with pytest.raises(ProtocolError):
        region.slot(index, size)
    region.close()


def test_a_descriptor_of_another_size_is_refused() -> None:
    fd = os.memfd_create("short")
    os.ftruncate(fd, mmap.PAGESIZE)
    with pytest.raises(StagingError, match="announced"):
        StagingRegion(fd, 4096, 2)
    os.close(fd)


@pytest.mark.parametrize("slot_bytes", [2**62, 2**70])
def test_memory_that_the_system_has_not_is_refused(slot_bytes: int) -> None:
    with pytest.raises(StagingError):
        create_region(slot_bytes, 8)
