"""Reading only what a log holds since a time, or its newest records."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrun.audit import cursor
from kvrun.audit.cursor import read_recent
from kvrun.audit.errors import AuditRecordError
from kvrun.audit.record import AuditEvent, Event, encode_event, format_time
from kvrun.audit.segment import segment_name


def log(folder: Path, segments: int, each: int, marked: int = 0) -> Path:
    """One record a second from 1000 s on; every ``marked``-th has a reason."""
    for first in range(0, segments * each, each):
        lines = [
            encode_event(
                AuditEvent(
                    event=Event.HEARTBEAT, reason="why" if marked and not seq % marked else ""
                ),
                log="w/d/i",
                epoch=0,
                seq=seq,
                prev="0" * 64,
                ts=format_time(1000.0 + seq),
            )
            for seq in range(first, first + each)
        ]
        (folder / segment_name(first)).write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def seqs(
    folder: Path, since: float, at_most: int | None = None, marks: tuple[bytes, ...] = ()
) -> tuple[list[int], bool]:
    records, complete = read_recent(folder, since, at_most=at_most, marks=marks)
    return [record.seq for record in records], complete


def test_older_segments_are_not_read_and_nothing_since_then_is_left_out(tmp_path: Path) -> None:
    log(tmp_path, segments=4, each=10)
    assert seqs(tmp_path, 0.0) == (list(range(40)), True)
    assert seqs(tmp_path, 1025.0) == (list(range(20, 40)), True)
    # The first record of a segment at that very time may have one before it of the same time.
    assert seqs(tmp_path, 1020.0) == (list(range(10, 40)), True)
    assert seqs(tmp_path, 5000.0) == (list(range(30, 40)), True)
    (tmp_path / segment_name(0)).write_bytes(b"not a record\n")
    assert seqs(tmp_path, 1015.0) == (list(range(10, 40)), True)


def test_of_a_long_time_only_the_newest_are_read_and_that_is_said(tmp_path: Path) -> None:
    log(tmp_path, segments=4, each=10)
    found, complete = seqs(tmp_path, 0.0, at_most=15)
    assert (found, complete) == (list(range(15, 40)), False)
    assert seqs(tmp_path, 1025.0, at_most=15) == (list(range(20, 40)), True)


@pytest.mark.parametrize("piece", [2, 300, 1 << 17])
def test_only_records_with_a_mark_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(cursor, "READ_CHUNK_BYTES", piece)
    log(tmp_path, segments=4, each=10, marked=7)
    marks = (b'"reason":"why"', b'"event":"erased"')
    assert seqs(tmp_path, 0.0, marks=marks) == ([0, 7, 14, 21, 28, 35], True)
    assert seqs(tmp_path, 0.0, at_most=15, marks=marks) == ([21, 28, 35], False)
    assert seqs(tmp_path, 0.0, marks=(b"nowhere",)) == ([], True)
    newest = tmp_path / segment_name(30)
    newest.write_bytes(newest.read_bytes() + b'{"reason":"why"')
    assert seqs(tmp_path, 1035.0, marks=marks)[0] == [35], "what is being written waits"
    newest.write_bytes(b'{"reason":"why"}\n')
    with pytest.raises(AuditRecordError):
        seqs(tmp_path, 0.0, marks=marks)


def test_a_folder_without_a_segment_holds_nothing(tmp_path: Path) -> None:
    assert seqs(tmp_path, 0.0, at_most=1) == ([], True)
