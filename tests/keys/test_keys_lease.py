"""A key is used only under a lease: counted from before it was asked for, and never revived."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keys_support import Clock

from kvrun.keys import (
    FileRoot,
    KeyLimits,
    KeyService,
    KeyUnavailableError,
    RootRevokedError,
    RootUnavailableError,
    SessionKeys,
)
from kvrun.keys.errors import KeysError
from kvrun.keys.lease import MAX_LEASE_S, Lease
from kvrun.keys.lease_keeper import LeaseKeeper

SALT = b"s" * 24


@given(
    st.lists(
        st.tuples(st.floats(0, 40), st.floats(0, 5), st.floats(1, 100), st.booleans()), max_size=20
    )
)
def test_a_lease_never_outlives_thirty_seconds_after_its_last_request(
    steps: list[tuple[float, float, float, bool]],
) -> None:
    now = 1000.0
    lease, last_granted, ended = Lease(now), now, False
    for wait, answer_takes, asked_for, answered in steps:
        now += wait
        asked_at = now
        now += answer_takes
        ended = ended or not lease.holds(now)
        if answered:
            renewed = lease.renew(asked_at, now, asked_for)
            assert renewed == (not ended)
            if renewed:
                last_granted = asked_at
        assert lease.holds(now) <= (now < last_granted + MAX_LEASE_S)
        assert not (ended and lease.holds(now)), "what ended came back"


class Authority:
    """A root's answer as a test sets it; counts how often it was asked."""

    def __init__(self) -> None:
        self.error: KeysError | None = None
        self.asked = 0
        self.on_ask: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        self.asked += 1
        self.on_ask()
        if self.error is not None:
            raise self.error


class Rig:
    def __init__(self, duration_s: float = 30.0) -> None:
        self.clock = Clock(50.0)
        self.ask = Authority()
        self.told: list[str] = []
        self.began: list[Lease] = []
        self.keeper = LeaseKeeper(
            self.ask,
            duration_s=duration_s,
            clock=self.clock,
            ended=self.told.append,
            began=self.began.append,
        )


def test_the_lease_counts_from_before_the_question() -> None:
    rig = Rig()
    assert rig.keeper.lease.until == 80.0

    def slow() -> None:
        rig.clock.time += 7

    rig.ask.on_ask = slow
    rig.clock.time = 60.0
    assert rig.keeper.renew()
    assert rig.keeper.lease.until == 90.0  # not 97


def test_an_answer_that_comes_after_the_end_revives_nothing() -> None:
    rig = Rig()
    first = rig.keeper.lease

    def too_slow() -> None:
        rig.clock.time += 31

    rig.ask.on_ask = too_slow
    rig.keeper.renew()
    assert not first.holds(rig.clock.time)
    assert rig.told == ["it was not renewed in time"]
    assert rig.began == [rig.keeper.lease] != [first]


def test_no_answer_lets_the_lease_run_to_its_end_and_tells_once() -> None:
    rig = Rig()
    rig.ask.error = RootUnavailableError("nobody answers")
    for _ in range(2):
        rig.clock.time += 14
        assert rig.keeper.renew()
    rig.keeper.watch()
    assert rig.told == []
    rig.clock.time += 2
    rig.keeper.watch()
    rig.keeper.watch()
    assert not rig.keeper.renew()
    assert rig.told == ["nobody answers"]
    rig.ask.error = None
    assert rig.keeper.renew()
    assert rig.began == [rig.keeper.lease]
    rig.clock.time += 40
    rig.keeper.watch()
    assert len(rig.told) == 2


def test_a_revocation_ends_the_lease_at_once() -> None:
    rig = Rig()
    rig.ask.error = RootRevokedError("the customer said no")
    assert not rig.keeper.renew()
    assert rig.told == ["the customer said no"]
    assert not rig.keeper.lease.holds(rig.clock.time)


class _RevocableRoot(FileRoot):
    """A file root that answers as the test says; refused, it unwraps nothing either."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.error: KeysError | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def load_epoch(self, epoch: int, out: memoryview) -> None:
        self.check()
        super().load_epoch(epoch, out)

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        self.check()
        super().unwrap_into(context, wrapped, out)


class LeasedService:
    def __init__(self, base: Path) -> None:
        self.clock = Clock(10.0)
        self.root = _RevocableRoot(base / "root")
        self.service = KeyService.open(
            base / "keys",
            self.root,
            workspace="acme",
            deployment="chat",
            limits=KeyLimits(),
            now=Clock(),
            lease_s=30.0,
            clock=self.clock,
        )
        self.told: list[str] = []
        self.service.on_lease_end = self.told.append
        keeper = self.service._keeper
        assert keeper is not None
        self.keeper = keeper


@pytest.fixture
def leased(tmp_path: Path) -> LeasedService:
    return LeasedService(tmp_path)


def use(keys: SessionKeys) -> bytes:
    out = bytearray(88 + 5)
    keys.sealer.seal_into(b"context", b"plain", out, salt=SALT)
    return bytes(out)


def test_a_process_that_was_stopped_cannot_use_a_key_when_it_wakes(leased: LeasedService) -> None:
    keys = leased.service.acquire("alice", "one")
    use(keys)
    leased.clock.time += 30.0  # nobody ran meanwhile: no renewal, no watching
    with pytest.raises(KeyUnavailableError, match="right to use"):
        _ = keys.sealer
    with pytest.raises(KeyUnavailableError):
        keys.block_name(b"x")
    assert keys.ended
    assert not keys.destroyed
    for call in (leased.service.acquire, leased.service.find):
        with pytest.raises(KeyUnavailableError, match="has not confirmed"):
            call("alice", "one")
    leased.service.close()


def test_after_the_lease_no_key_is_in_memory_and_the_owner_is_told(leased: LeasedService) -> None:
    service = leased.service
    keys = service.acquire("alice", "one")
    sealer, salt = keys.sealer, keys.salt
    leased.root.error = RootRevokedError("revoked")
    leased.keeper.renew()
    assert leased.told == ["revoked"]
    assert sealer.closed
    assert not any(service._ring.store.deployment_key)
    assert not any(service._ring.store.table)
    assert service._ring.store.arena.in_use == 1  # the deployment key's place, which is zero
    with pytest.raises(KeyUnavailableError):
        service.destroy_session("alice", "one")
    leased.keeper.renew()
    assert leased.told == ["revoked"]

    leased.root.error = None
    assert leased.keeper.renew()
    again = service.acquire("alice", "one")
    assert again is not keys
    assert again.salt == salt
    use(again)
    assert keys.ended  # an old handle stays what it is
    with pytest.raises(KeyUnavailableError):
        _ = keys.sealer
    service.close()


def test_an_end_that_is_told_late_never_ends_the_lease_that_follows(leased: LeasedService) -> None:
    """The watching thread stands still between seeing the end and telling it."""
    service, keeper = leased.service, leased.keeper
    keeper.close()  # what its threads do is done here, in the order that is meant
    service.acquire("alice", "x")
    seen, go, tell = threading.Event(), threading.Event(), keeper._ended

    def late(reason: str) -> None:
        seen.set()
        go.wait(10)
        tell(reason)

    keeper._ended = late
    leased.clock.time += 31
    watching = threading.Thread(target=keeper.watch)
    renewing = threading.Thread(target=keeper.renew)
    watching.start()
    assert seen.wait(10)
    renewing.start()
    renewing.join(0.2)  # where nothing holds it back it begins a lease here
    go.set()
    watching.join(10)
    renewing.join(10)
    assert service.leased
    service.acquire("alice", "x")
    assert service.destroy_tenant("alice")
    service.close()


def test_a_root_that_is_away_for_less_than_a_lease_is_not_noticed(leased: LeasedService) -> None:
    keys = leased.service.acquire("alice", "one")
    leased.root.error = RootUnavailableError("restarting")
    leased.clock.time += 20
    assert leased.keeper.renew()
    use(keys)
    leased.root.error = None
    assert leased.keeper.renew()
    leased.clock.time += 20
    use(keys)
    assert leased.told == []
    leased.service.close()


def test_keys_stay_away_while_the_root_answers_but_opens_nothing(leased: LeasedService) -> None:
    service = leased.service
    service.acquire("alice", "one")
    leased.root.error = RootRevokedError("revoked")
    leased.keeper.renew()
    leased.root.error = None
    real = leased.root.load_epoch

    def refuse(epoch: int, out: memoryview) -> None:
        raise RootUnavailableError("not yet")

    leased.root.load_epoch = refuse  # type: ignore[method-assign]
    assert not leased.keeper.renew()
    with pytest.raises(KeyUnavailableError):
        service.acquire("alice", "one")
    assert not any(service._ring.store.deployment_key)
    leased.root.load_epoch = real  # type: ignore[method-assign]
    assert leased.keeper.renew()
    service.acquire("alice", "one")
    service.close()


def test_a_lease_is_renewed_and_watched_in_the_background() -> None:
    told, ask, asked_again = threading.Event(), Authority(), threading.Event()
    keeper = LeaseKeeper(
        ask,
        duration_s=0.3,
        ended=lambda _reason: told.set(),
        began=lambda _lease: None,
    )

    def answer() -> None:
        if ask.asked >= 5:  # the first answer alone would not have lasted so long
            asked_again.set()

    ask.on_ask = answer
    keeper.start()
    assert asked_again.wait(20)
    ask.error = RootUnavailableError("gone")
    assert told.wait(20)
    keeper.close()


def test_a_service_without_its_root_does_not_start(tmp_path: Path) -> None:
    root = _RevocableRoot(tmp_path / "root")
    KeyService.open(
        tmp_path / "keys",
        root,
        workspace="acme",
        deployment="chat",
        limits=KeyLimits(),
        now=Clock(),
    ).close()
    root = _RevocableRoot(tmp_path / "root")
    root.error = RootRevokedError("revoked")
    with pytest.raises(RootRevokedError):
        KeyService.open(
            tmp_path / "keys",
            root,
            workspace="acme",
            deployment="chat",
            limits=KeyLimits(),
            now=Clock(),
            lease_s=30.0,
        )
    root.close()
