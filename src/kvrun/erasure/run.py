"""Running an erasure: each step once in order, and again from where it stopped after a crash.

Every step may be cut short and run again: it first looks at what is already done. A step that
fails leaves the job at the state before it; a disk that takes no job file does not keep keys
alive, since everything up to their destruction goes on without it.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from kvrun.audit.record import format_time
from kvrun.erasure.certificate import StepEntry
from kvrun.erasure.job import Job, JobFileError, JobState


class ErasureSteps(Protocol):
    """What a deployment does at each step; all take the job and give it back with what they did."""

    def tombstone(self, job: Job) -> Job:
        """Refuse new opens and stores of the scope, and write its keys into the job."""
        ...

    def drain(self, job: Job) -> Job:
        """End the scope's requests, let loads and stores in flight run out, zero their staging."""
        ...

    def destroy(self, job: Job) -> Job:
        """Destroy the job's keys everywhere, and the epoch key they were wrapped under."""
        ...

    def scrub(self, job: Job) -> Job:
        """Have engines evict and zero the scope's pages; name those that did not confirm."""
        ...

    def unlink(self, job: Job) -> Job:
        """Remove the scope's ciphertext from every tier."""
        ...

    def prove(self, job: Job) -> Job:
        """Try to open; raises ErasureError if anything still does."""
        ...

    def certify(self, job: Job) -> Job:
        """Sign, log and store the certificate; a job that has one keeps it."""
        ...


def run_job(
    job: Job,
    steps: ErasureSteps,
    *,
    save: Callable[[Job], None],
    now: Callable[[], float],
) -> Job:
    """Bring a job to ``certified`` from wherever it is. ``now`` in seconds since 1970.

    Raises whatever a step raises, and JobFileError when the job could not be written down by the
    time its keys were gone; the job can be run again then.
    """
    unwritten: JobFileError | None = None
    order = list(JobState)
    for state, step in _steps(steps):
        if order.index(job.state) >= order.index(state):
            continue
        if unwritten is not None and state is JobState.SCRUBBED:
            save(job)
            unwritten = None
        job = step(job)
        entry = StepEntry(name=state.value, at=format_time(now()))
        job = msgspec.structs.replace(job, state=state, steps=[*job.steps, entry])
        if state not in _WRITTEN:
            continue
        try:
            save(job)
            unwritten = None
        except JobFileError as error:
            if state not in _UP_TO_DESTRUCTION:
                raise
            unwritten = error
    return job


def _steps(steps: ErasureSteps) -> list[tuple[JobState, Callable[[Job], Job]]]:
    return [
        (JobState.TOMBSTONED, steps.tombstone),
        (JobState.DRAINED, steps.drain),
        (JobState.DESTROYED, steps.destroy),
        (JobState.SCRUBBED, steps.scrub),
        (JobState.UNLINKED, steps.unlink),
        (JobState.PROVEN, steps.prove),
        (JobState.CERTIFIED, steps.certify),
    ]


# What a restart must know; it repeats the steps between.
_WRITTEN = (JobState.TOMBSTONED, JobState.DESTROYED, JobState.PROVEN, JobState.CERTIFIED)
_UP_TO_DESTRUCTION = (JobState.TOMBSTONED, JobState.DRAINED, JobState.DESTROYED)
