"""What a deployment's page shows of its audit log: verdict, records, segments, collecting now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import msgspec

from kvrun.audit.checkpoint import parse_checkpoint
from kvrun.audit.errors import AuditError
from kvrun.audit.note import parse_note
from kvrun.audit.reading import LogFolder
from kvrun.audit.record import MAX_COUNT, format_time
from kvrun.config import KvrunConfig
from kvrun.control.collected import CollectedLog
from kvrun.control.plane import ControlPlane
from kvrun.control.remembered import RememberedLog
from kvrun.control.rounds import RoundReport, run_round
from kvrun.deployments.errors import DeploymentNotFoundError
from kvrun.deployments.record_pages import Part, RecordFilter, RecordPage, page_of
from kvrun.deployments.service import Deployments
from kvrun.deployments.stored_segment import CheckedSegments
from kvrun.engines.checked import produces_log, recorded
from kvrun.errors import KvrunError
from kvrun.launch.admin import ask_daemon
from kvrun.launch.counters import read_sample
from kvrun.storage import Storage

__all__ = ["AuditView", "AuditViews", "Banner", "RecordFilter", "RecordPage", "SegmentRow"]

MAX_RECORDS = 500
_TIMEOUT_S = 5.0
_NAME = re.compile(r"[A-Za-z0-9@._-]{1,100}")
_SEGMENT = re.compile(r"segment-(\d{16})\.jsonl")


@dataclass(frozen=True, slots=True)
class Banner:
    """The verdict on one log. ``newer_records`` is None where the instance cannot be asked.

    ``witnesses`` says up to which record each confirmed the log; none means that nobody else
    remembers it; ``behind`` are those, of the ones that are set, which have not confirmed all of
    it. ``alert`` is the id of the alert that stops its collection, ``waiting`` counts all that
    nobody has acknowledged.
    """

    log: str
    verified_up_to: int
    at: float
    newer_records: int | None
    key_id: str
    witnesses: Mapping[str, int]
    alert: str = ""
    retired: str = ""
    waiting: int = 0
    behind: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the log may not be all right, as far as it was verified."""
        found = []
        if self.waiting and not self.alert:
            found.append(f"alerts of it that wait: {self.waiting}")
        if self.newer_records is None and not self.retired:
            found.append("the instance cannot be asked whether there are newer records")
        found += [f"{name} has not confirmed all of it" for name in self.behind]
        return tuple(found)

    @property
    def text(self) -> str:
        """The banner as a sentence."""
        said = f"verified up to record {self.verified_up_to} at {format_time(self.at)[:19]}Z"
        if self.alert:
            said += f"; collection is stopped by alert {self.alert}"
        elif self.retired:
            said += f"; retired: {self.retired}"
        elif self.newer_records:
            said += f"; {self.newer_records} newer records not collected yet"
        said = "; ".join((said, *self.doubts))
        seen = ", ".join(f"{name} up to {size}" for name, size in sorted(self.witnesses.items()))
        return f"{said}; witness: {seen or 'none'}"


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A file of a collected log that can be downloaded; ``first`` is a segment's first record."""

    log: str
    name: str
    first: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AuditView:
    """The tab about the log. ``produces`` says what the engine can and cannot produce."""

    banners: tuple[Banner, ...]
    segments: tuple[SegmentRow, ...]
    produces: str
    collectable: bool
    witness_names: tuple[str, ...]


class AuditViews:
    """Reads collected logs. Verified when they were collected; what Storage holds is checked anew
    before it is shown."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments
        self._segments = CheckedSegments()

    def audit(self, deployment_id: str) -> AuditView:
        """Verdicts, and the files that were collected. Raises StorageError."""
        deployment = self._deployments.get(deployment_id)
        plane = self._plane(deployment_id)
        logs = sorted(plane.memory.all(), key=lambda item: -item.collected_at)
        written = None if deployment.read_only else _written(plane.config)
        collectable = produces_log(deployment.spec.engine)
        return AuditView(
            banners=tuple(_banner(item, plane, written) for item in logs),
            segments=tuple(row for item in logs for row in _files(plane.storage(), item)),
            produces=_what_it_produces(deployment.spec.engine),
            collectable=collectable,
            witness_names=tuple(plane.config.witness.names),
        )

    def records(
        self,
        deployment_id: str,
        wanted: RecordFilter | None = None,
        cursor: str = "",
        *,
        log: str = "",
        limit: int = 100,
    ) -> RecordPage:
        """Collected records of a log (the one collected last, unless named), newest first.

        Raises DeploymentNotFoundError for a log or cursor that is none, StoredAlteredError,
        StorageError.
        """
        plane = self._plane(deployment_id)
        item = _log(plane, log)
        if item is None:
            return RecordPage((), "")
        before = item.seen.size
        if cursor:
            if not (cursor.isascii() and cursor.isdigit()) or int(cursor[:20]) > MAX_COUNT:
                raise DeploymentNotFoundError(f"{cursor[:40]!r} is no place in a log")
            before = min(before, int(cursor))
        parts = self._parts(plane, item)
        if not parts:
            return RecordPage((), "")
        return page_of(parts, before, wanted or RecordFilter(), max(1, min(limit, MAX_RECORDS)))

    def collect_now(self, deployment_id: str) -> RoundReport:
        """Collect, verify and store what is new, and say what came of it. Raises KvrunError."""
        plane = self._plane(deployment_id)
        return run_round(plane, reason="on_demand", count=lambda: read_sample(plane.config))

    def segment(self, deployment_id: str, name: str, *, log: str = "") -> bytes:
        """One file of a collected log, as ``audit`` lists them.

        Raises DeploymentNotFoundError, StoredAlteredError, ObjectMissingError or StorageError.
        """
        plane = self._plane(deployment_id)
        item = _log(plane, log)
        if item is None or not _NAME.fullmatch(name):
            raise DeploymentNotFoundError(f"the log has no file {name[:80]!r}")
        storage = plane.storage()
        segment = _SEGMENT.fullmatch(name)
        if segment is not None:
            return self._segments.read(storage, plane.config.layout, item, int(segment[1]))
        return storage.get(f"{CollectedLog.of(storage, item).folder}/{name}")

    def _parts(self, plane: ControlPlane, item: RememberedLog) -> list[Part]:
        """The segments in Storage and the tail that is not there yet, in rising order."""
        storage = plane.storage()
        parts = [
            self._stored_part(storage, plane, item, row.first, row.size_bytes)
            for row in _files(storage, item)
            if row.first is not None and row.first < item.stored.size
        ]
        if item.tail_bytes and item.seen.size > item.stored.size:
            tail = plane.memory.tail(item.log)

            def read(offset: int, size_bytes: int) -> bytes:
                with tail.open("rb") as file:
                    file.seek(offset)
                    return file.read(min(size_bytes, item.tail_bytes - offset))

            parts.append(Part(item.stored.size, item.tail_bytes, read))
        return parts

    def _stored_part(
        self, storage: Storage, plane: ControlPlane, item: RememberedLog, first: int, size: int
    ) -> Part:
        @cache
        def whole() -> bytes:
            return self._segments.read(storage, plane.config.layout, item, first)

        return Part(first, size, lambda offset, count: whole()[offset : offset + count])

    def _plane(self, deployment_id: str) -> ControlPlane:
        return ControlPlane(self._deployments.config_of(deployment_id))


def _log(plane: ControlPlane, log: str) -> RememberedLog | None:
    found = [item for item in plane.memory.all() if log in ("", item.log)]
    if log and not found:
        raise DeploymentNotFoundError(f"no log {log[:200]!r} was collected here")
    return max(found, key=lambda item: item.collected_at, default=None)


def _banner(item: RememberedLog, plane: ControlPlane, written: int | None) -> Banner:
    current = item.source == str(plane.config.layout.audit)
    waiting = [
        alert
        for alert in plane.alerts.all()
        if alert.log == item.log and alert.acknowledged_at is None
    ]
    behind = [name for name, size in sorted(item.witnesses.items()) if size < item.seen.size]
    if item.witnesses and len(item.witnesses) < len(plane.config.witness.names):
        behind.append("another witness that is set")
    newer = None
    if written is not None and current:
        newer = max(0, written - item.seen.size)
    return Banner(
        log=item.log,
        verified_up_to=item.seen.size,
        at=item.collected_at,
        newer_records=newer,
        key_id=item.verifier_key.key_id.hex(),
        witnesses=dict(item.witnesses),
        alert=item.alert,
        retired=item.retired,
        waiting=len(waiting),
        behind=tuple(behind),
    )


class _Status(msgspec.Struct):
    audit_records: int


def _written(config: KvrunConfig) -> int | None:
    """How many records there are by the daemon's word, or by the checkpoint that it left."""
    try:
        answer = ask_daemon(config, "status", timeout_s=_TIMEOUT_S)
        return msgspec.json.decode(answer, type=_Status).audit_records
    except (KvrunError, OSError, msgspec.MsgspecError):
        pass
    try:
        note = LogFolder(config.layout.audit).checkpoint()
        return parse_checkpoint(parse_note(note).text).size if note else None
    except AuditError:
        return None


def _files(storage: Storage, item: RememberedLog) -> list[SegmentRow]:
    folder = CollectedLog.of(storage, item).folder
    rows = []
    for found in storage.list(folder):
        name = found.name.rpartition("/")[2]
        match = _SEGMENT.fullmatch(name)
        first = int(match[1]) if match else None
        rows.append(SegmentRow(item.log, name, first, found.size_bytes))
    return sorted(rows, key=lambda row: row.name)


def _what_it_produces(engine: str) -> str:
    """What an engine's recorded checks allow to say of it."""
    record = recorded(engine)
    said = _PRODUCES if produces_log(engine) else _PRODUCES_NOT
    return said if record is None else f"{said} Checked with {record.summary}"


_PRODUCES = (
    "This engine produces the collectable, hash-chained log: what it sealed, opened, reused, "
    "evicted, persisted and restored, per tenant, can be downloaded here and from Storage."
)
_PRODUCES_NOT = (
    "This engine records cache statistics on the instance, but cannot produce the collectable log. "
    "Redeploy on vLLM if you need the paper trail."
)
