"""What one tenant may hold in a tier at most: the policy's bound, besides the quota for all."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachebox import CELL, Box, content, name
from packbox import CELL as PACKED
from packbox import PackBox

from kvrun.cache import Tier
from kvrun.cache.order import Sharing
from kvrun.cache.placement import Basis


def bounded(root: Path | None, blocks: int, **fields: int) -> Box:
    caps = {"bounded": blocks * CELL}
    return Box(root, cells=16, sharing=Sharing(cap_of=caps.get), **fields)


def held(box: Box, tenant_ref: str) -> int:
    usage = box.memory.usage().get(tenant_ref)
    return usage.bytes if usage is not None else 0


def test_a_tenant_at_its_bound_makes_room_among_its_own_blocks_in_memory_and_on_disk(
    tmp_path: Path,
) -> None:
    box = bounded(tmp_path / "cache", 4)
    sessions = {who: box.store.session(who, "s", epoch=1) for who in ("bounded", "free")}
    for number in range(10):
        for session in sessions.values():
            assert box.put(session, number)
        box.store.flush()
        assert held(box, "bounded") <= 4 * CELL
        assert (
            sum(path.stat().st_size for path in box.files() if "bounded" in str(path)) <= 4 * CELL
        )
    kept = [number for number in range(10) if box.get(sessions["bounded"], number)]
    assert kept == [6, 7, 8, 9]
    assert held(box, "free") == 10 * CELL


def test_blocks_that_are_sealed_at_the_same_time_stay_within_it_together() -> None:
    box = bounded(None, 4)
    session = box.store.session("bounded", "s", epoch=1)
    reserved = [session.reserve(name(number), CELL) for number in range(6)]
    for number, reservation in enumerate(reserved):
        assert reservation is not None
        reservation.view[:] = content(number)
        reservation.commit()
        assert held(box, "bounded") <= 4 * CELL


def test_what_waits_to_be_written_is_not_evicted_for_a_block_beyond_the_bound(
    tmp_path: Path,
) -> None:
    box = bounded(tmp_path / "cache", 2)
    session = box.store.session("bounded", "s", epoch=1)
    assert [box.put(session, number) for number in range(3)] == [True, True, False]
    box.store.flush()
    assert len(box.files()) == 2


@pytest.mark.parametrize("tier", ["disk", "none"])
def test_a_bound_of_nothing_stores_nothing(tmp_path: Path, tier: str) -> None:
    box = bounded(tmp_path / "cache" if tier == "disk" else None, 0)
    assert not box.put(box.store.session("bounded", "s", epoch=1), 1)


def test_a_pack_beyond_the_bound_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    box = PackBox(tmp_path / "bucket", cap=5 * PACKED)
    session = box.session()
    for numbers in ((1, 2, 3), (4, 5, 6)):
        assert box.put(session, *numbers) == 3
        box.store.flush()
    assert len(box.packs()) == 1
    assert sum(pack.stat().st_size for pack in box.packs()) <= 5 * PACKED
    assert box.kinds()["persist_denied", Tier.OBJECT] == 3
    assert box.tiers(session, 1, 4) == [Tier.MEMORY, Tier.MEMORY]


def test_whole_sessions_leave_storage_until_a_smaller_bound_holds(tmp_path: Path) -> None:
    box = PackBox(tmp_path / "bucket")
    for session_ref in ("s1", "s2", "s3"):
        box.put(box.session(session_ref=session_ref), 1, 2)
        box.store.flush()
    box.cap = 5 * PACKED
    blocks, size = box.store.trim("t1", Tier.OBJECT, Basis("residency: beyond_max_bytes eu"))
    assert (blocks, len(box.packs())) == (2, 2)
    assert size > 2 * PACKED
    assert box.store.trim("t1", Tier.OBJECT, Basis()) == (0, 0)
