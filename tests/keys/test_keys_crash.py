"""A crash at any step leaves a key whole or destroyed, never in between, and others untouched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keys_support import Clock, LossyDisk, abandon, listed, open_service

from kvrun.keys import KeyService, KeyUnavailableError, RecoveryReport
from kvrun.keys.ring_store import FIRST_TABLE_SLOT, MARK_SLOT, TABLE_SLOTS, UPPER_HALF_BYTES
from kvrun.keys.slots import OsSlotIO

SURVIVORS = [("alice", "stays"), ("bob", "stays"), ("bob", "too")]
VICTIM = ("alice", "goes")


def build(base: Path) -> dict[tuple[str, str], str]:
    service = open_service(base)
    salts = {name: service.acquire(*name).salt for name in [*SURVIVORS, VICTIM]}
    service.close()
    return salts


def salts_of(service: KeyService) -> dict[tuple[str, str], str]:
    found = {}
    for info in listed(service):
        keys = service.find(info.tenant, info.session)
        assert keys is not None
        found[info.tenant, info.session] = keys.salt
    return found


class _Fate(Random):
    """Decides one way for every unsynced write, or at random when it is "mixed"."""

    def __init__(self, way: str, seed: int) -> None:
        super().__init__(seed)
        self._way = way

    def choice(self, seq: Sequence[str]) -> str:  # type: ignore[override]
        return self._way if self._way in seq else super().choice(seq)


@contextmanager
def crashing(service: KeyService, disk: LossyDisk, random: Random) -> Iterator[None]:
    try:
        yield
    except KeyUnavailableError:
        with pytest.raises(KeyUnavailableError, match="opened again"):
            service.acquire("someone", "else")  # uncertain state: everything is refused
    abandon(service)
    disk.crash(random)


def check_after(base: Path, salts: dict[tuple[str, str], str], *, reported: bool) -> bool:
    """Open twice; whether the victim is gone. ``reported``: the destruction had returned."""
    service = open_service(base)
    found = salts_of(service)
    assert len(service._root.epochs()) == 1
    abandon(service)
    expected = dict(salts)
    gone = VICTIM not in found
    if gone:
        del expected[VICTIM]
    assert found == expected
    assert gone or not reported
    service = open_service(base)
    assert salts_of(service) == expected
    assert service.recovery == RecoveryReport()  # nothing left to repair
    abandon(service)
    return gone


def opened_from(copy: Path, base: Path) -> dict[tuple[str, str], str]:
    """What an old copy of the key folder opens under today's root."""
    shutil.rmtree(base / "keys")
    shutil.copytree(copy, base / "keys")
    service = open_service(base)
    found = salts_of(service)
    abandon(service)
    return found


@pytest.mark.parametrize("step", range(7))
@pytest.mark.parametrize("unsynced", ["kept", "lost", "mixed"])
def test_a_destruction_cut_at_each_sync_is_undone_or_finished(
    tmp_path: Path, step: int, unsynced: str
) -> None:
    salts = build(tmp_path)
    shutil.copytree(tmp_path / "keys", tmp_path / "copy")
    disk = LossyDisk()
    service = open_service(tmp_path, io=disk)
    disk.fail_at_sync = disk.syncs + step
    reported = False

    with crashing(service, disk, _Fate(unsynced, step)):
        service.destroy_session(*VICTIM)
        reported = True
    assert reported == (step >= 6), "one failure point for each of the six syncs"
    gone = check_after(tmp_path, salts, reported=reported)
    found = opened_from(tmp_path / "copy", tmp_path)
    if gone:
        del salts[VICTIM]
    # Where the key lives the copy opens it, so that this can fail; the others it opens always.
    assert found == salts


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 9), st.integers(0, 9), st.integers(), st.sampled_from(["session", "tenant"]))
def test_a_crash_during_the_recovery_from_a_crash_is_recovered_too(
    tmp_path_factory: pytest.TempPathFactory, step: int, again: int, seed: int, what: str
) -> None:
    base = tmp_path_factory.mktemp("crash")
    random = Random(seed)
    salts = build(base)
    disk = LossyDisk()
    service = open_service(base, io=disk)
    disk.fail_at_sync = disk.syncs + step
    reported = False
    with crashing(service, disk, random):
        if what == "session":
            service.destroy_session(*VICTIM)
        else:
            service.destroy_tenant("bob")
        reported = True
    disk = LossyDisk(fail_at_sync=again)
    with suppress(OSError, KeyUnavailableError):
        abandon(open_service(base, io=disk))
    disk.crash(random)
    if what == "session":
        check_after(base, salts, reported=reported)
        return
    service = open_service(base)
    found = salts_of(service)
    assert {name: salts[name] for name in found} == found
    assert {name for name in found if name[0] == "alice"} == {SURVIVORS[0], VICTIM}
    if reported:
        assert not any(name[0] == "bob" for name in found)
    service.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 5), st.integers(), st.booleans())
def test_a_creation_cut_short_leaves_the_session_whole_or_absent(
    tmp_path_factory: pytest.TempPathFactory, step: int, seed: int, new_tenant: bool
) -> None:
    base = tmp_path_factory.mktemp("create")
    salts = build(base)
    disk = LossyDisk()
    service = open_service(base, io=disk)
    disk.fail_at_sync = disk.syncs + step
    made: dict[tuple[str, str], str] = {}
    with crashing(service, disk, Random(seed)):
        for number in range(3):
            name = ("carol" if new_tenant else "alice", f"new{number}")
            made[name] = service.acquire(*name).salt
    service = open_service(base)
    found = salts_of(service)
    assert {name: found.get(name) for name in salts | made} == salts | made
    generations = [info.generation for info in listed(service)]
    assert len(set(generations)) == len(generations)
    service.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 8), st.integers())
def test_a_very_first_start_cut_short_starts_again(
    tmp_path_factory: pytest.TempPathFactory, step: int, seed: int
) -> None:
    base = tmp_path_factory.mktemp("first")
    disk = LossyDisk(fail_at_sync=step)
    with suppress(OSError):
        abandon(open_service(base, io=disk))
    disk.crash(Random(seed))
    service = open_service(base, Clock())
    salt = service.acquire("alice", "one").salt
    service.close()
    service = open_service(base, Clock())
    assert service.acquire("alice", "one").salt == salt
    service.close()


def test_a_slot_with_changed_bytes_is_lost_alone(tmp_path: Path) -> None:
    salts = build(tmp_path)
    service = open_service(tmp_path)
    entry = service._ring.find(*VICTIM)
    assert entry is not None
    service.close()
    path = tmp_path / "keys" / "keys.slots"
    content = bytearray(path.read_bytes())
    for half in (0, 512):
        content[4096 + entry.slot * 1024 + half + 200] ^= 1
    path.write_bytes(content)
    service = open_service(tmp_path)
    assert service.recovery.torn_slots == 1
    del salts[VICTIM]
    assert salts_of(service) == salts
    service.close()


class _CountingIO(OsSlotIO):
    def __init__(self) -> None:
        self.writes = self.syncs = 0

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self.writes += 1
        super().pwrite(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        super().sync(descriptor)


@pytest.mark.parametrize("tables", [1, 3])
def test_an_erasure_touches_no_other_record_and_writes_one_table_for_every_128_slots(
    tmp_path: Path, tables: int
) -> None:
    io = _CountingIO()
    service = open_service(tmp_path, io=io)
    # The slots hold the state, a tenant and as many sessions as fit.
    service.acquire("alice", "goes")
    for number in range(tables * TABLE_SLOTS - 3):
        service.acquire("alice", f"s{number}")
    others = (tmp_path / "keys" / "keys.slots").read_bytes()[4096 + 3 * 1024 :]
    io.writes = io.syncs = 0
    service.destroy_session("alice", "goes")
    # The tables; the victim: tombstone, zeroed half, two zeros to free; the state in both files;
    # the root: a new epoch key, two zeros on the old.
    assert io.writes == tables + (1 + 1 + 2) + 2 + 3
    assert io.syncs == 6
    assert (tmp_path / "keys" / "keys.slots").read_bytes()[4096 + 3 * 1024 :] == others
    service.close()


def test_what_was_dropped_as_damaged_does_not_come_back_with_an_older_copy_of_its_slot(
    tmp_path: Path,
) -> None:
    salts = build(tmp_path)
    service = open_service(tmp_path)
    entry = service._ring.find(*VICTIM)
    assert entry is not None
    service.close()
    path = tmp_path / "keys" / "keys.slots"
    whole = path.read_bytes()
    start = 4096 + entry.slot * 1024
    path.write_bytes(whole[: start + 200] + b"damage" + whole[start + 206 :])
    service = open_service(tmp_path)
    assert service.recovery.torn_slots == 1
    assert service.recovery.epoch_rotated
    assert service.destroy_session(*VICTIM) is None  # there is nothing to destroy ...
    service.close()
    now = path.read_bytes()
    path.write_bytes(now[:start] + whole[start : start + 1024] + now[start + 1024 :])
    service = open_service(tmp_path)
    assert service.find(*VICTIM) is None  # ... and nothing that could be put back
    del salts[VICTIM]
    assert salts_of(service) == salts
    service.close()


def test_a_damaged_table_costs_its_sessions_and_an_older_copy_of_it_brings_none_back(
    tmp_path: Path,
) -> None:
    build(tmp_path)
    upper, keys = tmp_path / "root" / "upper.slots", tmp_path / "keys" / "keys.slots"
    whole, slots = upper.read_bytes(), keys.read_bytes()
    table = 4096 + FIRST_TABLE_SLOT * 2 * UPPER_HALF_BYTES
    damaged = bytearray(whole)
    for half in (0, UPPER_HALF_BYTES):
        damaged[table + half + 300] ^= 1
    upper.write_bytes(damaged)
    service = open_service(tmp_path)
    assert salts_of(service) == {}
    assert service.recovery.orphan_slots == 6
    assert service.recovery.epoch_rotated
    service.close()
    now = upper.read_bytes()
    upper.write_bytes(now[:table] + whole[table : table + 2 * UPPER_HALF_BYTES])
    keys.write_bytes(slots)
    service = open_service(tmp_path)
    assert salts_of(service) == {}
    service.acquire("alice", "new")
    service.close()


@pytest.mark.parametrize("after", ["a start", "an erasure", "a torn mark"])
def test_an_older_copy_is_known_as_one_also_after_a_power_cut(tmp_path: Path, after: str) -> None:
    """Who was to be erased and was not found must not come back with a newer copy."""
    keys, upper = tmp_path / "keys", tmp_path / "root" / "upper.slots"
    service = open_service(tmp_path)
    for name in SURVIVORS:
        service.acquire(*name)
    service.close()
    shutil.copytree(keys, tmp_path / "older")
    disk = LossyDisk()
    service = open_service(tmp_path, io=disk)
    service.acquire(*VICTIM)
    if after == "an erasure":
        assert service.destroy_session(*SURVIVORS[2]) is not None
    abandon(service)
    disk.crash(_Fate("lost", 0))
    shutil.copytree(keys, tmp_path / "newer")
    if after == "a start":
        disk = LossyDisk()
        service = open_service(tmp_path, io=disk)
        assert service.find(*VICTIM) is not None  # the control: its key outlived the cut
        abandon(service)
        disk.crash(_Fate("lost", 0))
    elif after == "a torn mark":
        content = bytearray(upper.read_bytes())
        for half in (0, 1):
            content[4096 + (2 * MARK_SLOT + half) * UPPER_HALF_BYTES + 100] ^= 1
        upper.write_bytes(content)

    def put_back(name: str) -> KeyService:
        shutil.rmtree(keys)
        shutil.copytree(tmp_path / name, keys)
        return open_service(tmp_path)

    service = put_back("older")
    assert service.recovery.older_copy == (after != "a torn mark")
    assert service.destroy_session(*VICTIM) is None
    assert SURVIVORS[0] in salts_of(service)
    service.close()
    service = put_back("newer")
    assert VICTIM not in salts_of(service)
    assert SURVIVORS[0] in salts_of(service)
    service.close()
