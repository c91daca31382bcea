"""Certificates that follow when somebody confirms who had not when the first was issued."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import msgspec

from kvrun.audit.record import format_time
from kvrun.erasure.certificate import GpuEntry
from kvrun.erasure.job import Job, JobState, JobStore
from kvrun.erasure.targets import ScrubOutcome
from kvrun.instance.erasing import (
    ErasureParts,
    InstanceSteps,
    process_runs,
    scrub_call,
    scrubbed_pages,
)
from kvrun.instance.erasing_daemons import looked
from kvrun.keys.errors import KeysError

_replace = msgspec.structs.replace
_log = logging.getLogger(__name__)


class Addenda:
    """Of engines when they answer, of other daemons when they are asked. Thread-safe."""

    def __init__(self, parts: ErasureParts, jobs: JobStore) -> None:
        self._parts = parts
        self._jobs = jobs
        self._lock = threading.RLock()
        self._early: dict[int, ScrubOutcome] = {}
        # Erasures of which other daemons have something to confirm, by id.
        self._open: dict[str, Job] = {}

    def found(self, job: Job) -> None:
        """A job of before the daemon was started: what it waited for is waited for again."""
        if job.unacknowledged or job.gpu.held:
            self._expect(job)
        if job.state is JobState.CERTIFIED:
            self._follow(job)

    def certified(self, job: Job) -> None:
        """What engines confirmed before it was certified is in an addendum."""
        with self._lock:
            self._follow(job)
            early = self._early.pop(scrub_call(job), None)
            if early is not None:
                self.acknowledged(scrub_call(job), early)

    def acknowledged(self, call: int, outcome: ScrubOutcome) -> None:
        """An engine confirmed after the deadline: an addendum says so."""
        with self._lock:
            for job in self._jobs.jobs():
                if scrub_call(job) != call:
                    continue
                if job.state is not JobState.CERTIFIED:
                    self._early[call] = outcome
                    continue
                gpu = GpuEntry(
                    evicted=outcome.evicted, scrubbed=outcome.scrubbed, held=outcome.held
                )
                if gpu == job.gpu and _who(outcome.unacknowledged) == _who(job.unacknowledged):
                    continue
                self._issue(_replace(job, gpu=gpu, unacknowledged=list(outcome.unacknowledged)))

    def follow_up(self) -> int:
        """Ask what other daemons confirmed since; of how many erasures something is left.

        Call it every now and then.
        """
        with self._lock:
            waiting = list(self._open.values())
        for before in waiting:
            try:
                daemons = looked(
                    self._parts.instance.keys.selection, before, format_time(self._parts.now())
                )
            except KeysError as error:
                _log.debug("other daemons of the key service are not known: %s", error.message)
                break
            with self._lock:
                job = self._jobs.load(before.id)
                if job is None:
                    del self._open[before.id]
                    continue
                later = _replace(job, daemons=daemons)
                if _shown(later) != _shown(job):
                    later = self._issue(later)
                self._follow(later)
        return len(self._open)

    def _issue(self, job: Job) -> Job:
        job = _replace(job, addenda=job.addenda + 1)
        name = f"{job.id}-{job.addenda}"
        issued = InstanceSteps(self._parts, None).issue(job, name, self._parts.now())
        self._jobs.save(issued)
        return issued

    def _follow(self, job: Job) -> None:
        with self._lock:
            if any(daemon.is_open for daemon in job.daemons):
                self._open[job.id] = job
            else:
                self._open.pop(job.id, None)

    def _expect(self, job: Job) -> None:
        alive = [pid for pid in job.engines if process_runs(pid)]
        if alive:
            owners, everything = scrubbed_pages(self._parts, job)
            self._parts.scrubber.expect(
                scrub_call(job),
                owners,
                alive,
                everything=everything,
                before=ScrubOutcome(job.gpu.evicted, job.gpu.scrubbed),
            )
        elif job.state is JobState.CERTIFIED:
            # Those engines ended, and their memory with them.
            outcome = ScrubOutcome(job.gpu.evicted, job.gpu.scrubbed)
            self.acknowledged(scrub_call(job), outcome)


def _who(unacknowledged: Sequence[str]) -> set[str]:
    """Who they are, without since when."""
    return {name.partition(":")[0] for name in unacknowledged}


def _shown(job: Job) -> tuple[GpuEntry, set[str], list[str]]:
    """What a certificate shows of the job that may change."""
    return job.pages, _who(job.unconfirmed), job.remarks
