"""Whoever copied everything but the root, at every moment, opens nothing that was destroyed."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keys_support import Clock, LossyDisk, abandon, listed, open_service

from kvrun.keys import KeyService, KeyUnavailableError
from kvrun.keys.ring_store import TABLE_SLOTS, UPPER_HALF_BYTES

VECTORS = Path(__file__).parents[1] / "vectors"


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_key_slots", VECTORS / "make_key_slots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Wiretap(LossyDisk):
    """Keeps every write that ever went to the files of keys: all copies of all times, and more.

    Also to the upper keys', which no backup should have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[str, list[tuple[int, bytes]]] = {"keys.slots": [], "upper.slots": []}

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if name in self.writes:
            self.writes[name].append((offset, bytes(data)))
        super().pwrite(descriptor, data, offset)


class Attacker:
    """Has every record ever written to either file, and reads the root as it is now."""

    def __init__(self, base: Path, tap: Wiretap, by_hand: ModuleType) -> None:
        self._base = base
        self._tap = tap
        self._by_hand = by_hand

    def reached(self) -> set[str]:
        """The key ids of all sessions that can be opened by trying every key on every record."""
        root = self._base / "root"
        upper = self._records(root / "upper.slots", UPPER_HALF_BYTES)
        records = self._records(self._base / "keys" / "keys.slots", 512)
        root_file = (root / "root.slots").read_bytes()
        opened: list[dict[str, Any]] = self._by_hand.open_all(root_file, upper, records)
        return {facts["key_id"] for facts in opened}

    def _records(self, file: Path, half: int) -> list[tuple[int, int, bytes]]:
        file_id = file.read_bytes()[16:32]
        found = [
            self._by_hand.written_record(file_id, offset, data, half)
            for offset, data in self._tap.writes[file.name]
        ]
        return [record for record in found if record is not None]


def living(service: KeyService) -> set[str]:
    return {info.key_id for info in listed(service)}


def test_every_record_ever_written_and_todays_root_open_the_living_and_nothing_else(
    tmp_path: Path, by_hand: ModuleType
) -> None:
    tap = Wiretap()
    service = open_service(tmp_path, io=tap)
    attacker = Attacker(tmp_path, tap, by_hand)
    # Two tables and more, with tenants that reach over their border.
    for number in range(TABLE_SLOTS + 20):
        service.acquire(f"t{number % 7}", f"s{number}")
    everything = living(service)
    assert attacker.reached() == everything  # the control: before an erasure all of it opens
    service.destroy_session("t3", "s10")
    assert attacker.reached() == living(service)
    service.destroy_tenant("t5")
    assert attacker.reached() == living(service)
    clock = service._now
    assert isinstance(clock, Clock)
    clock.time += 7200
    for number in range(0, 20, 7):
        service.acquire("t0", f"s{number}")
    service.destroy_expired()  # writes last uses
    service.acquire("t9", "new")
    service.destroy_session("t9", "new")
    assert attacker.reached() == living(service) < everything
    service.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 8), st.integers(), st.sampled_from(["session", "tenant", "two"]))
def test_a_crash_in_between_leaves_no_way_back_either(
    tmp_path_factory: pytest.TempPathFactory,
    by_hand: ModuleType,
    step: int,
    seed: int,
    what: str,
) -> None:
    base = tmp_path_factory.mktemp("copies")
    tap = Wiretap()
    service = open_service(base, io=tap)
    attacker = Attacker(base, tap, by_hand)
    ids = {
        (tenant, session): service.acquire(tenant, session).key_id
        for tenant in ("alice", "bob")
        for session in ("one", "two")
    }
    tap.fail_at_sync = tap.syncs + step
    with suppress(KeyUnavailableError):
        if what == "tenant":
            service.destroy_tenant("alice")
        else:
            service.destroy_session("alice", "one")
        if what == "two":
            service.destroy_session("bob", "two")
    abandon(service)
    tap.crash(Random(seed))
    tap.off, tap.fail_at_sync = False, None
    service = open_service(base, io=tap)
    alive = living(service)
    assert ids["bob", "one"] in alive
    assert attacker.reached() == alive
    abandon(service)


def test_the_attacker_is_real_with_a_copy_of_the_root_he_opens_what_was_destroyed(
    tmp_path: Path, by_hand: ModuleType
) -> None:
    tap = Wiretap()
    service = open_service(tmp_path, io=tap)
    victim = service.acquire("alice", "one").key_id
    root = tmp_path / "root" / "root.slots"
    copy = root.read_bytes()
    service.destroy_session("alice", "one")
    attacker = Attacker(tmp_path, tap, by_hand)
    assert victim not in attacker.reached()
    service.close()
    root.write_bytes(copy)
    assert victim in attacker.reached()
