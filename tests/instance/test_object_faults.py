"""A bucket that is gone, slow, full or lying costs misses and nothing else, and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from object_rig import (
    Made,
    all_found,
    asked,
    blocks,
    bucket_of,
    daemon_on,
    fill,
    hashes,
    reused,
)

from support.byhand import HandEngine
from support.client import eventually
from support.daemon import Daemon
from support.faultproxy import Fault, FaultProxy
from support.object_stores import ObjectStore

Scene = tuple[Daemon, FaultProxy, HandEngine, Made]
KEY = ("tenant-0", "session-0")


@pytest.fixture(scope="module")
def filled(moto_store: ObjectStore) -> Iterator[tuple[ObjectStore, str, Daemon, Made]]:
    """A bucket that a daemon filled, and that daemon's data folder."""
    _, url = bucket_of(moto_store)
    with daemon_on(moto_store, url) as daemon:
        with HandEngine(daemon.socket, daemon.engine_token) as engine:
            made = fill(daemon, engine, tenants=1, sessions=1, count=12)
        daemon.stop()
        yield moto_store, url, daemon, made


@pytest.fixture
def scene(filled: tuple[ObjectStore, str, Daemon, Made]) -> Iterator[Scene]:
    """Another daemon on the same keys and bucket, with a proxy between."""
    store, url, before, made = filled
    proxy = FaultProxy(store.endpoint)
    try:
        with (
            daemon_on(store, url, endpoint=proxy.url, kept=before.data) as daemon,
            HandEngine(daemon.socket, daemon.engine_token) as engine,
        ):
            yield daemon, proxy, engine, made
            proxy.fault = Fault.GONE  # stopping must not wait for it either
    finally:
        proxy.close()


def available(daemon: Daemon) -> bool:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    return bool(status["cache"]["object_available"])


@pytest.mark.parametrize(
    "fault", [Fault.GONE, Fault.HANGS, Fault.SLOW, Fault.ERROR_500, Fault.ERROR_503]
)
def test_a_store_that_fails_from_the_start_is_a_miss_and_recovers_by_itself(
    scene: Scene, fault: Fault
) -> None:
    daemon, proxy, engine, made = scene
    proxy.fault = fault
    answer = asked(daemon, engine, KEY, hashes(made[KEY]))
    assert not any(answer.tiers[0])
    # What is computed instead is sealed, kept and opened as ever.
    fresh = blocks(3)
    engine.store(answer.handle, fresh)
    eventually(
        lambda: all(asked(daemon, engine, KEY, hashes(fresh)).tiers[0]), "sealed into memory"
    )
    assert engine.load(answer.handle, hashes(fresh)).plain == dict(fresh)
    eventually(lambda: not available(daemon), "the metric says so", 60)
    proxy.fault = Fault.NONE
    eventually(lambda: available(daemon), "the store is back", 60)
    all_found(daemon, engine, made)
    assert reused(daemon, engine, made) == (12, 0)


@pytest.mark.parametrize(
    "fault", [Fault.GONE, Fault.HANGS, Fault.ERROR_503, Fault.TRUNCATED, Fault.LIES]
)
def test_a_store_that_fails_while_blocks_are_fetched_gives_no_wrong_block(
    scene: Scene, fault: Fault
) -> None:
    daemon, proxy, engine, made = scene
    session = asked(daemon, engine, KEY, [])
    eventually(lambda: available(daemon) and bool(proxy.requests["GET"] >= 2), "the index was read")
    proxy.fault = fault
    # The answer comes before the blocks do: they are found, and then they do not come.
    good, bad = reused(daemon, engine, made)
    assert (good, bad) == (0, 12)
    if fault is Fault.LIES:
        failures = [r for r in daemon.events() if r["event"] == "integrity_failure"]
        assert {r["tier"] for r in failures} == {"object"}
    proxy.fault = Fault.NONE
    its = made[KEY]
    engine.store(session.handle, its)
    eventually(lambda: available(daemon), "the store is back", 60)
    all_found(daemon, engine, made)
    assert reused(daemon, engine, made) == (12, 0)


def test_a_full_store_is_read_and_written_to_again_when_there_is_room(scene: Scene) -> None:
    daemon, proxy, engine, made = scene
    all_found(daemon, engine, made)
    proxy.fault = Fault.FULL
    answer, fresh = asked(daemon, engine, KEY, []), blocks(3)
    engine.store(answer.handle, fresh)
    eventually(lambda: not available(daemon), "it was found full", 60)
    eventually(
        lambda: all(asked(daemon, engine, KEY, hashes(fresh)).tiers[0]), "they are in memory"
    )
    puts = proxy.requests["PUT"]
    proxy.fault = Fault.NONE
    eventually(lambda: available(daemon), "there is room", 60)
    asked(daemon, engine, KEY, [])
    eventually(lambda: proxy.requests["PUT"] > puts, "what was left out is written", 60)
    assert reused(daemon, engine, made) == (12, 0)
