"""Where fine-tunes lie: a folder each, the jobs under way, and records that outlive them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from kvrun.durable import replace_private_file
from kvrun.filelock import FileTakenError, hold_file, is_held
from kvrun.finetune.errors import (
    FineTuneBusyError,
    FineTuneError,
    FineTuneMissingError,
)
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    STATEMENT_NAME,
    Evaluation,
    FolderCheck,
    check_folder,
    decode_evaluation,
)
from kvrun.finetune.training import Plan
from kvrun.keys.signing import PublicKeyRecord

ADAPTER = "adapter"
_JOBS, _RECORDS, _GIVEN = ".jobs", ".records", ".given"
_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class JobNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job was asked for, and how far it has come. Paths are absolute."""

    id: str
    name: str
    base: str
    data: str
    data_sha256: str
    eval_data: str = ""
    eval_sha256: str = ""
    plan: Plan
    tasks_folder: str = ""
    tasks: tuple[str, ...] = ()
    tasks_sha256: str = ""
    started_at: str
    state: str = "running"
    step: int = 0
    steps: int = 0
    loss: float | None = None
    what: str = ""
    said: str = ""


class RecordNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a fine-tune beside its evaluation. ``deleted_at`` is empty while it lives."""

    id: str
    name: str
    deleted_at: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """One evaluation on record, its signed statement, and whether its weights still exist."""

    note: RecordNote
    evaluation: Evaluation
    evaluation_bytes: bytes
    statement_bytes: bytes


@dataclass(frozen=True, slots=True)
class JobView:
    """A job that is not done: ``running`` tells whether a process works on it now."""

    note: JobNote
    running: bool


class FineTunes:
    """The fine-tunes below one folder; it is made when the first one is."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        """Where the fine-tune of that name is, or would be. Raises FineTuneError for a bad name."""
        if not _NAME.fullmatch(name):
            raise FineTuneError(
                f"{name[:80]!r} is no name; allowed are 1 to 63 letters, digits, . _ -"
            )
        return self.root / name

    def existing(self, name: str) -> Path:
        """Where it is. Raises FineTuneMissingError."""
        folder = self.folder(name)
        if not folder.is_dir():
            raise FineTuneMissingError(
                f"there is no fine-tune {name!r} in {self.root}",
                hint="`kvrun finetune list` shows those that there are.",
            )
        return folder

    def names(self) -> list[str]:
        """Those whose weights exist, by name."""
        if not self.root.is_dir():
            return []
        return sorted(
            path.name for path in self.root.iterdir() if path.is_dir() and path.name[0] != "."
        )

    def check(self, name: str, known: Sequence[PublicKeyRecord]) -> FolderCheck:
        """Whether its evaluation holds; every byte of the weights is read."""
        return check_folder(self.existing(name), known)

    def job_folder(self, name: str) -> Path:
        """Where the job of that name keeps its notes and its checkpoint."""
        return self.root / _JOBS / self.folder(name).name

    def given_folder(self, name: str) -> Path:
        """Where examples are kept that were handed over with a job, for as long as it lasts."""
        return self.root / _GIVEN / self.folder(name).name

    @contextmanager
    def working(self, name: str) -> Iterator[Path]:
        """Be the one process that works on a name; its job's folder. Raises FineTuneBusyError."""
        job = self.job_folder(name)
        for folder in (self.root, job.parent, job):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            held = hold_file(job / "lock", str(os.getpid()))
        except FileTakenError as error:
            raise FineTuneBusyError(
                f"process {error.holder or '?'} works on the fine-tune {name!r}",
                hint=f"`kvrun finetune cancel {name}` asks it to stop.",
            ) from None
        try:
            yield job
        finally:
            os.close(held)

    def jobs(self) -> list[JobView]:
        """Jobs that are not done."""
        return [
            JobView(note, self._is_running(path.parent))
            for path in sorted((self.root / _JOBS).glob("*/job.json"))
            if (note := _decoded(path, JobNote)) is not None
        ]

    def job(self, name: str) -> JobNote:
        """What a job was asked for. Raises FineTuneMissingError."""
        note = _decoded(self.job_folder(name) / "job.json", JobNote)
        if note is None:
            raise FineTuneMissingError(
                f"there is no unfinished job {name!r}",
                hint="`kvrun finetune list` shows those that there are.",
            )
        return note

    def cancel(self, name: str) -> bool:
        """Ask the process that works on it to stop; False where none does."""
        self.job(name)
        job = self.job_folder(name)
        if not self._is_running(job):
            return False
        (job / "cancel").touch(mode=0o600)
        return True

    def note_job(self, job: Path, note: JobNote) -> None:
        """Write down how far a job is."""
        replace_private_file(job / "job.json", msgspec.json.encode(note))

    def keep(self, folder: Path, evaluation: Evaluation) -> None:
        """Put the evaluation of a finished folder on record."""
        record = self.root / _RECORDS / evaluation.id
        record.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (EVALUATION_NAME, STATEMENT_NAME):
            replace_private_file(record / name, (folder / name).read_bytes())
        note = RecordNote(id=evaluation.id, name=evaluation.name)
        replace_private_file(record / "record.json", msgspec.json.encode(note))

    def records(self) -> list[Kept]:
        """Every evaluation on record, the last one first; those of deleted fine-tunes too."""
        found = []
        for path in (self.root / _RECORDS).glob("*/record.json"):
            note = _decoded(path, RecordNote)
            if note is None:
                continue
            try:
                data = (path.parent / EVALUATION_NAME).read_bytes()
                statement = (path.parent / STATEMENT_NAME).read_bytes()
            except OSError as error:
                raise FineTuneError(f"the record {path.parent} is damaged: {error}") from None
            found.append(Kept(note, decode_evaluation(data), data, statement))
        return sorted(found, key=lambda kept: kept.evaluation.evaluated_at, reverse=True)

    def delete(self, name: str, deleted_at: str) -> bool:
        """Delete weights, adapter and an unfinished job; whether there were weights.

        The evaluation stays on record. Raises FineTuneMissingError, FineTuneBusyError.
        """
        folder = self.folder(name)
        if not folder.is_dir() and not self.job_folder(name).is_dir():
            self.existing(name)
        with self.working(name) as job:
            had = folder.is_dir()
            if had:
                for kept in self.records():
                    if kept.note.name == name and not kept.note.deleted_at:
                        gone = msgspec.structs.replace(kept.note, deleted_at=deleted_at)
                        path = self.root / _RECORDS / kept.note.id / "record.json"
                        replace_private_file(path, msgspec.json.encode(gone))
                aside = folder.with_name(f".{name}.removed")
                shutil.rmtree(aside, ignore_errors=True)
                folder.rename(aside)
                shutil.rmtree(aside)
            shutil.rmtree(job)
            shutil.rmtree(self.given_folder(name), ignore_errors=True)
        return had

    def _is_running(self, job: Path) -> bool:
        try:
            descriptor = os.open(job / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return is_held(descriptor)
        finally:
            os.close(descriptor)


def _decoded(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
