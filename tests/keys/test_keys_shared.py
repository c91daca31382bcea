"""Erasures at the same time share a rotation, and each returns when its own victim is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from keys_support import listed, open_service

from kvrun.keys import DestroyedKey, KeyDestroyedError, KeyService, KeyUnavailableError
from kvrun.keys.destruction import SessionVictim
from kvrun.keys.shared_run import SharedRun


def wait_for(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(2000):
        if condition():
            return
        done.wait(0.005)
    raise AssertionError("it never happened")


def in_threads(calls: Sequence[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_what_comes_during_a_run_is_done_together_by_the_next() -> None:
    batches: list[list[int]] = []
    first_runs, go_on = threading.Event(), threading.Event()

    def run(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        first_runs.set()
        assert go_on.wait(10)
        return [item * 10 for item in items]

    shared = SharedRun[int, int](run)
    results: dict[int, int] = {}

    def submit(item: int) -> None:
        results[item] = shared.submit(item)

    threads = in_threads([lambda: submit(0)])
    assert first_runs.wait(10)
    threads += in_threads([lambda n=n: submit(n) for n in range(1, 40)])  # type: ignore[misc]
    wait_for(lambda: len(shared._waiting) == 39)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert batches[0] == [0]
    assert sorted(batches[1]) == list(range(1, 40))
    assert len(batches) == 2
    assert results == {item: item * 10 for item in range(40)}


def test_a_run_that_fails_fails_for_all_of_its_callers_and_for_nobody_else() -> None:
    def run(items: Sequence[int]) -> list[int]:
        if -1 in items:
            raise KeyUnavailableError("no")
        return list(items)

    shared = SharedRun[int, int](run)
    with pytest.raises(KeyUnavailableError):
        shared.submit(-1)
    assert shared.submit(5) == 5


def held_up(service: KeyService) -> tuple[threading.Event, threading.Event, list[int]]:
    """Let the service's next rotations wait for an event; and how many victims each had."""
    runs, go_on, sizes = threading.Event(), threading.Event(), []
    destroy = service._ring.destroy

    def slow(sessions: Sequence[object], tenants: Sequence[object] = ()) -> object:
        sizes.append(len(sessions))
        runs.set()
        assert go_on.wait(20)
        return destroy(sessions, tenants)  # type: ignore[arg-type]

    service._ring.destroy = slow  # type: ignore[method-assign, assignment]
    return runs, go_on, sizes


def test_forty_erasures_at_once_take_two_rotations(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    for number in range(42):
        service.acquire("alice", f"s{number}")
    runs, go_on, sizes = held_up(service)
    epoch = service.epoch
    gone: dict[int, DestroyedKey | None] = {}

    def erase(number: int) -> None:
        gone[number] = service.destroy_session("alice", f"s{number}")
        assert service.find("alice", f"s{number}") is None

    threads = in_threads([lambda: erase(0)])
    assert runs.wait(10)
    threads += in_threads([lambda n=n: erase(n) for n in range(1, 40)])  # type: ignore[misc]
    # The same session once more: it is destroyed once and reported once.
    threads += in_threads([lambda: gone.update({100: service.destroy_session("alice", "s39")})])
    wait_for(lambda: len(service._destroyer._shared._waiting) == 40)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert sizes == [1, 39]
    assert service.epoch == epoch + 2
    found = [key for key in gone.values() if key is not None]
    assert len(found) == len({key.key_id for key in found}) == 40
    assert {key.evidence.epoch_destroyed for key in found} == {epoch, epoch + 1}
    assert {info.session for info in listed(service)} == {"s40", "s41"}
    service.close()


def test_a_session_being_erased_refuses_at_once_and_starts_anew_afterwards(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    keys, other = service.acquire("alice", "one"), service.acquire("alice", "two")
    runs, go_on, _ = held_up(service)
    threads = in_threads([lambda: service.destroy_session("alice", "two")])
    assert runs.wait(10)
    threads += in_threads([lambda: service.destroy_session("alice", "one")])
    victim = SessionVictim("alice", "one")
    wait_for(lambda: victim in service._destroyer._doomed)
    # The rotation that will take it has not begun, and it refuses already.
    wait_for(lambda: keys.destroyed)
    for handle in (keys, other):
        with pytest.raises(KeyDestroyedError):
            _ = handle.sealer
    assert service.find("alice", "one") is None
    fresh: list[object] = []
    threads += in_threads([lambda: fresh.append(service.acquire("alice", "one"))])
    assert not fresh
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert fresh[0] is not keys
    assert service.acquire("alice", "one") is fresh[0]
    service.close()


def test_keys_are_destroyed_by_id_and_what_was_made_since_stays(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    old = service.acquire("alice", "one").key_id
    service.destroy_session("alice", "one")
    new = service.acquire("alice", "one")
    other = service.acquire("bob", "one")
    assert service.destroy_keys([old]) == []
    assert not new.destroyed
    tenant = service._ring.find_tenant("bob")
    assert tenant is not None
    gone = service.destroy_keys([new.key_id, tenant.key_id.hex()])
    assert [key.key_id for key in gone] == [new.key_id, other.key_id, tenant.key_id.hex()]
    assert listed(service) == []
    service.close()


def test_a_new_epoch_without_a_victim_leaves_every_session(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    salts = {name: service.acquire("alice", name).salt for name in ("one", "two")}
    before = service.epoch
    assert service.rotate_epoch() == before + 1
    service.close()
    service = open_service(tmp_path)
    assert {name: service.acquire("alice", name).salt for name in salts} == salts
    service.close()
