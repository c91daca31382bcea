"""Bundles that a control plane makes for people: one at a time, in a thread, kept for a while.

A job's folder holds ``job.json``, what is staged of it, and in the end the bundle. The same request
has the same id, so one that was cut short goes on when it is asked for again.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError
from kvrun.evidence.errors import EvidenceBusyError, EvidenceNotFoundError
from kvrun.evidence.export import Request, Step, export_bundle
from kvrun.evidence.scope import Scope

KEPT_S = 7 * 86_400.0
MAX_KEPT = 50
_ID = re.compile(r"[0-9a-f]{16}")
_JOB, _BUNDLE, _PARTS = "job.json", "evidence.zip", "parts"
_log = logging.getLogger(__name__)


class JobState(StrEnum):
    """How far a bundle is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """The control plane ended meanwhile: asked for again, it goes on."""


class EvidenceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One bundle. Times in seconds since 1970; ``deployment_id`` "": of the whole workspace."""

    id: str
    workspace_id: str
    deployment_id: str
    since: str
    until: str
    sample: int
    seed: str
    full: bool
    asked_by: str
    asked_at: float
    state: JobState = JobState.RUNNING
    what: str = ""
    done: int = 0
    steps: int = 0
    error: str = ""
    hint: str = ""
    size_bytes: int = 0
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Who wants which bundle."""

    workspace_id: str
    deployment_id: str
    request: Request
    by: str

    @property
    def id(self) -> str:
        """The same for the same bundle."""
        whole = (self.workspace_id, self.deployment_id, repr(self.request))
        return sha256("\n".join(whole).encode()).hexdigest()[:16]


class EvidenceJobs:
    """The bundles below ``folder``. Thread-safe; ``now`` in seconds since 1970."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self._folder, self._now = folder, now
        self._lock = threading.Lock()
        self._running: EvidenceJob | None = None
        self._thread: threading.Thread | None = None

    def start(self, asked: Asked, scope: Callable[[], Scope]) -> EvidenceJob:
        """Begin to make it anew, or go on with it; the job that is under way when it is this one.

        Raises EvidenceBusyError while another one is made.
        """
        request, period = asked.request, asked.request.period
        job = EvidenceJob(
            id=asked.id,
            workspace_id=asked.workspace_id,
            deployment_id=asked.deployment_id,
            since=period.since,
            until=period.until,
            sample=request.sample,
            seed=request.seed,
            full=request.full,
            asked_by=asked.by,
            asked_at=self._now(),
            what="waiting",
        )
        with self._lock:
            if self._running is not None:
                if self._running.id == job.id:
                    return self._running
                raise EvidenceBusyError(
                    "other evidence is being made", hint="Try again when it is done."
                )
            self._forget()
            place = self._folder / job.id
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            (place / _BUNDLE).unlink(missing_ok=True)
            self._running = job
            self._save(job)
            self._thread = threading.Thread(
                target=self._make, args=(job, request, scope), name="evidence", daemon=True
            )
            self._thread.start()
        return job

    def get(self, job_id: str) -> EvidenceJob:
        """One of them. Raises EvidenceNotFoundError."""
        with self._lock:
            found = self._get(job_id)
        if found is None:
            raise EvidenceNotFoundError("there is no such evidence")
        return found

    def of(self, workspace_id: str, deployment_id: str | None = None) -> list[EvidenceJob]:
        """A workspace's, or a deployment's alone; the newest first."""
        with self._lock:
            found = [
                job
                for job in self._all()
                if job.workspace_id == workspace_id and deployment_id in (None, job.deployment_id)
            ]
        return sorted(found, key=lambda job: -job.asked_at)

    def bundle(self, job_id: str) -> Path:
        """The file of one that is done. Raises EvidenceNotFoundError."""
        job = self.get(job_id)
        path = self._folder / job.id / _BUNDLE
        if job.state is not JobState.DONE or not path.is_file():
            raise EvidenceNotFoundError(
                "the evidence is not made yet", hint="Its state says how far it is."
            )
        return path

    def wait(self, timeout_s: float) -> None:
        """Until what is under way has ended."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _make(self, job: EvidenceJob, request: Request, scope: Callable[[], Scope]) -> None:
        place = self._folder / job.id

        def show(step: Step) -> None:
            with self._lock:
                self._running = msgspec.structs.replace(
                    job, what=step.what, done=step.done, steps=step.steps
                )

        try:
            path = export_bundle(
                scope(),
                request,
                place / _BUNDLE,
                now=self._now,
                on_step=show,
                folder=place / _PARTS,
            )
            ended = msgspec.structs.replace(
                job, state=JobState.DONE, what="done", size_bytes=path.stat().st_size
            )
        except KvrunError as error:
            ended = msgspec.structs.replace(
                job, state=JobState.FAILED, error=error.message, hint=error.hint or ""
            )
        except Exception:
            _log.exception("the evidence %s could not be made", job.id)
            ended = msgspec.structs.replace(
                job, state=JobState.FAILED, error="the control plane failed; its log says why"
            )
        with self._lock:
            self._save(msgspec.structs.replace(ended, ended_at=self._now()))
            self._running = None

    def _all(self) -> Iterator[EvidenceJob]:
        for path in self._folder.glob(f"*/{_JOB}") if self._folder.is_dir() else ():
            found = self._get(path.parent.name)
            if found is not None:
                yield found

    def _get(self, job_id: str) -> EvidenceJob | None:
        if not _ID.fullmatch(job_id):
            return None
        if self._running is not None and self._running.id == job_id:
            return self._running
        try:
            data = (self._folder / job_id / _JOB).read_bytes()
            job = msgspec.json.decode(data, type=EvidenceJob)
        except (OSError, msgspec.MsgspecError):
            return None
        if job.state is JobState.RUNNING:
            return msgspec.structs.replace(job, state=JobState.INTERRUPTED)
        return job

    def _forget(self) -> None:
        """Old bundles go: the same request makes them again."""
        kept = sorted(self._all(), key=lambda job: -job.asked_at)
        for number, job in enumerate(kept):
            if number >= MAX_KEPT or self._now() - job.asked_at > KEPT_S:
                shutil.rmtree(self._folder / job.id, ignore_errors=True)

    def _save(self, job: EvidenceJob) -> None:
        replace_private_file(self._folder / job.id / _JOB, msgspec.json.encode(job))
