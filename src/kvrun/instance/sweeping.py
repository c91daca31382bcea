"""Finding what a stricter policy left misplaced, and taking it away.

A pass looks at every session: one at once, and more when no request is left that began under
another revision, which may place blocks by it, until two in a row find nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from kvrun.audit.decisions import BEYOND_BOUND
from kvrun.cache.events import Tier
from kvrun.cache.store import CacheStore
from kvrun.instance.basis import basis_in
from kvrun.instance.handles import Handle
from kvrun.instance.residency import Standing
from kvrun.policy.compile import Placement

_log = logging.getLogger(__name__)
_TIERS = (Tier.MEMORY, Tier.DISK, Tier.OBJECT)
SWEEP_REST = 0.02
"""The share of the processor's time that the daemon's sweep takes, for which it then waits."""
REST_WHILE_ASKED = 0.5
"""The same while requests look up blocks or read them."""
_AT_A_TIME = 16
"""Sessions: one leaves the index while the files of others are removed, and a device that is told
of every freed block keeps most of them waiting."""
_BATCH = 256
_CLEAN_PASSES = 2
_LEAST_WORK_S = 0.001
LONGEST_WAIT_S = 0.05


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What passes since the revision came into force took away, by tier: blocks and bytes."""

    revision: str
    passes: int
    done: bool
    sessions: int
    blocks: dict[str, int]
    size_bytes: dict[str, int]


class Decisions(Protocol):
    """What a sweep asks of the residency decisions in force."""

    @property
    def revision(self) -> str:
        """The revision in force."""

    @property
    def standing(self) -> Standing:
        """What the decisions rest on."""

    def placement(self, tenant_ref: str) -> Placement:
        """The decisions about a tenant."""


class Swept(Protocol):
    """What is swept: an instance."""

    @property
    def cache(self) -> CacheStore:
        """Where blocks are."""

    @property
    def residency(self) -> Decisions:
        """Where they may be."""

    @property
    def handles(self) -> Iterable[Handle]:
        """The requests that go on."""


class Pacer(threading.local):
    """Waits after work, for ``share`` of the processor's time that it took, each thread after its
    own: to have waited for a lock or a device is no work.

    Requests go first: while ``asked``, which counts what they ask for, moves on, the share is
    ``REST_WHILE_ASKED``. ``clock`` and ``sleep`` in seconds.
    """

    def __init__(
        self,
        share: float,
        *,
        asked: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._asked = asked
        self._clock = clock
        self._sleep = sleep
        self._since = clock()
        self._seen = asked()

    def __call__(self) -> None:
        """Wait, where there was enough work since the last time."""
        worked_s = self._clock() - self._since
        if worked_s < _LEAST_WORK_S:
            return
        seen, self._seen = self._seen, self._asked()
        share = self._share if seen == self._seen else REST_WHILE_ASKED
        self._sleep(min(worked_s * share, LONGEST_WAIT_S))
        self._since = self._clock()


class _StoppedError(Exception):
    """The daemon ends."""


class Sweep:
    """Passes over the cache of an instance; ``pause`` is called every few blocks and sessions."""

    def __init__(self, instance: Swept, pause: Callable[[], None] = lambda: None) -> None:
        self._instance = instance
        self._wait = pause
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._revision = instance.residency.revision
        self._clean_left = _CLEAN_PASSES
        self._passes = 0
        self._sessions = 0
        self._blocks: dict[str, int] = {}
        self._size_bytes: dict[str, int] = {}

    def begin(self) -> None:
        """The decisions changed: look at everything again."""
        with self._lock:
            self._revision = self._instance.residency.revision
            self._clean_left = _CLEAN_PASSES
            self._passes = self._sessions = 0
            self._blocks, self._size_bytes = {}, {}

    def stop(self) -> None:
        """The daemon ends: a pass that goes on ends at its next pause, and no other begins."""
        self._stopped.set()

    def run(self) -> int:
        """One pass, where one is due; the blocks that it took away, 0 where it was stopped.

        Without any policy nothing is used, and nothing is taken away either: other instances may
        use what is in Storage, and the policy that comes may allow it. What left before the daemon
        ended, and was not removed, is removed all the same.
        """
        try:
            return self._run()
        except _StoppedError:
            return 0

    def report(self) -> SweepReport:
        """What was taken away since the decisions changed last."""
        outgoing = self._instance.cache.levels().outgoing
        with self._lock:
            return SweepReport(
                revision=self._revision,
                passes=self._passes,
                done=not self._clean_left and not outgoing,
                sessions=self._sessions,
                blocks=dict(self._blocks),
                size_bytes=dict(self._size_bytes),
            )

    def _run(self) -> int:
        self._pause()
        self._instance.cache.remove_outgoing(self._pause)
        with self._lock:
            if self._instance.residency.standing is Standing.MISSING:
                self._clean_left = 0
            if not self._clean_left:
                return 0
            revision, passes = self._revision, self._passes
        if passes and self._is_mixed(revision):
            return 0
        refs = self._instance.cache.session_refs()
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="kvrun-sweep") as sweepers:
            by_session: list[int] = []
            for start in range(0, len(refs), _BATCH):
                by_session += sweepers.map(self._sweep, refs[start : start + _BATCH])
        sessions = sum(found > 0 for found in by_session)
        taken = sum(by_session) + sum(map(self._trim, {tenant for tenant, _ in refs}))
        with self._lock:
            if revision != self._revision:
                return taken  # begun anew meanwhile
            self._passes += 1
            self._sessions += sessions
            if taken:
                self._clean_left = _CLEAN_PASSES
            elif not self._is_mixed(revision) and self._sees_storage():
                self._clean_left -= 1
        if taken:
            _log.info("%d blocks were where revision %s does not allow them", taken, revision)
        return taken

    def _pause(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError
        self._wait()

    def _sweep(self, ref: tuple[str, str]) -> int:
        self._pause()
        placement = self._instance.residency.placement(ref[0])
        why = {tier: basis_in(placement, tier) for tier in _TIERS if not placement.allows(tier)}
        left = self._instance.cache.leave(*ref, why, self._pause) if why else {}
        taken = sum(self._count(placement, tier, *found) for tier, found in left.items())
        self._pause()
        return taken

    def _trim(self, tenant_ref: str) -> int:
        """Take away what a tenant has beyond ``max_bytes``."""
        self._pause()
        placement = self._instance.residency.placement(tenant_ref)
        taken = 0
        for tier in _TIERS:
            decision = placement.row[tier]
            if decision.allowed and decision.max_bytes is not None:
                basis = basis_in(placement, tier, BEYOND_BOUND)
                left = self._instance.cache.trim(tenant_ref, tier, basis, self._pause)
                taken += self._count(placement, tier, *left)
        return taken

    def _count(self, placement: Placement, tier: Tier, blocks: int, size_bytes: int) -> int:
        name = tier.name.lower()
        with self._lock:
            if blocks and placement.revision == self._revision:  # else begun anew meanwhile
                self._blocks[name] = self._blocks.get(name, 0) + blocks
                self._size_bytes[name] = self._size_bytes.get(name, 0) + size_bytes
        return blocks

    def _sees_storage(self) -> bool:
        """What is in a store that does not answer is looked for when it does again."""
        levels = self._instance.cache.levels()
        return levels.object_available or not levels.has_objects

    def _is_mixed(self, revision: str) -> bool:
        return any(handle.placement.revision != revision for handle in self._instance.handles)
