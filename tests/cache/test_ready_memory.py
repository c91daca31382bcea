"""A part of the memory tier has its memory before blocks come for it, and its content stays."""

import ctypes
import mmap
from typing import Any

import pytest

from kvrun.cache import MemoryTier, memory

MIB = 2**20
CELL = 4 * MIB
SLAB = 16 * CELL


def made_ready(tier: MemoryTier[Any]) -> int:
    """Until there is nothing more to do; so many bytes."""
    total = 0
    while new := tier.make_ready():
        total += new
    return total


def has_memory(tier: MemoryTier[Any], cell: int) -> bool:
    """Whether the kernel holds every page of a cell (mincore)."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(tier.view(cell, CELL)))
    pages = (ctypes.c_ubyte * (CELL // mmap.PAGESIZE))()
    mincore = ctypes.CDLL(None).mincore
    assert mincore(ctypes.c_void_p(address), ctypes.c_size_t(CELL), pages) == 0
    return all(page & 1 for page in pages)


@pytest.fixture
def tier() -> MemoryTier[Any]:
    tier = MemoryTier[Any](SLAB, lock=False)
    tier.carve(CELL)
    return tier


def test_a_quarter_of_the_tier_has_its_memory_before_blocks_come(tier: MemoryTier[Any]) -> None:
    assert not any(has_memory(tier, cell) for cell in range(16))
    assert not tier.is_ready
    assert made_ready(tier) == SLAB // 4 == tier.ready_bytes
    assert [has_memory(tier, cell) for cell in range(5)] == [True] * 4 + [False]
    assert tier.is_ready


def test_more_is_made_ready_as_cells_are_used_up_to_the_end(tier: MemoryTier[Any]) -> None:
    made_ready(tier)
    for cell in range(16):
        assert tier.is_ready
        assert tier.allocate() == cell
        if cell % 4 == 3 and cell < 15:
            assert not tier.is_ready
            made_ready(tier)
    assert tier.ready_bytes == SLAB
    assert tier.is_ready, "the cell of a block that leaves was used before"


def test_while_blocks_come_only_what_runs_short_is_made_ready(tier: MemoryTier[Any]) -> None:
    made_ready(tier)
    for _ in range(3):
        tier.allocate()
        assert tier.make_ready() == 0, "the engine computes"
    assert tier.make_ready() == 3 * CELL, "no block came since"
    for _ in range(4):
        tier.allocate()
    assert tier.make_ready() > 0, "the next block would wait"


def test_no_call_takes_longer_than_a_part_does(
    tier: MemoryTier[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_AT_ONCE_BYTES", 6 * MIB)
    monkeypatch.setattr(memory, "AHEAD_BYTES", 10 * MIB)
    assert [tier.make_ready() for _ in range(3)] == [6 * MIB, 4 * MIB, 0]


def test_what_cells_hold_stays_as_it_is(tier: MemoryTier[Any]) -> None:
    cells = [tier.allocate() for _ in range(3)]
    for cell in cells:
        assert cell is not None
        tier.view(cell, CELL)[:] = bytes([cell + 1]) * CELL
    made_ready(tier)
    for cell in cells:
        assert cell is not None
        assert tier.view(cell, CELL) == bytes([cell + 1]) * CELL


def test_a_system_that_cannot_do_it_and_a_closed_tier_leave_all_as_before(
    tier: MemoryTier[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(memory, "_MADV_POPULATE_WRITE", 12345)  # as kernels before 5.14 answer
        assert tier.make_ready() == 0
    assert not tier.is_ready
    assert tier.allocate() == 0
    tier.close()
    assert tier.make_ready() == 0


def test_a_tier_that_is_closed_meanwhile_has_its_memory_until_cells_are_overwritten(
    tier: MemoryTier[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tier.allocate()
    assert cell is not None
    overwrite, seen = ctypes.memset, list[int]()

    def close_first(address: int, value: int, size: int) -> None:
        tier.close()
        pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        mincore = ctypes.CDLL(None).mincore  # refuses what is not mapped
        seen.append(mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages))
        if seen == [0]:
            overwrite(address, value, size)

    monkeypatch.setattr(ctypes, "memset", close_first)
    tier.scrub([cell])
    assert seen == [0]
