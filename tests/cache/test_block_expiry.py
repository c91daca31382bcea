"""Blocks that were kept long enough are gone from every tier, whoever used them meanwhile."""

import os

import pytest
from cachebox import Box, name
from packbox import PackBox

from kvrun.cache import CacheEventKind, Tier
from support.client import eventually


@pytest.fixture
def ttl_box(tmp_path) -> Box:
    return Box(tmp_path / "cache", ttl=100.0)


def test_a_block_leaves_memory_and_disk_when_its_time_is_over(ttl_box: Box):
    session = ttl_box.store.session("t", "s", epoch=1)
    ttl_box.put(session, 1)
    ttl_box.time += 60
    ttl_box.put(session, 2)
    ttl_box.store.flush()
    ttl_box.time += 39
    assert ttl_box.store.expire() == 0
    session.match([name(1), name(2)])
    ttl_box.time += 2
    assert ttl_box.store.expire() == 2
    assert session.match([name(1), name(2)]) == bytes([Tier.MISS, Tier.MEMORY])
    assert [path.name for path in ttl_box.files()] == [f"{name(2).hex()}.kvs"]
    assert ttl_box.kinds()[CacheEventKind.EXPIRED] == 2
    assert ttl_box.store.counters().expired == 2
    ttl_box.time += 100
    ttl_box.store.expire()
    assert ttl_box.files() == []
    assert not any(ttl_box.memory.view(0, ttl_box.memory.cells * ttl_box.cell_bytes))


def test_coming_back_from_disk_does_not_make_a_block_younger(ttl_box: Box):
    session = ttl_box.store.session("t", "s", epoch=1)
    ttl_box.put(session, 1)
    ttl_box.store.flush()
    for path in ttl_box.files():
        os.utime(path, (ttl_box.time, ttl_box.time))
    ttl_box.restart()
    ttl_box.time += 90
    session = ttl_box.store.session("t", "s", epoch=1)
    assert ttl_box.get(session, 1) is not None
    assert session.match([name(1)]) == bytes([Tier.MEMORY])
    ttl_box.time += 11
    assert ttl_box.store.expire() == 2
    assert session.match([name(1)]) == b"\0"


def test_blocks_of_sessions_that_nobody_opened_expire_too(ttl_box: Box):
    for session_ref in ("old", "new"):
        ttl_box.put(ttl_box.store.session("t", session_ref, epoch=1), 1)
    ttl_box.store.flush()
    for path in ttl_box.files():
        age = 101 if path.parts[-2] == "old" else 0
        os.utime(path, (ttl_box.time - age, ttl_box.time - age))
    ttl_box.restart()
    assert ttl_box.store.expire() == 1
    assert [path.parts[-2] for path in ttl_box.files()] == ["new"]
    assert ttl_box.disk.used_bytes == 256
    assert ttl_box.kinds()[CacheEventKind.EXPIRED] == 1


def test_a_block_that_a_request_holds_is_unlisted_at_once_and_zeroed_later(ttl_box: Box):
    session = ttl_box.store.session("t", "s", epoch=1)
    ttl_box.put(session, 1)
    ttl_box.store.flush()
    with session.read(name(1)) as sealed:
        ttl_box.time += 101
        assert ttl_box.store.expire() == 2
        assert session.match([name(1)]) == b"\0"
        assert any(sealed.view)
    assert not any(ttl_box.memory.view(0, ttl_box.memory.cells * ttl_box.cell_bytes))
    assert ttl_box.store.stats().free_cells == ttl_box.cells


def test_a_block_that_expires_before_it_was_written_never_is(ttl_box: Box):
    ttl_box.put(ttl_box.store.session("t", "s", epoch=1), 1)
    ttl_box.time += 101
    assert ttl_box.store.expire() == 1
    ttl_box.store.flush()
    assert ttl_box.files() == []
    assert ttl_box.store.stats().busy_cells == 0


def test_without_a_time_nothing_expires(box: Box):
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.time += 1e9
    assert box.store.expire() == 0


def test_a_gate_that_fails_lets_nothing_stay(box: Box):
    class Broken:
        def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
            return True

        def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
            raise RuntimeError("no table")

    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    box.store._state.gate = Broken()
    assert box.store.expire() == 1
    assert session.match([name(1)]) == b"\0"


def test_packs_in_storage_are_deleted_and_what_came_back_from_them_is_as_old_as_they(tmp_path):
    box = PackBox(tmp_path / "bucket")
    box.put(box.session(), 1, 2)
    box.store.flush()
    box.restart()
    box.store._state.ttl_s = 100.0
    box.time += 90
    session = box.session()
    assert box.get(session, 1) is not None
    eventually(lambda: box.tiers(session, 1, 2) == [Tier.MEMORY, Tier.OBJECT], "it is kept")
    assert box.store.expire() == 0
    box.time += 11
    assert box.store.expire() == 3
    assert box.packs() == []
    assert box.tiers(session, 1, 2) == [Tier.MISS, Tier.MISS]
