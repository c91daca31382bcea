"""Read a log from a record on, also while it grows: whole records, bounded memory.

Readers need nothing of the writer: its appends end with a newline, and a segment is final once the
next one exists.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from kvrun.audit.errors import AuditRecordError
from kvrun.audit.record import (
    MAX_LINE_BYTES,
    Record,
    decode_lines,
    decode_record,
    parse_time,
    split_lines,
)
from kvrun.audit.segment import READ_CHUNK_BYTES, first_seq_of, list_segments


class LogCursor:
    """A place in the log in ``folder``: the next :meth:`read` begins with record ``next_seq``.

    Where the log begins later, or a segment is missing, it goes on with the first record there is.
    """

    def __init__(self, folder: Path, next_seq: int = 0) -> None:
        self.next_seq = next_seq
        self._folder = folder
        self._segment: Path | None = None
        self._offset = 0
        # The number of the line at the offset; it is below ``next_seq`` while lines are skipped.
        self._line = 0

    def read(self) -> list[Record]:
        """The next records that are there, some hundred at most; empty at the log's present end.

        Raises AuditRecordError for a line that is not a record.
        """
        while True:
            segment = self._segment or self._first()
            if segment is None:
                return []
            lines = self._lines(segment)
            if not lines:
                following = self._following(segment)
                if following is None:
                    return []
                # It may have grown before the next one was made; from now on it does not.
                lines = self._lines(segment)
                if not lines:
                    self._enter(following)
                    continue
            wanted = lines[max(0, self.next_seq - self._line) :]
            self._line += len(lines)
            if wanted:
                self.next_seq = self._line
                return _decode(wanted, segment.name, self._line - len(wanted))

    def _first(self) -> Path | None:
        earlier = None
        for segment in list_segments(self._folder):
            if earlier is not None and (first_seq_of(segment) or 0) > self.next_seq:
                break
            earlier = segment
        if earlier is not None:
            self._enter(earlier)
        return earlier

    def _following(self, segment: Path) -> Path | None:
        later = [path for path in list_segments(self._folder) if path.name > segment.name]
        return later[0] if later else None

    def _enter(self, segment: Path) -> None:
        self._segment, self._offset = segment, 0
        self._line = first_seq_of(segment) or 0
        self.next_seq = max(self.next_seq, self._line)

    def _lines(self, segment: Path) -> list[bytes]:
        try:
            with segment.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_CHUNK_BYTES)
        except FileNotFoundError:
            # It was collected, and the writer let go of it.
            return []
        cut = data.rfind(b"\n") + 1
        if not cut:
            if len(data) > MAX_LINE_BYTES:
                raise AuditRecordError(f"{segment.name} has a line that is too long for a record")
            return []
        self._offset += cut
        return data[: cut - 1].split(b"\n")


def _decode(lines: list[bytes], name: str, first_seq: int) -> list[Record]:
    records = decode_lines(b"".join(line + b"\n" for line in lines))
    if records is not None:
        return records
    for seq, line in enumerate(lines, first_seq):
        try:
            decode_record(line)
        except AuditRecordError as error:
            raise AuditRecordError(
                f"{name}, where record {seq} should be: {error.message}"
            ) from None
    raise AuditRecordError(f"{name} cannot be read from record {first_seq} on")


def read_records(folder: Path, *, from_seq: int = 0) -> Iterator[Record]:
    """The records of a log from ``from_seq`` to its present end, whole records only.

    Raises AuditRecordError for a line that is not a record.
    """
    cursor = LogCursor(folder, from_seq)
    while records := cursor.read():
        yield from records


def read_marked(folder: Path, marks: Sequence[bytes], *, from_seq: int = 0) -> Iterator[Record]:
    """As ``read_records``, but only those that have one of the ``marks`` in their line.

    The others are not decoded, which makes this ten times as fast where few have one.
    """
    segments = list_segments(folder)
    for segment, following in zip_longest(segments, segments[1:]):
        if following is not None and (first_seq_of(following) or 0) <= from_seq:
            continue
        for data in _pieces(segment):
            if not any(mark in data for mark in marks):
                continue
            lines = [line for line in split_lines(data) if any(mark in line for mark in marks)]
            for record in map(decode_record, lines):
                if record.seq >= from_seq:
                    yield record


def _pieces(segment: Path) -> Iterator[bytes]:
    """Whole lines, some at a time; what a writer has not finished is left out."""
    rest = b""
    with suppress(FileNotFoundError), segment.open("rb") as file:
        while data := file.read(READ_CHUNK_BYTES):
            lines, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                yield lines + newline
            elif len(rest) > MAX_LINE_BYTES:
                raise AuditRecordError(f"{segment.name} has a line that is too long for a record")


def read_recent(
    folder: Path, since: float, *, at_most: int | None = None, marks: Sequence[bytes] = ()
) -> tuple[Iterator[Record], bool]:
    """The records from a time (seconds since 1970) on, with some before it, to the log's end.

    With ``at_most`` only about so many of the newest; the second value says whether all since then
    are among them. With ``marks`` those alone that ``read_marked`` gives. Whole segments that are
    older are not read. The iterator raises AuditRecordError for a line that is not a record.
    """
    segments = list_segments(folder)
    newest = (first_seq_of(segments[-1]) or 0) if segments else 0
    begin = 0
    for segment in reversed(segments):
        begin = first_seq_of(segment) or 0
        opened_at = _first_time(segment)
        if opened_at is not None and opened_at < since:
            break
    complete = at_most is None or newest - begin <= at_most
    if at_most is not None and not complete:
        begin = newest - at_most
    if marks:
        return read_marked(folder, marks, from_seq=begin), complete
    return read_records(folder, from_seq=begin), complete


def _first_time(segment: Path) -> float | None:
    try:
        with segment.open("rb") as file:
            line, newline, _ = file.read(MAX_LINE_BYTES + 1).partition(b"\n")
        return parse_time(decode_record(line).ts) if newline else None
    except (FileNotFoundError, AuditRecordError, ValueError):
        return None  # what is wrong with it is said where it is read
