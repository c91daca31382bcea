"""Sessions that leave the disk are out of sight at once, and count there until no file is left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from cachebox import CELL, Box, content, name

from kvrun.cache import CacheSession, Tier
from kvrun.cache.events import CacheEventKind
from kvrun.cache.order import Sharing
from kvrun.cache.placement import INTERRUPTED, Basis
from kvrun.cache.unlinking import Unlinker

WHY = {Tier.DISK: Basis("residency: tier_not_allowed eu", "r2")}
BLOCKS = 5


@pytest.fixture
def session(box: Box) -> CacheSession:
    session = box.store.session("t", "s", epoch=1)
    for number in range(BLOCKS):
        box.put(session, number)
    box.store.flush()
    return session


def meanwhile(box: Box, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do something once when a folder was moved aside and no file in it is removed yet."""
    empty = box.disk.folder.empty_outgoing

    def later(*key: str) -> int:
        monkeypatch.undo()
        do()
        return empty(*key)

    monkeypatch.setattr(box.disk.folder, "empty_outgoing", later)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A disk without room for one more folder."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", refuse)
    return monkeypatch


def fail(*_: object) -> NoReturn:
    """What a failing disk does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def evicted(box: Box) -> dict[tuple[str, str], int]:
    """Blocks that left the disk, by reason and revision."""
    box.store.deliver_events()
    found: dict[tuple[str, str], int] = {}
    for event in box.events:
        if event.kind is CacheEventKind.EVICTED and event.tier is Tier.DISK:
            key = (event.reason, event.revision)
            found[key] = found.get(key, 0) + event.blocks
    return found


def test_until_no_file_is_left_they_count_as_on_disk_and_are_not_on_record_as_gone(
    box: Box, session: CacheSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def look() -> None:
        held, levels = box.store.measure("t", "s"), box.store.levels()
        seen.append((box.files(), len(box.files("outgoing"))))
        seen.append((held.disk_blocks, held.disk_bytes, levels.disk_blocks, levels.disk_bytes))
        seen.append((levels.outgoing, evicted(box), ("t", "s") in box.store.session_refs()))
        seen.append(session.match([name(0)]))

    meanwhile(box, monkeypatch, look)
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (BLOCKS, BLOCKS * CELL)
    assert seen == [
        ([], BLOCKS),
        (BLOCKS, BLOCKS * CELL, BLOCKS, BLOCKS * CELL),
        (1, {}, True),
        bytes([Tier.MEMORY]),
    ]
    levels = box.store.levels()
    assert (levels.disk_blocks, levels.disk_bytes, levels.outgoing) == (0, 0, 0)
    assert evicted(box) == {tuple(WHY[Tier.DISK]): BLOCKS}
    assert box.files("outgoing") == []


def test_a_tenants_bound_counts_what_is_not_removed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path / "cache", sharing=Sharing(cap_of=lambda _: 3 * CELL))
    session = box.store.session("t", "s", epoch=1)
    for number in range(3):
        box.put(session, number)
        box.store.flush()

    def store_more() -> None:
        box.put(session, 9)
        box.store.flush()

    meanwhile(box, monkeypatch, store_more)
    box.store.leave("t", "s", WHY)
    assert box.files() == [], "the fourth block had no room on disk"
    assert box.kinds()[CacheEventKind.PERSIST_SKIPPED] == 1
    session.quarantine(name(9))
    store_more()
    assert len(box.files()) == 1


def test_what_the_session_stores_meanwhile_stays(
    box: Box, session: CacheSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_again() -> None:
        session.quarantine(name(2))
        box.put(session, 2)
        box.store.flush()

    meanwhile(box, monkeypatch, store_again)
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (BLOCKS, BLOCKS * CELL)
    assert [path.stem for path in box.files()] == [name(2).hex()]
    box.restart()
    assert box.get(box.store.session("t", "s", epoch=1), 2) == (content(2), Tier.DISK)


def test_what_is_stored_again_before_the_folder_is_moved_stays_and_the_others_go(
    box: Box, session: CacheSession
) -> None:
    pauses = 0

    def store_again() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 1:
            session.quarantine(name(2))
            box.put(session, 2)
            box.store.flush()

    assert box.store.leave("t", "s", WHY, store_again)[Tier.DISK] == (BLOCKS, BLOCKS * CELL)
    assert [path.stem for path in box.files()] == [name(2).hex()]
    held = box.store.measure("t", "s")
    assert (held.disk_blocks, held.disk_bytes) == (1, CELL)
    assert box.get(session, 2) == (content(2), Tier.MEMORY)


def test_a_crash_before_the_files_are_removed_leaves_nothing_to_be_found(
    box: Box, session: CacheSession
) -> None:
    assert box.disk.folder.set_aside("t", "s")
    box.restart(clean=False)
    session = box.store.session("t", "s", epoch=1)
    assert session.match([name(number) for number in range(BLOCKS)]) == bytes(BLOCKS)
    assert len(box.files("outgoing")) == BLOCKS
    box.disk.survey()
    assert box.store.levels().disk_bytes == BLOCKS * CELL, "the bound knows of them"
    box.put(session, 1)
    box.store.flush()
    box.store.remove_outgoing()
    assert box.files("outgoing") == []
    assert len(box.files()) == 1
    assert box.store.levels().disk_bytes == CELL
    assert evicted(box) == {tuple(INTERRUPTED): BLOCKS}


def test_a_leaving_that_is_cut_short_goes_on_with_what_is_still_there(tmp_path: Path) -> None:
    many = 40
    box = Box(tmp_path / "cache", cells=2 * many)
    session = box.store.session("t", "s", epoch=1)
    for number in range(many):
        box.put(session, number)
    box.store.flush()
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 1:
            box.put(session, many)
            box.store.flush()
        elif len(box.files()) <= many:
            raise RuntimeError("the daemon ends")

    with pytest.raises(RuntimeError):
        box.store.leave("t", "s", WHY, pause)
    assert 1 < len(box.files()) < many
    box.store.remove_outgoing()
    assert [path.stem for path in box.files()] == [name(many).hex()]
    assert box.store.levels().outgoing == 0


@pytest.mark.parametrize("files", [0, 1])
def test_what_a_crash_left_behind_takes_nothing_with_it_that_may_stay(
    box: Box, session: CacheSession, files: int
) -> None:
    """The folder that was moved, emptied or not, of a session that stored again since."""
    box.restart()
    assert box.root is not None
    behind = box.root / "outgoing" / "t" / "s"
    behind.mkdir(parents=True)
    for number in range(files):
        (behind / f"{name(number).hex()}.kvs").write_bytes(content(number))
    box.store.remove_outgoing()
    assert not behind.exists()
    assert len(box.files()) == BLOCKS
    assert box.get(box.store.session("t", "s", epoch=1), 1) == (content(1), Tier.DISK)


def test_an_erasure_removes_what_a_crash_left_behind(box: Box, session: CacheSession) -> None:
    assert box.disk.folder.set_aside("t", "s")
    box.restart(clean=False)
    assert box.store.session_refs(["t"]) == [("t", "s")]
    assert box.store.drop("t", "s").disk_blocks == BLOCKS
    assert box.files("outgoing") == []
    assert box.store.session_refs() == []


@pytest.mark.parametrize("opened", [True, False])
def test_what_a_disk_does_not_remove_counts_on_and_is_tried_again(
    box: Box, session: CacheSession, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    if not opened:
        box.restart()
    monkeypatch.setattr(Unlinker, "empty", lambda *_: 1)
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (0, 0)
    assert box.store.levels().outgoing == 1
    assert box.store.measure("t", "s").disk_blocks == BLOCKS
    assert evicted(box) == {}
    monkeypatch.undo()
    box.store.remove_outgoing()
    assert (box.store.levels().outgoing, box.store.levels().disk_bytes) == (0, 0)
    assert box.files("outgoing") == []
    assert evicted(box) == {tuple(INTERRUPTED): BLOCKS}


def test_a_folder_that_cannot_be_moved_is_still_to_be_removed(
    box: Box, session: CacheSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> bool:
        raise OSError(30, "read-only file system")

    monkeypatch.setattr(box.disk.folder, "set_aside", refuse)
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (0, 0)
    assert (box.store.levels().outgoing, len(box.files())) == (1, BLOCKS)
    assert session.match([name(0)]) == bytes([Tier.MEMORY]), "nobody finds it on disk"
    monkeypatch.undo()
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (BLOCKS, BLOCKS * CELL)
    assert (box.store.levels().outgoing, box.files()) == (0, [])


def test_what_could_not_be_moved_before_the_next_start_is_in_the_index_again(
    box: Box, session: CacheSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the sweep after the start finds it."""
    monkeypatch.setattr(box.disk.folder, "set_aside", lambda *_: False)
    monkeypatch.setattr(box.disk.folder, "remove_all", lambda *_: None)
    box.store.leave("t", "s", WHY)
    box.restart(clean=False)
    session = box.store.session("t", "s", epoch=1)
    assert session.match([name(0)]) == bytes([Tier.DISK])


def test_what_a_failing_disk_did_not_empty_goes_when_it_can(
    box: Box, session: CacheSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unlinker, "empty", fail)
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (0, 0)
    assert (box.files(), len(box.files("outgoing"))) == ([], BLOCKS)
    monkeypatch.undo()
    box.store.remove_outgoing()
    assert box.files("outgoing") == []
    assert (box.store.levels().outgoing, box.store.levels().disk_bytes) == (0, 0)
    assert evicted(box) == {tuple(INTERRUPTED): BLOCKS}


def test_what_a_failing_disk_did_not_move_goes_beside_what_was_stored_again(
    box: Box, session: CacheSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box.disk.folder, "set_aside", fail)
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (0, 0)
    monkeypatch.undo()
    box.time += 60  # the tier is off for a while
    session.quarantine(name(2))
    box.put(session, 2)
    box.store.flush()
    box.store.remove_outgoing()
    assert [path.stem for path in box.files()] == [name(2).hex()]
    assert (box.store.levels().outgoing, box.store.levels().disk_bytes) == (0, CELL)
    assert evicted(box) == {tuple(INTERRUPTED): BLOCKS}
    box.restart()
    assert box.get(box.store.session("t", "s", epoch=1), 2) == (content(2), Tier.DISK)


@pytest.mark.parametrize("opened", [True, False])
def test_a_full_disk_is_no_reason_to_keep_what_has_to_leave(
    box: Box, session: CacheSession, request: pytest.FixtureRequest, opened: bool
) -> None:
    """The folder cannot be moved, so its files are removed where they are."""
    if not opened:
        box.restart()
    request.getfixturevalue("full")
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (BLOCKS, BLOCKS * CELL)
    levels = box.store.levels()
    assert (box.files(), levels.outgoing, levels.disk_bytes) == ([], 0, 0)
    box.disk.survey()
    assert box.store.levels().disk_bytes == 0
    assert evicted(box) == {tuple(WHY[Tier.DISK]): BLOCKS}


@pytest.mark.parametrize("surveyed", [True, False])
def test_what_could_be_neither_moved_nor_removed_is_not_over(
    box: Box, session: CacheSession, full: pytest.MonkeyPatch, surveyed: bool
) -> None:
    """Nobody knows how much a session has that was not opened, until the tier was surveyed."""
    box.restart()
    if surveyed:
        box.disk.survey()
    full.setattr(Unlinker, "empty", lambda *_: 1)
    for _ in range(2):
        assert box.store.leave("t", "s", WHY)[Tier.DISK] == (0, 0)
        assert (box.store.levels().outgoing, len(box.files())) == (1, BLOCKS)
    box.disk.survey()
    assert box.store.levels().disk_bytes == BLOCKS * CELL, "it counts once"
    full.undo()
    box.store.remove_outgoing()
    assert (box.store.levels().outgoing, box.store.levels().disk_bytes) == (0, 0)
    assert box.files() == box.files("outgoing") == []
    assert evicted(box) == {tuple(INTERRUPTED): BLOCKS}


def test_a_session_that_is_opened_does_not_find_what_is_still_to_go(
    box: Box, session: CacheSession, full: pytest.MonkeyPatch
) -> None:
    box.restart()
    full.setattr(Unlinker, "empty", lambda *_: 1)
    full.setattr(box.disk.folder, "set_aside", lambda *_: False)
    box.store.leave("t", "s", WHY)
    session = box.store.session("t", "s", epoch=1)
    assert session.match([name(number) for number in range(BLOCKS)]) == bytes(BLOCKS)
    assert box.store.levels().outgoing == 1
    full.undo()
    box.store.remove_outgoing()
    assert (box.store.levels().outgoing, box.store.levels().disk_bytes) == (0, 0)
    assert box.files() == []


def test_an_older_cache_folder_on_a_full_disk_is_opened(
    box: Box, session: CacheSession, full: None
) -> None:
    assert box.store.close()
    assert box.root is not None
    (box.root / "outgoing").rmdir()
    box.start()
    session = box.store.session("t", "s", epoch=1)
    assert box.get(session, 1) == (content(1), Tier.DISK)
    assert box.store.leave("t", "s", WHY)[Tier.DISK] == (BLOCKS, BLOCKS * CELL)
    assert box.files() == []
