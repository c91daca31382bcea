"""A collected log read backwards, page by page: newest first, a bounded look-up at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kvrun.audit.errors import AuditRecordError
from kvrun.audit.record import MAX_LINE_BYTES, Record, decode_record, format_time

CHUNK_BYTES = 256 * 1024
MAX_READ_BYTES = 16 * 2**20
"""What one look-up reads at most: a filter that finds nothing must not read the whole log."""
CLOCK_SLACK_S = 3600.0
"""A clock may have been set back: so much earlier a record may stand after a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Which records are wanted; empty means any. Times in seconds since 1970."""

    event: str = ""
    outcome: str = ""
    tenant_ref: str = ""
    session_ref: str = ""
    request_id: str = ""
    since: float | None = None
    until: float | None = None

    def marks(self) -> tuple[bytes, ...]:
        """What every line of a wanted record has in it: the others need not be decoded."""
        return tuple(
            f'"{name}":'.encode() + msgspec.json.encode(value)
            for name, value in (
                ("event", self.event),
                ("outcome", self.outcome),
                ("tenant_ref", self.tenant_ref),
                ("session_ref", self.session_ref),
                ("request_id", self.request_id),
            )
            if value
        )

    def wants(self, record: Record) -> bool:
        """Whether a record is one of them."""
        if self.since is not None and record.ts < format_time(self.since):
            return False
        if self.until is not None and record.ts >= format_time(self.until):
            return False
        return all(
            wanted in ("", found)
            for wanted, found in (
                (self.event, record.event.value),
                (self.outcome, record.outcome.value),
                (self.tenant_ref, record.tenant_ref),
                (self.session_ref, record.session_ref),
                (self.request_id, record.request_id),
            )
        )


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records, newest first. ``cursor`` goes on with older ones; empty at the log's beginning.

    A page may be short, or empty, and still have a cursor: a look-up reads so much at a time.
    """

    records: tuple[Record, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class Part:
    """A run of whole lines, such as a segment: its first record, its size, how to read it."""

    first: int
    size_bytes: int
    read: Callable[[int, int], bytes]


def page_of(parts: Sequence[Part], before: int, wanted: RecordFilter, limit: int) -> RecordPage:
    """The newest ``limit`` wanted records with a number below ``before``.

    ``parts`` are in rising order. Raises AuditRecordError for a line that is no record.
    """
    found: list[Record] = []
    read, marks = 0, wanted.marks()
    oldest = format_time(wanted.since - CLOCK_SLACK_S) if wanted.since is not None else ""
    for part in reversed([part for part in parts if part.first < before]):
        for data in _backwards(part, before):
            read += len(data)
            for line in _marked(data, marks):
                record = _decoded(line, part.first)
                if record.seq >= before or not wanted.wants(record):
                    continue
                found.append(record)
                if len(found) == limit:
                    return RecordPage(tuple(found), _cursor(record.seq, parts))
            first = _decoded(data.partition(b"\n")[0], part.first)
            if first.ts < oldest:
                return RecordPage(tuple(found), "")
            before = min(before, first.seq)
            if read >= MAX_READ_BYTES:
                return RecordPage(tuple(found), _cursor(before, parts))
    return RecordPage(tuple(found), "")


def _marked(data: bytes, marks: Sequence[bytes]) -> Iterator[bytes]:
    """The lines that have every mark in them, the last first."""
    if any(mark not in data for mark in marks):
        return
    for line in reversed(data.splitlines()):
        if all(mark in line for mark in marks):
            yield line


def _cursor(before: int, parts: Sequence[Part]) -> str:
    return str(before) if before > parts[0].first else ""


def _backwards(part: Part, before: int) -> Iterator[bytes]:
    """Whole lines from about record ``before`` to the part's beginning, some at a time."""
    end, rest = _end_of(part, before), b""
    while end > 0:
        start = max(0, end - CHUNK_BYTES)
        data = part.read(start, end - start) + rest
        if start:
            head, newline, data = data.partition(b"\n")
            rest = head + newline
        end = start
        if data:
            yield data


def _end_of(part: Part, before: int) -> int:
    """Where to begin to read backwards: after record ``before`` or a little later."""
    low, high = 0, part.size_bytes
    while high - low > CHUNK_BYTES:
        middle = (low + high) // 2
        seq = _seq_after(part, middle)
        if seq is None or seq >= before:
            high = middle
        else:
            low = middle
    if high == part.size_bytes:
        return high
    cut = part.read(high, 2 * MAX_LINE_BYTES).find(b"\n")
    return high + cut + 1 if cut >= 0 else part.size_bytes


def _seq_after(part: Part, offset: int) -> int | None:
    """The number of the first record that begins after ``offset``."""
    lines = part.read(offset, 3 * MAX_LINE_BYTES).split(b"\n")
    return _decoded(lines[1], part.first).seq if len(lines) > 2 else None


def _decoded(line: bytes, first: int) -> Record:
    try:
        return decode_record(line)
    except AuditRecordError as error:
        raise AuditRecordError(f"in the segment from record {first} on: {error.message}") from None
