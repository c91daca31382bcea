"""A customer who takes a root back makes the cache unreadable within one lease, and may undo it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from keys_support import DEPLOYMENT, WORKSPACE, Clock
from root_rigs import KeptRig

from kvrun.keys import KeyLimits, KeyService, KeyUnavailableError
from kvrun.keys.kept_root import KeptRoot
from kvrun.keys.lease import MAX_LEASE_S


class Deployment:
    """A key service under a root that its customer holds, on a clock to turn."""

    def __init__(self, base: Path, rig: KeptRig) -> None:
        self.rig, self.boottime, self.ended = rig, Clock(1000.0), []
        self.root = rig.open()
        self.service = KeyService.open(
            base / "keys",
            self.root,
            workspace=WORKSPACE,
            deployment=DEPLOYMENT,
            limits=KeyLimits(),
            now=Clock(),
            clock=self.boottime,
            lease_s=MAX_LEASE_S,
        )
        self.service.on_lease_end = self.ended.append

    def ask_root(self) -> None:
        """What happens several times in each lease."""
        assert self.service._keeper is not None
        self.service._keeper.renew()


@pytest.fixture
def deployment(kept: KeptRig, tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, kept)
    yield made
    made.service.close()


def test_a_revoked_root_ends_every_handle_at_the_next_question(deployment: Deployment) -> None:
    service = deployment.service
    handle = service.acquire("alice", "one")
    other = service.acquire("bob", "two")
    sealer, salt = handle.sealer, handle.salt
    deployment.ask_root()
    assert handle.sealer is sealer
    deployment.rig.withdraw()
    deployment.ask_root()
    for ended in (handle, other):
        with pytest.raises(KeyUnavailableError):
            ended.sealer  # noqa: B018
        with pytest.raises(KeyUnavailableError):
            ended.block_name(b"block")
    for call in (
        lambda: service.acquire("alice", "one"),
        lambda: service.acquire("carol", "new"),
        lambda: service.find("alice", "one"),
    ):
        with pytest.raises(KeyUnavailableError):
            call()
    assert isinstance(deployment.root, KeptRoot)
    assert bytes(deployment.root._key) == bytes(32)
    assert len(deployment.ended) == 1
    deployment.ask_root()
    assert not service.leased
    deployment.rig.allow()
    deployment.ask_root()
    again = service.acquire("alice", "one")
    assert again.salt == salt
    assert len(deployment.ended) == 1


def test_a_root_out_of_reach_ends_handles_when_the_lease_ends_and_not_before(
    deployment: Deployment,
) -> None:
    service = deployment.service
    handle = service.acquire("alice", "one")
    salt = handle.salt
    deployment.rig.cut()
    try:
        deployment.boottime.time += MAX_LEASE_S - 1
        deployment.ask_root()
        handle.sealer  # noqa: B018
        deployment.boottime.time += 1
        with pytest.raises(KeyUnavailableError):
            handle.sealer  # noqa: B018
        with pytest.raises(KeyUnavailableError):
            service.acquire("alice", "one")
        deployment.ask_root()
        assert len(deployment.ended) == 1
    finally:
        deployment.rig.mend()
    deployment.ask_root()
    assert service.acquire("alice", "one").salt == salt


def test_a_session_erased_before_the_revocation_stays_erased_after_it(
    deployment: Deployment,
) -> None:
    service = deployment.service
    salt = service.acquire("alice", "goes").salt
    service.acquire("alice", "stays")
    service.destroy_session("alice", "goes")
    deployment.rig.withdraw()
    deployment.ask_root()
    with pytest.raises(KeyUnavailableError):
        service.destroy_session("alice", "stays")
    deployment.rig.allow()
    deployment.ask_root()
    assert service.find("alice", "goes") is None
    assert service.acquire("alice", "goes").salt != salt
    assert service.find("alice", "stays") is not None
