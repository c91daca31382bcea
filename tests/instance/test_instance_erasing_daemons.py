"""Other daemons in an erasure: waited for beside engines, named, and heard of later."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvrun.erasure.certificate import GpuEntry, RequestKind, SnapshotRetention
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import ErasedKey, Job, ToldDaemon
from kvrun.erasure.statement import StatementFacts, statement_of
from kvrun.erasure.targets import NoEngines, ScrubOutcome
from kvrun.instance.erasing import ErasureParts, InstanceSteps
from kvrun.instance.erasing_daemons import heard, looked, with_told
from kvrun.instance.known_engines import process_start
from kvrun.keys.daemon_state import DaemonReport, DaemonState, Pages
from kvrun.keys.errors import KeyUnavailableError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.selection import Destruction
from kvrun.keys.source import KeySelecting

NOW = 1_800_000_000.0
AT = "2027-01-15T08:00:00.000000Z"
OTHER = "acme/chat/box-2 (process 77)"


def job(*daemons: ToldDaemon, gpu: GpuEntry | None = None) -> Job:
    return Job(
        id="0" * 23 + "1",
        kind=RequestKind.SESSION,
        workspace="acme",
        deployment="chat",
        requester="tests",
        requested_at=NOW,
        commitments=["0" * 64],
        keys=[
            ErasedKey(
                key_id="ab" * 16, generation=7, tenant_ref="t", session_ref="s", owner="cd" * 16
            )
        ],
        shared=True,
        daemons=list(daemons),
        gpu=gpu or GpuEntry(),
        destroyed_at=NOW,
    )


def other(pid: int = 77, started: str = "") -> ToldDaemon:
    return ToldDaemon(name=OTHER, pid=pid, started=started, asked_at=AT)


class Meeting:
    """A key service and an engine that answer only once both were asked."""

    def __init__(self) -> None:
        self.both = threading.Barrier(2)

    def settle(
        self, erasure: str, daemons: Sequence[str], *, pages_within_s: float | None
    ) -> list[DaemonState]:
        self.both.wait(timeout=20)
        return [DaemonState(name, DaemonReport.TOLD) for name in daemons]


class Engine(NoEngines):
    """Confirms nothing, once it was asked."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def scrub(
        self, call: int, owners: Sequence[bytes], *, everything: bool, engines: Sequence[int]
    ) -> ScrubOutcome:
        self._meeting.both.wait(timeout=20)
        return ScrubOutcome(unacknowledged=("engine process 5: not confirmed at " + AT,))


def parts(keys: object, engine: NoEngines, now: float = NOW) -> ErasureParts:
    instance = SimpleNamespace(keys=SimpleNamespace(selection=keys), stateless=False)
    unused: Any = None
    return ErasureParts(
        instance=cast(Any, instance),
        transfers=None,
        ledger=unused,
        archive=unused,
        scrubber=engine,
        signer=unused,
        facts=unused,
        now=lambda: now,
        drain_timeout_s=0,
        deadline_s=30,
    )


def test_engines_and_other_daemons_are_waited_for_at_the_same_time() -> None:
    meeting = Meeting()
    steps = InstanceSteps(parts(meeting, Engine(meeting), NOW + 30), None)
    done = steps.scrub(job(other()))
    assert [name.partition(":")[0] for name in done.unconfirmed] == [
        "engine process 5", f"daemon {OTHER}",
    ]  # fmt: skip
    assert done.destroyed_at == NOW + 30, "until then the other could use the key"


def test_without_the_key_service_nothing_is_certified_yet() -> None:
    class Away(Meeting):
        def settle(self, *_: object, **__: object) -> list[DaemonState]:
            raise KeyUnavailableError("it is away")

    with pytest.raises(ErasureError, match="waits for the key service"):
        InstanceSteps(parts(Away(), NoEngines()), None).scrub(job(other()))


def test_a_daemon_is_named_until_keys_and_pages_are_gone() -> None:
    first = job(other(), gpu=GpuEntry(evicted=1, scrubbed=1))
    assert first.unconfirmed == [
        f"daemon {OTHER}: keys and pages in engine memory not confirmed at {AT};"
        " it may not use the keys any more"
    ]
    let_go = heard(first.daemons, [DaemonState(OTHER, DaemonReport.LET_GO)], AT)
    assert job(*let_go).unconfirmed == [
        f"daemon {OTHER}: pages in engine memory not confirmed at {AT}"
    ]
    pages = Pages(3, 2, 1, ["it zeroes none"])
    held = heard(let_go, [DaemonState(OTHER, DaemonReport.LET_GO, pages)], AT)
    assert job(*held).unconfirmed == []
    assert held[0].is_open, "a page is still held"
    counted = job(*held, gpu=GpuEntry(evicted=1, scrubbed=1))
    assert counted.pages == GpuEntry(evicted=4, scrubbed=3, held=1)
    assert counted.remarks == ["it zeroes none"]
    over = heard(held, [DaemonState(OTHER, DaemonReport.LET_GO, Pages(0, 3, 0))], AT)
    assert not over[0].is_open
    assert job(*over).pages == GpuEntry(evicted=3, scrubbed=3, held=0)


@pytest.mark.parametrize("before", [None, Pages(1, 1, 2)])
def test_a_daemon_that_ended_first_is_an_exclusion(before: Pages | None) -> None:
    ended = heard([other()], [DaemonState(OTHER, DaemonReport.ENDED, before)], AT)
    assert not ended[0].is_open
    assert job(*ended).unconfirmed == []
    assert job(*ended).pages.held == 0
    assert OTHER in job(*ended).remarks[0]


def test_of_a_daemon_that_the_service_does_not_know_its_process_tells() -> None:
    absent = [DaemonState(OTHER, DaemonReport.ABSENT)]
    me = os.getpid()
    (here,) = heard([other(me, process_start(me))], absent, AT)
    assert here.is_open
    (gone,) = heard([other(me, "another process of that id")], absent, AT)
    assert gone.ended
    (elsewhere,) = heard([other(me)], absent, AT)
    assert elsewhere.is_open, "it cannot be seen from here"


def test_a_service_that_was_started_since_is_asked_to_tell_it() -> None:
    asked: list[tuple[object, ...]] = []

    class Service:
        def settle(
            self, erasure: str, daemons: Sequence[str], *, pages_within_s: float | None
        ) -> list[DaemonState]:
            assert pages_within_s is None
            return [DaemonState(name, DaemonReport.UNTOLD) for name in daemons]

        def destroy(
            self, key_ids: Collection[str], *, erasure: str = "", owners: Collection[bytes] = ()
        ) -> Destruction:
            asked.append((list(key_ids), erasure, list(owners)))
            return Destruction((), (), shared=True)

    (daemon,) = looked(cast(KeySelecting, Service()), job(other()), AT)
    assert daemon.is_open
    assert asked == [(["ab" * 16], "0" * 23 + "1", [bytes.fromhex("cd" * 16)])]


def test_who_was_told_twice_is_listed_once() -> None:
    told = [(os.getpid(), OTHER), (78, "acme/chat/box-3 (process 78)")]
    once = with_told(job(), told, AT)
    assert with_told(once, told, AT).daemons == once.daemons
    assert once.daemons[0].started == process_start(os.getpid())


def test_a_certificate_counts_and_names_the_others() -> None:
    facts = StatementFacts(ClaimClass.DEVICE, SnapshotRetention(), True, "builtin-1", "log")
    let_go = ToldDaemon(name="b (process 2)", pid=2, let_go=True, pages=Pages(2, 2, 1))
    made = statement_of(
        job(other(), let_go, gpu=GpuEntry(scrubbed=1)),
        facts,
        certificate_id="0" * 24,
        issued_at=NOW,
    )
    assert (made.gpu.evicted, made.gpu.scrubbed, made.gpu.held) == (2, 3, 1)
    assert [name.partition(":")[0] for name in made.unacknowledged] == [f"daemon {OTHER}"]
