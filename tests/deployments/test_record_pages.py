"""Reading a log backwards: every record once, newest first, however it is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.audit.errors import AuditRecordError
from kvrun.audit.record import Record, format_time
from kvrun.deployments import record_pages
from kvrun.deployments.record_pages import Part, RecordFilter, RecordPage, page_of

EVENTS = ("sealed", "opened", "erased")


def line(seq: int) -> bytes:
    record = {
        "epoch": 1,
        "event": EVENTS[seq % 3],
        "log": "w/d/host",
        "outcome": "ok",
        "prev": "0" * 64,
        "seq": seq,
        "ts": format_time(1_700_000_000 + seq),
        "v": 1,
    }
    return json.dumps(record, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def parts_of(counts: list[int], first: int = 0) -> list[Part]:
    parts = []
    for count in counts:
        data = b"".join(line(first + number) for number in range(count))
        parts.append(_part(first, data))
        first += count
    return parts


def _part(first: int, data: bytes) -> Part:
    return Part(first, len(data), lambda offset, size: data[offset : offset + size])


def walk(parts: list[Part], end: int, wanted: RecordFilter, limit: int) -> list[Record]:
    found: list[Record] = []
    page = RecordPage((), str(end))
    while page.cursor:
        page = page_of(parts, int(page.cursor), wanted, limit)
        assert len(page.records) <= limit
        found += page.records
    return found


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(0, 5),
    st.integers(1, 7),
    st.integers(120, 3000),
)
def test_every_record_comes_once_newest_first(
    counts: list[int], first: int, limit: int, chunk: int
) -> None:
    parts, end = parts_of(counts, first), first + sum(counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_pages, "CHUNK_BYTES", chunk)
        found = walk(parts, end, RecordFilter(), limit)
    assert [record.seq for record in found] == list(reversed(range(first, end)))


def test_a_filter_finds_all_and_reads_only_so_much_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_pages, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(record_pages, "MAX_READ_BYTES", 5000)
    parts = parts_of([300, 300])
    found = walk(parts, 600, RecordFilter(event="erased"), 50)
    assert [record.seq for record in found] == [n for n in reversed(range(600)) if n % 3 == 2]
    page = page_of(parts, 600, RecordFilter(tenant_ref="nobody"), 50)
    assert page.records == ()
    assert 0 < int(page.cursor) < 600
    assert walk(parts, 600, RecordFilter(tenant_ref="nobody"), 50) == []


@given(
    st.sampled_from(["", *EVENTS, "unheard of"]),
    st.sampled_from(["", "a", 'quoted"', "back\\slash", "sealed"]),
    st.integers(120, 3000),
)
def test_a_filter_finds_what_decoding_every_line_would(
    event: str, request_id: str, chunk: int
) -> None:
    names = ["a", 'quoted"', "back\\slash", "", "sealed"]
    lines = [json.loads(line(seq)) | {"request_id": names[seq % 5]} for seq in range(60)]
    kept = [{key: value for key, value in item.items() if value != ""} for item in lines]
    data = b"".join(
        json.dumps(item, separators=(",", ":"), sort_keys=True).encode() + b"\n" for item in kept
    )
    wanted = RecordFilter(event=event, request_id=request_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_pages, "CHUNK_BYTES", chunk)
        found = walk([_part(0, data)], 60, wanted, 7)
    assert [record.seq for record in found] == [
        item["seq"]
        for item in reversed(lines)
        if event in ("", item["event"]) and request_id in ("", item["request_id"])
    ]


def test_times_cut_the_log_and_old_records_are_not_read() -> None:
    parts = parts_of([9000])
    wanted = RecordFilter(since=1_700_000_000 + 8990, until=1_700_000_000 + 8995)
    assert [r.seq for r in walk(parts, 9000, wanted, 100)] == [8994, 8993, 8992, 8991, 8990]


def test_a_later_page_does_not_read_what_came_before_it() -> None:
    read = 0
    (whole,) = parts_of([20_000])

    def counted(offset: int, size: int) -> bytes:
        nonlocal read
        read += size
        return whole.read(offset, size)

    page = page_of([Part(0, whole.size_bytes, counted)], 10_000, RecordFilter(), 10)
    assert [record.seq for record in page.records] == list(range(9999, 9989, -1))
    assert read < whole.size_bytes / 3


def test_a_line_that_is_no_record_is_named() -> None:
    with pytest.raises(AuditRecordError, match="from record 7 on"):
        page_of([_part(7, b"{}\n")], 8, RecordFilter(), 1)
