"""Blocks that may not be in a tier any more leave it, a few at a time, and why is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachebox import CELL, Box, TierGate, content, name

from kvrun.cache import CacheSession, DiskTier, Tier
from kvrun.cache.events import CacheEventKind
from kvrun.cache.expiry import Ttl
from kvrun.cache.leaving import AT_ONCE
from kvrun.cache.order import Sharing
from kvrun.cache.placement import Basis

MANY = 300
WHY = {
    Tier.MEMORY: Basis("residency: tier_not_allowed eu", "r2"),
    Tier.DISK: Basis("residency: region_not_allowed eu", "r2"),
}


def told(box: Box, kind: CacheEventKind = CacheEventKind.EVICTED) -> dict[tuple[object, ...], int]:
    """Blocks by tenant, tier, reason and revision."""
    box.store.deliver_events()
    found: dict[tuple[object, ...], int] = {}
    for event in box.events:
        if event.kind is kind:
            key = (event.tenant_ref, event.tier, event.reason, event.revision)
            found[key] = found.get(key, 0) + event.blocks
    return found


def fill(box: Box, session: CacheSession, blocks: int) -> None:
    for number in range(blocks):
        assert box.put(session, number)
        if number % 50 == 49:
            box.store.flush()


def test_both_tiers_are_left_at_once_and_what_others_have_stays(tmp_path: Path) -> None:
    box = Box(tmp_path / "cache", cells=2 * MANY)
    going, staying = (box.store.session(who, "s", epoch=1) for who in ("going", "staying"))
    for session in (going, staying):
        fill(box, session, MANY)
    pauses: list[bytes] = []
    left = box.store.leave("going", "s", WHY, lambda: pauses.append(staying.match([name(0)])))
    assert left == dict.fromkeys(WHY, (MANY, MANY * CELL))
    assert len(going) == 0
    assert going.match([name(number) for number in range(MANY)]) == bytes(MANY)
    for number in (0, MANY - 1):
        assert box.get(staying, number) == (content(number), Tier.MEMORY)
    assert len(box.files()) == MANY
    assert not any("going" in str(path) for path in box.files())
    assert len(pauses) == -(-MANY // AT_ONCE) > 2, "others use the index in between"
    assert all(pauses)
    assert told(box) == {("going", tier, *basis): MANY for tier, basis in WHY.items()}
    assert box.memory.free_cells == box.memory.cells - MANY
    assert box.put(going, 1), "the session lives on"


def test_one_tier_is_left_and_the_other_keeps_the_block(tmp_path: Path) -> None:
    box = Box(tmp_path / "cache", cells=8)
    session = box.store.session("t", "s", epoch=1)
    for number in range(4):
        box.put(session, number)
    box.store.flush()
    only_disk = {Tier.DISK: WHY[Tier.DISK]}
    assert box.store.leave("t", "s", only_disk) == {Tier.DISK: (4, 4 * CELL)}
    assert box.files() == []
    assert session.match([name(0)]) == bytes([Tier.MEMORY])
    assert box.store.leave("t", "s", {Tier.MEMORY: WHY[Tier.MEMORY]})[Tier.MEMORY][0] == 4
    assert len(session) == 0


def test_a_block_that_is_read_goes_when_it_is_let_go_and_is_zeroed(tmp_path: Path) -> None:
    box = Box(tmp_path / "cache", cells=4)
    session = box.store.session("t", "s", epoch=1)
    for number in range(3):
        box.put(session, number)
    box.store.flush()
    with session.read(name(1)) as sealed:
        assert sealed is not None
        assert box.store.leave("t", "s", {Tier.MEMORY: WHY[Tier.MEMORY]})[Tier.MEMORY][0] == 3
        assert bytes(sealed.view) == content(1)
        assert box.memory.free_cells == 3
    assert box.memory.free_cells == 4
    assert not any(any(box.memory.room(cell)) for cell in range(4))


def test_what_nobody_opened_is_out_of_sight_before_its_files_are_removed(tmp_path: Path) -> None:
    box = Box(tmp_path / "cache", cells=MANY)
    session = box.store.session("t", "s", epoch=1)
    fill(box, session, MANY)
    box.restart()
    pauses: list[tuple[int, int]] = []
    left = box.store.leave(
        "t", "s", WHY, lambda: pauses.append((len(box.files()), len(box.files("outgoing"))))
    )
    assert left == {Tier.MEMORY: (0, 0), Tier.DISK: (MANY, MANY * CELL)}
    assert box.files() == box.files("outgoing") == []
    assert pauses == [(0, MANY)] * 2, "others go on while they are counted"
    assert told(box) == {("t", Tier.DISK, *WHY[Tier.DISK]): MANY}


def test_a_smaller_bound_takes_the_oldest_and_says_why_for_every_session(tmp_path: Path) -> None:
    caps: dict[str, int] = {}
    box = Box(tmp_path / "cache", cells=16, sharing=Sharing(cap_of=caps.get))
    for session_ref in ("s1", "s2"):
        session = box.store.session("t", session_ref, epoch=1)
        for number in range(3):
            box.put(session, number)
        box.time += 10
    box.restart()
    box.store.session("t", "s2", epoch=1)
    caps["t"] = 2 * CELL
    basis = Basis("residency: beyond_max_bytes eu", "r2")
    assert box.store.trim("t", Tier.DISK, basis) == (4, 4 * CELL)
    box.store.deliver_events()
    found = [(e.session_ref, e.blocks, e.reason, e.revision) for e in box.events
             if e.kind is CacheEventKind.EVICTED and e.tier is Tier.DISK]  # fmt: skip
    assert sorted(found) == [("s1", 3, *basis), ("s2", 1, *basis)]
    assert len(box.files()) == 2


def test_what_a_limit_of_the_policy_does_names_its_rule(tmp_path: Path) -> None:
    """Making room at a bound, and the end of a time to live."""
    box = Box(tmp_path / "cache", cells=16, sharing=Sharing(cap_of=lambda _: 2 * CELL), rule="eu")
    session = box.store.session("t", "s", epoch=1)
    for number in range(3):
        box.put(session, number)
        box.store.flush()
    assert told(box) == {
        ("t", tier, "residency: at_max_bytes eu", "r1"): 1 for tier in (Tier.MEMORY, Tier.DISK)
    }
    assert told(box, CacheEventKind.PERSISTED) == {
        ("t", Tier.DISK, "residency: allowed eu", "r1"): 3
    }
    box.ttl = 5.0
    box.time += 6
    box.store.expire()
    assert set(told(box, CacheEventKind.EXPIRED)) == {
        ("t", tier, "residency: ttl eu", "r1") for tier in (Tier.MEMORY, Tier.DISK)
    }


def test_what_leaves_for_want_of_room_says_so(tmp_path: Path) -> None:
    box = Box(tmp_path / "cache", cells=4, max_bytes=6 * CELL)
    session = box.store.session("t", "s", epoch=1)
    for number in range(8):
        box.put(session, number)
        box.store.flush()
    found = told(box)
    assert set(found) == {("t", tier, "capacity", "") for tier in (Tier.MEMORY, Tier.DISK)}
    assert found["t", Tier.MEMORY, "capacity", ""] == 4
    box.events.clear()
    assert not box.store.carve(2 * box.cell_bytes)
    assert told(box) == {("t", Tier.MEMORY, "another block size", ""): 4}


def test_a_block_from_disk_is_restored_where_memory_keeps_it(tmp_path: Path) -> None:
    box = Box(tmp_path / "cache")
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.restart()
    session = box.store.session("t", "s", epoch=1)
    box.store._state.gate = TierGate("r2", refused=Tier.MEMORY)
    for _ in range(2):
        assert box.get(session, 1) == (content(1), Tier.DISK)
    assert told(box, CacheEventKind.RESTORED) == {}
    box.store._state.gate = TierGate("r3")
    assert box.get(session, 1) == (content(1), Tier.DISK)
    assert box.get(session, 1) == (content(1), Tier.MEMORY)
    assert told(box, CacheEventKind.RESTORED) == {
        ("t", Tier.DISK, "residency: allowed memory", "r3"): 1
    }
    assert box.store.stats().counters.restored == 3


def test_a_block_is_persisted_by_the_revision_that_let_it_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path / "cache")
    box.store._state.gate = TierGate("r1")
    write = DiskTier.write

    def slow(disk: DiskTier, *arguments: object, **more: object) -> int:
        """Another revision comes meanwhile."""
        slot = write(disk, *arguments, **more)  # type: ignore[arg-type]
        box.store._state.gate = TierGate("r2")
        return slot

    monkeypatch.setattr(DiskTier, "write", slow)
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.store.flush()
    assert told(box, CacheEventKind.PERSISTED) == {
        ("t", Tier.DISK, "residency: allowed disk", "r2"): 1
    }


@pytest.mark.parametrize(("late", "step"), [("leave", "delist"), ("expire", "remove")])
def test_what_an_erasure_takes_meanwhile_is_counted_once(
    box: Box, monkeypatch: pytest.MonkeyPatch, late: str, step: str
) -> None:
    """The blocks are out of the index already, and the disk is told of it after the erasure."""
    session, other = (box.store.session("t", who, epoch=1) for who in ("s", "other"))
    for number in range(3):
        box.put(session, number)
    box.put(other, 1)
    box.store.flush()
    original = getattr(box.disk, step)

    def erase_first(*args: object) -> None:
        monkeypatch.undo()
        assert box.store.drop("t", "s").disk_blocks == 3
        original(*args)

    monkeypatch.setattr(box.disk, step, erase_first)
    if late == "leave":
        box.store.leave("t", "s", WHY)
    else:
        session.expire(Ttl(None, 5.0), box.time + 6)
    assert (box.disk.used_bytes, box.disk.known_blocks, box.disk.outgoing) == (CELL, 1, 0)
