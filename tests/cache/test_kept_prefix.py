"""A session's prefix that an operator keeps stays warm while others press, within bounds."""

import pytest
from cachebox import CELL, Box, name

from kvrun.cache import Tier
from kvrun.cache.order import Sharing
from kvrun.cache.pins import KeptPrefix


def fill(box: Box, session_ref: str, numbers: range, tenant: str = "t"):
    session = box.store.session(tenant, session_ref, epoch=1)
    for number in numbers:
        box.put(session, number, continues=number - 1 if number else None)
        box.time += 3
        while box.store.work():
            pass
    return session


@pytest.fixture
def small(tmp_path) -> Box:
    return Box(tmp_path / "cache", cells=16, max_bytes=8 * CELL, sharing=Sharing(quota_bytes=4096))


def test_kept_blocks_stay_on_both_tiers_until_they_are_released(small: Box):
    kept = fill(small, "kept", range(3))
    assert small.store.keep(kept) == KeptPrefix(3, 3 * CELL)
    fill(small, "flood", range(40))
    names = [name(number) for number in range(3)]
    assert kept.match(names) == bytes([Tier.MEMORY] * 3)
    assert len([path for path in small.files() if path.parts[-2] == "kept"]) == 3
    kept.release()
    fill(small, "flood", range(40, 80))
    assert kept.match(names) == bytes(3)
    assert small.store.stats().busy_cells == 0


def test_a_quarter_of_the_memory_tier_is_kept_where_there_is_no_quota(tmp_path):
    box = Box(tmp_path / "cache", cells=16)
    kept = fill(box, "kept", range(10))
    assert box.store.keep(kept) == KeptPrefix(4, 4 * CELL)
    assert box.store.keep(fill(box, "second", range(2))) == KeptPrefix()
    fill(box, "flood", range(40), tenant="u")
    assert kept.match([name(number) for number in range(5)])[:4] == bytes([Tier.MEMORY] * 4)


def test_an_erasure_takes_what_is_kept(small: Box):
    kept = fill(small, "kept", range(3))
    small.store.keep(kept)
    report = kept.drop()
    assert (report.blocks, report.held) == (3, 0)
    assert small.files() == []
    assert small.store.stats().free_cells == small.cells
    assert not any(small.memory.view(0, small.memory.cells * small.cell_bytes))


def test_a_time_to_live_holds_for_what_is_kept(small: Box):
    small.ttl = 100.0
    kept = fill(small, "kept", range(3))
    small.store.keep(kept)
    small.time += 95
    assert small.store.expire() == 4
    assert kept.kept == KeptPrefix(1, CELL)
    small.time += 100
    small.store.expire()
    assert small.files() == []
    assert small.store.stats().free_cells == small.cells


def test_another_cell_size_lets_go_of_what_is_kept(small: Box):
    kept = fill(small, "kept", range(3))
    small.store.keep(kept)
    assert small.store.carve(512) is False
    assert kept.kept == KeptPrefix()
    assert kept.match([name(0)]) == bytes([Tier.DISK])
