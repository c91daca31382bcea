"""A sweep takes several sessions at a time, and each of its threads waits after its own work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from kvrun.cache.events import Tier
from kvrun.cache.placement import Basis
from kvrun.instance.residency import Standing
from kvrun.instance.sweeping import Pacer, Sweep
from kvrun.policy.compile import Placement, closed_table
from kvrun.policy.matching import InstanceFacts

STRICT = closed_table(InstanceFacts(), {})
REFS = [("t1", "a"), ("t1", "b")]


class Cache:
    """Its sessions leave together or not at all."""

    def __init__(self) -> None:
        self.both = threading.Barrier(len(REFS), timeout=20)
        self.left: list[tuple[str, str]] = []
        self.outgoing = 0

    def remove_outgoing(self, pause: Callable[[], None]) -> None:
        """Nothing can be removed."""

    def session_refs(self) -> list[tuple[str, str]]:
        return [ref for ref in REFS if ref not in self.left]

    def leave(
        self, tenant: str, session: str, why: Mapping[Tier, Basis], pause: Callable[[], None]
    ) -> dict[Tier, tuple[int, int]]:
        self.both.wait()
        self.left.append((tenant, session))
        pause()
        return dict.fromkeys(why, (1, 100))

    def levels(self) -> SimpleNamespace:
        return SimpleNamespace(object_available=True, has_objects=False, outgoing=self.outgoing)


def swept(cache: Cache) -> Sweep:
    residency = SimpleNamespace(
        revision=STRICT.revision,
        standing=Standing.ACTIVE,
        placement=lambda ref: Placement(STRICT.revision, STRICT.row(ref)),
    )
    return Sweep(cast(Any, SimpleNamespace(cache=cache, residency=residency, handles=())))


def test_sessions_leave_side_by_side_and_all_of_them_are_counted() -> None:
    cache = Cache()
    sweep = swept(cache)
    assert sweep.run() == 6
    assert sorted(cache.left) == REFS
    report = sweep.report()
    assert (report.sessions, report.done) == (2, False)
    assert report.blocks == {"memory": 2, "disk": 2, "object": 2}
    assert report.size_bytes == {"memory": 200, "disk": 200, "object": 200}
    assert [sweep.run(), sweep.run()] == [0, 0]
    cache.outgoing = 1
    assert not sweep.report().done, "files are left of what nobody finds any more"
    cache.outgoing = 0
    assert sweep.report().done


class MuchToSweep(Cache):
    """The daemon is stopped as soon as a session leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: Callable[[], None] = lambda: None

    def session_refs(self) -> list[tuple[str, str]]:
        return [("t1", str(number)) for number in range(1000)]

    def leave(
        self, tenant: str, session: str, why: Mapping[Tier, Basis], pause: Callable[[], None]
    ) -> dict[Tier, tuple[int, int]]:
        self.stop()
        self.left.append((tenant, session))
        pause()
        return dict.fromkeys(why, (1, 100))


def test_a_daemon_that_ends_does_not_wait_for_the_sessions_still_to_be_swept() -> None:
    cache = MuchToSweep()
    sweep = swept(cache)
    cache.stop = sweep.stop
    assert sweep.run() == 0
    assert 1 <= len(cache.left) <= 16, "one for each thread"
    assert not sweep.report().done
    left = len(cache.left)
    assert sweep.run() == 0
    assert len(cache.left) == left, "no other pass begins"


def test_each_thread_waits_for_a_share_of_its_own_work() -> None:
    now, slept = [0.0], list[tuple[str, float]]()
    pace = Pacer(
        0.5,
        clock=lambda: now[0],
        sleep=lambda s: slept.append((threading.current_thread().name, s)),
    )
    now[0] = 0.010
    other = threading.Thread(target=pace, name="other")  # it begins its work only now
    other.start()
    other.join()
    assert slept == []
    pace()
    assert slept == [(threading.current_thread().name, 0.005)]
