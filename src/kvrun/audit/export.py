"""Audit records in the forms other programs read: JSON lines, CSV, OCSF. Pure.

JSON lines are the records as they stand. OCSF is :mod:`kvrun.audit.ocsf`.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvrun.audit.errors import AuditError
from kvrun.audit.ocsf import ocsf_event
from kvrun.audit.record import Event, Record, as_line

# What a spreadsheet takes for the start of a formula (OWASP, "CSV Injection").
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MOMENT = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d{1,6})?)?)?)?)?)?")
_FIRST_COLUMNS = ("seq", "ts", "event", "outcome", "reason", "request_id")


class ExportFormat(StrEnum):
    """How exported records are written, one a line."""

    JSONL = "jsonl"
    CSV = "csv"
    OCSF = "ocsf"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records to take; a field that is empty takes all.

    ``since`` and ``until`` are the beginning of a timestamp, in UTC; ``until`` itself is left out.
    """

    since: str = ""
    until: str = ""
    events: frozenset[Event] = frozenset()
    request_id: str = ""
    tenant_ref: str = ""
    session_ref: str = ""

    def takes(self, record: Record) -> bool:
        """Whether the record is one of them."""
        return (
            record.ts >= self.since
            and (not self.until or record.ts < self.until)
            and (not self.events or record.event in self.events)
            and self.request_id in ("", record.request_id)
            and self.tenant_ref in ("", record.tenant_ref)
            and self.session_ref in ("", record.session_ref)
        )


def parse_moment(text: str) -> str:
    """``text`` as it compares with a record's ``ts``: ``2026-01-31``, ``2026-01-31T12:00Z``.

    Raises AuditError.
    """
    plain = text.removesuffix("Z")
    if text and not _MOMENT.fullmatch(plain):
        raise AuditError(
            f"{text!r} is not a time in UTC",
            hint="Write 2026, 2026-01-31, 2026-01-31T12:00 or more of it, with or without a Z.",
        )
    return plain


def export_lines(records: Iterable[Record], form: ExportFormat) -> Iterator[str]:
    """The records in ``form``, each line with its line end; CSV begins with the column names."""
    if form is ExportFormat.CSV:
        yield csv_line(CSV_COLUMNS)
    for record in records:
        yield export_line(record, form)


def export_line(record: Record, form: ExportFormat) -> str:
    """One record in ``form``, with its line end."""
    match form:
        case ExportFormat.JSONL:
            return as_line(record) + "\n"
        case ExportFormat.CSV:
            return csv_line([getattr(record, name) for name in CSV_COLUMNS])
        case ExportFormat.OCSF:
            return ocsf_event(record).decode() + "\n"


def csv_line(values: Iterable[object]) -> str:
    """One CSV line (RFC 4180). A text that a spreadsheet would run as a formula gets a ``'``."""
    out = io.StringIO()
    csv.writer(out).writerow([_harmless(value) for value in values])
    return out.getvalue()


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


CSV_COLUMNS = (
    *_FIRST_COLUMNS,
    *(name for name in Record.__struct_fields__ if name not in _FIRST_COLUMNS),
)
"""Fixed for a version of the schema; the first ones are what people look for."""
