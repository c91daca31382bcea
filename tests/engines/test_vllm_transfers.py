"""The worker's transfers against a daemon that breaks the protocol, or goes and comes back odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from kvrun.engines.channel import WorkerChannel
from kvrun.engines.pages import PageCopier, PageCopy, PageLayoutError
from kvrun.engines.transfer import Transfers
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import (
    Load,
    Loaded,
    Release,
    Released,
    Store,
)
from kvrun.instance.staging import StagingRegion
from support.lines import SLOT, Line, Search


@dataclass(frozen=True)
class Ref:
    block_hash: bytes
    group: int
    index: int


class Copier:
    def __init__(self) -> None:
        self.scattered: list[PageCopy] = []

    def block_bytes(self, group: int) -> int:
        return SLOT

    def submit_gather(self, batch: Sequence[PageCopy]) -> object:
        return object()

    def submit_scatter(self, batch: Sequence[PageCopy]) -> object:
        self.scattered += batch
        return object()

    def done(self, handle: object) -> bool:
        return True

    def wait(self, handle: object) -> None:
        pass

    def close(self) -> None:
        pass


class Rig:
    def __init__(self, make_copier: Callable[[StagingRegion], object] | None = None) -> None:
        self.line, self.search, self.copier = Line(), Search(), Copier()
        channel = WorkerChannel(cast(Connection, self.line), cast(Reconnector, self.search))
        make = make_copier or (lambda region: self.copier)
        self.time = 0.0
        self.transfers = Transfers(
            channel, cast(Callable[[StagingRegion], PageCopier], make), lambda: self.time
        )

    def load(self, job: int = 1) -> Load:
        self.transfers.load(job, 9, [(Ref(b"h", 0, 0), 3)])
        sent = self.line.of(Load)[-1]
        assert isinstance(sent, Load)
        return sent


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize("ended", [True, False])
def test_what_was_copied_after_the_daemon_hung_up_is_no_load(rig: Rig, ended: bool) -> None:
    slot = rig.load().blocks[0].slot
    # The last messages can still be read: the slots they name may be zero by now.
    rig.line.answers = [Loaded(1, (slot,), ())]
    rig.line.ended = ended
    (done,) = rig.transfers.poll()
    assert done.failed is ended


def test_slots_that_no_load_holds_are_never_released(rig: Rig) -> None:
    rig.transfers.store(5, 9, [(Ref(b"s", 0, 0), 1)])
    (stored,) = rig.line.of(Store)
    assert isinstance(stored, Store)
    in_use = stored.blocks[0].slot
    rig.line.answers = [
        Loaded(77, (in_use, 99_999, -1), (in_use,)),
        Released((in_use, in_use), (50,)),
        Released((99_999,), (0,)),
    ]
    (stored_done,) = rig.transfers.poll()
    assert rig.line.of(Release) == []
    slot = rig.load().blocks[0].slot
    rig.line.answers = [Loaded(1, (slot, in_use), ()), Loaded(1, (slot,), ())]
    (loaded_done,) = rig.transfers.poll()
    assert (stored_done.job, loaded_done.job, loaded_done.failed) == (5, 1, False)
    assert [copy.block_id for copy in rig.copier.scattered] == [3]
    assert rig.line.of(Release) == [Release((slot,), (0,))]


def test_a_late_answer_to_a_load_that_ended_writes_nothing_and_frees_its_slot(rig: Rig) -> None:
    slot = rig.load().blocks[0].slot
    rig.time = 5.0
    (done,) = rig.transfers.poll()
    assert done.failed
    rig.line.answers = [Loaded(1, (slot,), ())]
    assert rig.transfers.poll() == []
    assert rig.copier.scattered == []
    assert rig.line.of(Release) == [Release((slot,), (0,))]


def test_a_daemon_that_comes_back_with_unusable_staging_costs_the_cache_only(rig: Rig) -> None:
    rig.line.close()
    rig.search.next = odd = Line(announced=9)
    rig.transfers.poll()
    assert odd.closed
    rig.transfers.load(2, 9, [(Ref(b"h", 0, 0), 3)])
    assert [done.failed for done in rig.transfers.poll()] == [True]
    rig.search.next = rig.line = Line()
    rig.transfers.poll()
    assert rig.load(3).job == 3


def test_staging_that_cannot_be_pinned_costs_the_cache_only() -> None:
    refuse = False

    def make(region: StagingRegion) -> object:
        if refuse:
            raise PageLayoutError("CUDA cannot pin it")
        return Copier()

    rig = Rig(make)
    refuse = True
    rig.line.close()
    rig.search.next = unpinned = Line()
    rig.transfers.poll()
    assert unpinned.closed
    refuse = False
    rig.transfers.poll()
    rig.search.next = rig.line = Line()
    rig.transfers.poll()
    assert rig.load().job == 1
