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
from keys_support import Clock, LossyDisk, abandon, open_service

from kvrun.keys import KeyService, KeyUnavailableError, RecoveryReport
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
    for info in list(service.sessions()):
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


def opens_from(copy: Path, base: Path) -> bool:
    """Whether an old copy of the key folder opens the victim under today's root."""
    shutil.rmtree(base / "keys")
    shutil.copytree(copy, base / "keys")
    service = open_service(base)
    found = service.find(*VICTIM)
    abandon(service)
    return found is not None


@pytest.mark.parametrize("step", range(8))
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
    assert reported == (step >= 7), "one failure point for each of the seven syncs"
    gone = check_after(tmp_path, salts, reported=reported)
    if gone:
        assert not opens_from(tmp_path / "copy", tmp_path)
    elif step == 0:
        assert opens_from(tmp_path / "copy", tmp_path)  # the control


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
    generations = [info.generation for info in list(service.sessions())]
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


@pytest.mark.parametrize("groups", [1, 3])
def test_an_erasure_writes_its_own_group_again_and_one_record_for_each_other(
    tmp_path: Path, groups: int
) -> None:
    io = _CountingIO()
    service = open_service(tmp_path, io=io)
    # The first group holds its key, three upper records, a tenant and 123 sessions.
    service.acquire("alice", "goes")
    for number in range(122 + (groups - 1) * 127):
        service.acquire("alice", f"s{number}")
    io.writes = io.syncs = 0
    service.destroy_session("alice", "goes")
    # Every group's key; the rest of the victim's group: a tenant and 122 sessions; the victim:
    # tombstone, zeroed half, two zeros to free; the root: a new epoch key, two zeros on the old.
    assert io.writes == groups + 123 + (1 + 1 + 2) + 3
    assert io.syncs == 7
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
