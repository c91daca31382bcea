"""A bucket that is gone, slow, full or lying costs misses and nothing else, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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

from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from support.byhand import HandEngine
from support.client import eventually
from support.daemon import Daemon
from support.faultproxy import Fault, FaultProxy
from support.object_stores import ObjectStore

SESSIONS = 12


@dataclass
class Scene:
    """A daemon on keys and a bucket that another one filled, and a proxy between it and those.

    Every test takes a session that nobody asked for yet.
    """

    daemon: Daemon
    proxy: FaultProxy
    engine: HandEngine
    made: Made
    store: ObjectStore
    bucket: str

    def take(self) -> tuple[tuple[str, str], Made]:
        key, its = self.made.popitem()
        return key, {key: its}


@pytest.fixture(scope="module")
def opened(moto_store: ObjectStore) -> Iterator[Scene]:
    bucket, url = bucket_of(moto_store)
    proxy = FaultProxy(moto_store.endpoint)
    try:
        with daemon_on(moto_store, url) as before:
            with HandEngine(before.socket, before.engine_token) as engine:
                made = fill(before, engine, tenants=1, sessions=SESSIONS, count=12)
            before.stop()
            with (
                daemon_on(moto_store, url, endpoint=proxy.url, kept=before.data) as daemon,
                HandEngine(daemon.socket, daemon.engine_token) as engine,
            ):
                yield Scene(daemon, proxy, engine, made, moto_store, bucket)
    finally:
        proxy.close()


@pytest.fixture
def scene(opened: Scene) -> Scene:
    opened.proxy.fault = Fault.NONE
    eventually(lambda: available(opened.daemon), "Storage answers", 60)
    return opened


def available(daemon: Daemon) -> bool:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    return bool(status["cache"]["object_available"])


@pytest.mark.parametrize("fault", [Fault.GONE, Fault.SLOW, Fault.ERROR_500, Fault.ERROR_503])
def test_a_store_that_fails_from_the_start_is_a_miss_and_recovers_by_itself(
    scene: Scene, fault: Fault
) -> None:
    daemon, proxy, engine = scene.daemon, scene.proxy, scene.engine
    key, made = scene.take()
    proxy.fault = fault
    answer = asked(daemon, engine, key, hashes(made[key]))
    assert not any(answer.tiers[0])
    # What is computed instead is sealed, kept and opened as ever.
    fresh = blocks(3)
    engine.store(answer.handle, fresh)
    eventually(
        lambda: all(asked(daemon, engine, key, hashes(fresh)).tiers[0]), "sealed into memory"
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
    daemon, proxy, engine = scene.daemon, scene.proxy, scene.engine
    key, made = scene.take()
    before = proxy.requests["GET"]
    session = asked(daemon, engine, key, [])
    # A listing and one look at the end of the pack.
    eventually(lambda: proxy.requests["GET"] >= before + 2, "the index was read")
    proxy.fault = fault
    # The answer comes before the blocks do: they are found, and then they do not come.
    good, bad = reused(daemon, engine, made)
    assert (good, bad) == (0, 12)
    if fault is Fault.LIES:
        failures = [r for r in daemon.events() if r["event"] == "integrity_failure"]
        assert {r["tier"] for r in failures} == {"object"}
        assert len(failures) == 12
    proxy.fault = Fault.NONE
    its = made[key]
    engine.store(session.handle, its)
    eventually(lambda: available(daemon), "the store is back", 60)
    all_found(daemon, engine, made)
    assert reused(daemon, engine, made) == (12, 0)


def test_a_full_store_is_read_and_written_to_again_when_there_is_room(scene: Scene) -> None:
    daemon, proxy, engine = scene.daemon, scene.proxy, scene.engine
    key, made = scene.take()
    all_found(daemon, engine, made)
    proxy.fault = Fault.FULL
    answer, fresh = asked(daemon, engine, key, []), blocks(3)
    engine.store(answer.handle, fresh)
    eventually(lambda: not available(daemon), "it was found full", 60)
    eventually(
        lambda: all(asked(daemon, engine, key, hashes(fresh)).tiers[0]), "they are in memory"
    )
    puts = proxy.requests["PUT"]
    proxy.fault = Fault.NONE
    eventually(lambda: available(daemon), "there is room", 60)
    asked(daemon, engine, key, [])
    eventually(lambda: proxy.requests["PUT"] > puts, "what was left out is written", 60)
    assert reused(daemon, engine, made) == (12, 0)


def test_an_erasure_does_not_wait_for_a_store_that_is_away_and_its_packs_go_later(
    scene: Scene,
) -> None:
    daemon, proxy, engine = scene.daemon, scene.proxy, scene.engine
    key, made = scene.take()
    all_found(daemon, engine, made)
    before = set(scene.store.pack_names(scene.bucket))
    proxy.fault = Fault.ERROR_503
    daemon.admin("erase_session", tenant=key[0], session=key[1])
    statement = last_statement(daemon)
    tier = next(tier for tier in statement.tiers if tier.tier == "object")
    assert (tier.blocks, tier.unlinked) == (12, False)
    ref = statement.keys[0].session_ref
    its = {name for name in before if name.split("/")[-2] == ref}
    assert its
    assert its <= set(scene.store.pack_names(scene.bucket))
    assert not any(asked(daemon, engine, key, hashes(made[key])).tiers[0])
    proxy.fault = Fault.NONE
    # Packs of the tests before may come and go meanwhile.
    eventually(
        lambda: not its & set(scene.store.pack_names(scene.bucket)), "the packs are deleted", 90
    )
    all_found(daemon, engine, scene.take()[1])


def last_statement(daemon: Daemon) -> ErasureStatement:
    certificate = max(daemon.data.rglob("certificates/*.json"), key=lambda p: p.stat().st_mtime)
    return decode_statement(payload_of(parse_certificate(certificate.read_bytes())))
