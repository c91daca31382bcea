"""The durable job of one erasure: one file, whole or as it was before, and checked when read.

A job names keys by their random ids and sessions by pseudonyms that die with their keys; no
tenant's or session's own id is in it. The file is one line of JSON after the line with its
SHA-256. Finished jobs stay: they are small, and they say which engine has not confirmed yet.
"""

import os
import re
from collections.abc import Iterator
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.durable import sync_folder
from kvrun.erasure.certificate import (
    ChildEntry,
    GpuEntry,
    RequestKind,
    RootEntry,
    StepEntry,
    TierEntry,
    VerificationEntry,
)
from kvrun.erasure.errors import ErasureError
from kvrun.keys.daemon_state import Pages

ID_BYTES = 12
_NAME = re.compile(r"([0-9a-f]{24})\.job")
_ID = re.compile(r"[0-9a-f]{24}")
_MAX_BYTES = 256 << 20


class JobFileError(ErasureError):
    """A job's file is damaged or cannot be written."""


class JobState(StrEnum):
    """How far a job has come; each state is reached once, in this order."""

    REQUESTED = "requested"
    TOMBSTONED = "tombstoned"
    """New opens and stores are refused, and the keys to destroy are written down."""
    DRAINED = "drained"
    """Running requests ended, nothing is in flight, their staging memory is zero."""
    DESTROYED = "destroyed"
    """Keys are gone from memory and slots, and the epoch key they were wrapped under too."""
    SCRUBBED = "scrubbed"
    """Engines evicted and zeroed the pages, or did not answer in time."""
    UNLINKED = "unlinked"
    """Ciphertext is gone from every tier."""
    PROVEN = "proven"
    """Opening was tried and failed."""
    CERTIFIED = "certified"


class ErasedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of the scope and what it made unreadable. Ids and references in hex.

    A tenant's own key has no ``session_ref``. ``owner`` is what the engine calls its pages.
    """

    key_id: str
    generation: int
    tenant_ref: str
    session_ref: str = ""
    owner: str = ""
    memory_blocks: int = 0
    memory_bytes: int = 0
    disk_blocks: int = 0
    disk_bytes: int = 0
    object_blocks: int = 0
    object_bytes: int = 0


class ToldDaemon(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another daemon of the deployment's key service that was told to let go of keys.

    ``name`` has its process id in it; ``started`` says which process of that id, "" where unknown;
    ``pages`` is what it said of its engines'; ``ended`` that its process did; ``asked_at`` (RFC
    3339) when it was last known to owe something.
    """

    name: str
    pid: int
    started: str = ""
    let_go: bool = False
    pages: Pages | None = None
    ended: bool = False
    asked_at: str = ""

    @property
    def confirmed(self) -> bool:
        """Whether it let go of keys, and its engines answered."""
        return self.let_go and self.pages is not None

    @property
    def is_open(self) -> bool:
        """Whether more may be heard of it."""
        return not self.ended and not (
            self.let_go and self.pages is not None and not self.pages.held
        )


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One erasure of one deployment. Times are seconds since 1970.

    ``orphans`` are (tenant_ref, session_ref) of ciphertext in the scope without a key; ``root_id``
    and ``epoch`` name the root and its live epoch key before; ``engines`` are the process ids of
    engines that were asked to scrub, ``gpu`` and ``unacknowledged`` what they answered; ``shared``
    says that other daemons could have the keys, ``daemons`` which were told; ``digest`` is the
    SHA-256 of the signed statement once it is in the ledger; ``addenda`` counts the certificates
    issued since; with ``children`` it certifies what became of a request in several deployments,
    and begins as proven.
    """

    id: str
    kind: RequestKind
    workspace: str
    deployment: str
    requester: str
    reference: str = ""
    legal_basis: str = ""
    requested_at: float
    commitments: list[str]
    state: JobState = JobState.REQUESTED
    steps: list[StepEntry] = []
    keys: list[ErasedKey] = []
    orphans: list[tuple[str, str]] = []
    root_id: str = ""
    epoch: int = 0
    engines: list[int] = []
    daemons: list[ToldDaemon] = []
    shared: bool = False
    in_ledger: bool = False
    root: RootEntry | None = None
    destroyed_at: float = 0.0
    tiers: list[TierEntry] = []
    gpu: GpuEntry = GpuEntry()
    unacknowledged: list[str] = []
    notes: list[str] = []
    checks: list[VerificationEntry] = []
    digest: str = ""
    addenda: int = 0
    children: list[ChildEntry] = []

    @property
    def sessions(self) -> list[ErasedKey]:
        """The keys of sessions, without tenants' own."""
        return [key for key in self.keys if key.session_ref or key.generation]

    @property
    def unconfirmed(self) -> list[str]:
        """Engines and daemons that have not confirmed, and since when that is known."""
        return [
            *self.unacknowledged,
            *(
                _unconfirmed(daemon)
                for daemon in self.daemons
                if not daemon.ended and not daemon.confirmed
            ),
        ]

    @property
    def pages(self) -> GpuEntry:
        """Of this daemon's engines and of the others'."""
        said = [daemon.pages for daemon in self.daemons if daemon.pages is not None]
        held = sum(d.pages.held for d in self.daemons if d.pages is not None and not d.ended)
        return GpuEntry(
            evicted=self.gpu.evicted + sum(pages.evicted for pages in said),
            scrubbed=self.gpu.scrubbed + sum(pages.scrubbed for pages in said),
            held=self.gpu.held + held,
        )

    @property
    def remarks(self) -> list[str]:
        """What the erasure does not cover, beside what its class says."""
        found = list(self.notes)
        for daemon in self.daemons:
            found += daemon.pages.notes if daemon.pages is not None else []
            if daemon.ended and (daemon.pages is None or daemon.pages.held):
                found.append(
                    f"Engine memory behind the daemon {daemon.name}: it ended before it said that"
                    " its engines zeroed the pages."
                )
        return list(dict.fromkeys(found))


def _unconfirmed(daemon: ToldDaemon) -> str:
    what, end = ("", "") if daemon.let_go else ("keys and ", "; it may not use the keys any more")
    since = f"not confirmed at {daemon.asked_at}"
    return f"daemon {daemon.name}: {what}pages in engine memory {since}{end}"


class JobStore:
    """The jobs in ``folder`` (0700, made when missing). One process at a time may write."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise JobFileError(
                f"the folder of erasure jobs {folder} cannot be made: {error.strerror}"
            ) from error
        self._folder = folder

    def save(self, job: Job) -> None:
        """Write the job durably in place of what was there. Raises JobFileError."""
        body = msgspec.json.encode(job) + b"\n"
        path = self._folder / f"{job.id}.job"
        temporary = path.with_suffix(".new")
        try:
            temporary.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(sha256(body).hexdigest().encode() + b"\n" + body)
                file.flush()
                os.fsync(file.fileno())
            new = not path.exists()
            temporary.replace(path)
            if new:
                # Later the name is there, and an earlier state in its place only repeats steps.
                sync_folder(self._folder)
        except OSError as error:
            raise JobFileError(
                f"the erasure job {path} cannot be written: {error.strerror}",
                hint="free some space and ask again",
            ) from error

    def load(self, job_id: str) -> Job | None:
        """The job of that id, if there is one. Raises JobFileError for a damaged file."""
        if not _ID.fullmatch(job_id):
            return None
        path = self._folder / f"{job_id}.job"
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JobFileError(f"{path} cannot be read: {error.strerror}") from error
        head, _, body = data.partition(b"\n")
        if len(data) > _MAX_BYTES or sha256(body).hexdigest().encode() != head:
            raise JobFileError(
                f"the erasure job {path} is damaged",
                hint="What it was about may not be erased. Ask again, then remove the file.",
            )
        try:
            job = msgspec.json.decode(body, type=Job)
        except msgspec.MsgspecError as error:
            raise JobFileError(f"the erasure job {path} is malformed: {error}") from None
        if job.id != job_id:
            raise JobFileError(f"{path} holds the job {job.id[:40]!r}")
        return job

    def jobs(self) -> Iterator[Job]:
        """Every job. Raises JobFileError for a damaged file."""
        for path in sorted(self._folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            job = self.load(match[1]) if match else None
            if job is not None:
                yield job
