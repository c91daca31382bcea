"""A root that stops answering in the middle of an erasure delays it; nothing else breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from keys_support import Clock, listed, open_service

from kvrun.keys import FileRoot, KeyLimits, KeyService, KeyUnavailableError, RootUnavailableError
from kvrun.keys.root import EpochEvidence

NAMES = [("alice", "one"), ("alice", "two"), ("bob", "one")]


class FlakyRoot(FileRoot):
    """Does not answer the calls named in ``away``; ``deaf`` ones do it and lose the answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.away: set[str] = set()
        self.deaf: set[str] = set()

    def check(self) -> None:
        self._answer("check")
        super().check()

    def create_epoch(self, epoch: int) -> None:
        self._answer("create_epoch")
        super().create_epoch(epoch)
        self._lose("create_epoch")

    def load_epoch(self, epoch: int, out: memoryview) -> None:
        self._answer("load_epoch")
        super().load_epoch(epoch, out)

    def destroy_epoch(self, epoch: int) -> EpochEvidence:
        self._answer("destroy_epoch")
        evidence = super().destroy_epoch(epoch)
        self._lose("destroy_epoch")
        return evidence

    def _answer(self, call: str) -> None:
        if call in self.away:
            raise RootUnavailableError(f"nobody answers {call}")

    def _lose(self, call: str) -> None:
        if call in self.deaf:
            raise RootUnavailableError(f"the answer to {call} was lost")


class Rig:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = FlakyRoot(base / "root")
        self.clock = Clock(10.0)
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
        self.salts = {name: self.service.acquire(*name).salt for name in NAMES}

    def come_back(self) -> None:
        self.root.away, self.root.deaf = set(), set()

    def check_whole(self) -> None:
        del self.salts["alice", "two"]
        for _ in range(2):
            found = {(info.tenant, info.session) for info in listed(self.service)}
            assert found == set(self.salts)
            salts = {name: self.service.acquire(*name).salt for name in self.salts}
            assert salts == self.salts
            assert len(self.service._root.epochs()) == 1
            self.service.close()
            self.service = open_service(self.base)
            assert self.service.recovery.finished_destructions == 0
        self.service.close()


FAILURES = [
    ("away", "create_epoch"),
    ("away", "load_epoch"),
    ("away", "destroy_epoch"),
    ("deaf", "create_epoch"),
    ("deaf", "destroy_epoch"),
]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize(("how", "call"), FAILURES)
def test_an_erasure_waits_for_the_root_and_the_others_go_on(rig: Rig, how: str, call: str) -> None:
    service = rig.service
    victim = service.acquire("alice", "two")
    getattr(rig.root, how).add(call)
    with pytest.raises(KeyUnavailableError, match="waits for the key root"):
        service.destroy_session("alice", "two")
    assert victim.destroyed
    assert service.find("alice", "two") is None
    # Not in the handles kept ready: these are opened from their slots while it waits.
    service._handles._ready.clear()
    service._handles._alive.clear()
    others = {name: service.find(*name) for name in NAMES if name != ("alice", "two")}
    assert all(keys is not None and keys.salt == rig.salts[name] for name, keys in others.items())
    if how == "away":
        with pytest.raises(KeyUnavailableError, match="waits for the key root"):
            service.acquire("carol", "new")
    rig.come_back()
    service.destroy_expired()  # housekeeping finishes it
    rig.check_whole()


@pytest.mark.parametrize(("how", "call"), FAILURES)
def test_an_erasure_that_waited_until_the_lease_was_over_is_finished_too(
    rig: Rig, how: str, call: str
) -> None:
    getattr(rig.root, how).add(call)
    with pytest.raises(KeyUnavailableError):
        rig.service.destroy_session("alice", "two")
    keeper = rig.service._keeper
    assert keeper is not None
    rig.root.away.add("check")
    rig.clock.time += 31
    keeper.watch()
    assert not any(rig.service._ring.store.deployment_key)
    rig.come_back()
    assert keeper.renew()
    assert rig.service.destroy_session("alice", "two") is None
    rig.check_whole()


def test_a_restart_finishes_what_waited(rig: Rig) -> None:
    rig.root.away.add("destroy_epoch")
    with pytest.raises(KeyUnavailableError):
        rig.service.destroy_session("alice", "two")
    rig.service.close()
    rig.service = open_service(rig.base)
    assert rig.service.recovery.finished_destructions == 1
    rig.check_whole()
