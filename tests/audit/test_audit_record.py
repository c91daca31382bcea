"""Records have one spelling, RFC 8785, and refuse what that subset cannot hold."""

import json
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from kvrun.audit import AuditEvent, AuditRecordError, Event, Outcome, Record
from kvrun.audit.record import (
    MAX_COUNT,
    MAX_LINE_BYTES,
    check_events,
    check_log_id,
    decode_lines,
    decode_record,
    encode_event,
    format_time,
    parse_time,
)

PLACE = {"log": "kvrun.test/one", "epoch": 1, "prev": "ab" * 32, "ts": format_time(1.8e9)}
text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)
count = st.integers(0, MAX_COUNT)
events = st.builds(
    AuditEvent,
    event=st.sampled_from(Event),
    outcome=st.sampled_from(Outcome),
    request_id=text,
    workspace=text,
    deployment=text,
    tenant_ref=text,
    session_ref=text,
    tier=text,
    tier_to=text,
    blocks=count,
    bytes=count,
    tokens=count,
    policy_revision=text,
    key_id=text,
    blocks_root=st.sampled_from(["", "cd" * 32]),
    reason=text,
    lost=count,
)


def encode(event: AuditEvent, seq: int = 0) -> bytes:
    return encode_event(event, seq=seq, **PLACE)  # type: ignore[arg-type]


@given(events, count)
def test_a_records_bytes_are_its_rfc_8785_form(event: AuditEvent, seq: int) -> None:
    line = encode(event, seq)
    assert line == rfc8785.dumps(json.loads(line))
    record = decode_record(line)
    assert record.seq == seq
    for name in set(event.__struct_fields__) - {"log", "epoch", "seq", "prev", "ts", "v"}:
        assert getattr(record, name) == getattr(event, name)
    assert decode_lines(line + b"\n" + line + b"\n") == [record, record]


def test_field_names_are_sorted_and_the_same_on_both_sides() -> None:
    assert list(Record.__struct_fields__) == sorted(Record.__struct_fields__)
    assert Record.__struct_fields__ == AuditEvent.__struct_fields__


def test_the_outcome_and_the_first_sequence_number_are_always_written() -> None:
    line = json.loads(encode(AuditEvent(event=Event.HEARTBEAT), 0))
    assert line == {**PLACE, "seq": 0, "v": 1, "event": "heartbeat", "outcome": "ok"}


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": -1},
        {"bytes": 2**53},
        {"tokens": 1.5},
        {"blocks": True},
        {"lost": None},
        {"reason": "caf\u00e9"},
        {"reason": "two\nlines"},
        {"reason": "tab\t"},
        {"reason": "\x7f"},
        {"reason": "\ud800"},
        {"workspace": None},
        {"workspace": 7},
        {"tenant_ref": b"ab"},
        {"blocks_root": "ab"},
        {"reason": "x" * MAX_LINE_BYTES},
        {"event": "sealing"},
    ],
    ids=str,
)
def test_what_the_schema_cannot_hold_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(AuditRecordError):
        encode(AuditEvent(**{"event": Event.SEALED, **change}))


TEXTS = [
    item.name
    for item in msgspec.structs.fields(AuditEvent)
    if item.type is str and item.name not in ("log", "prev", "ts")
]


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in TEXTS for value in ("caf\u00e9", "\x7f", 7, b"ab")),
        {"blocks": -1},
        {"bytes": 2**53},
        {"tokens": 1.5},
        {"blocks": True},
        {"lost": None},
        {"reason": "two\nlines"},
        {"reason": "\ud800"},
        {"blocks_root": "ab"},
        {"digest": "ab"},
        {"reason": "x" * MAX_LINE_BYTES},
        {"event": "sealing"},
        {"outcome": "fine"},
    ],
    ids=str,
)
def test_one_event_outside_the_schema_among_many_is_refused(change: dict[str, Any]) -> None:
    good = AuditEvent(event=Event.SEALED, workspace="w", blocks=2**53 - 1)
    bad = AuditEvent(**{"event": Event.SEALED, **change})
    check_events([good, good])
    for events in ([bad], [bad, good], [good, good, bad]):
        with pytest.raises(AuditRecordError):
            check_events(events)


def test_many_events_that_are_long_together_or_hold_quotes_pass() -> None:
    long = AuditEvent(event=Event.SEALED, workspace="w" * 800)
    odd = AuditEvent(event=Event.SEALED, workspace='a"b\\c', reason="r" * 1000)
    check_events([long] * 50 + [odd])
    check_events([])


def test_quotes_and_backslashes_in_names_are_escaped_not_refused() -> None:
    record = decode_record(encode(AuditEvent(event=Event.SEALED, workspace='a"b\\c')))
    assert record.workspace == 'a"b\\c'


@pytest.mark.parametrize(
    "respell",
    [
        lambda line: line.replace(b",", b", ", 1),
        lambda line: line.replace(b'"sealed"', b'"\\u0073ealed"'),
        lambda line: line.replace(b'"seq":7', b'"seq":7.0'),
        lambda line: line.replace(b'"seq":7', b'"seq":7,"seq":7'),
        lambda line: line.replace(b'"seq":7', b'"blocks":0,"seq":7'),
        lambda line: line.replace(b'"v":1', b'"v":2'),
        lambda line: line.replace(b'"v":1', b'"v":1,"x":1'),
        lambda line: line.replace(b"Z", b"+00:00"),
        lambda line: b"\xef\xbb\xbf" + line,
        lambda line: line[:-1],
        lambda line: b"[]",
        lambda line: b"",
        lambda line: bytes(200),
    ],
)
def test_a_second_spelling_of_a_record_is_refused(respell: Any) -> None:
    line = encode(AuditEvent(event=Event.SEALED), 7)
    changed = respell(line)
    assert changed != line
    with pytest.raises(AuditRecordError):
        decode_record(changed)
    assert decode_lines(line + b"\n" + changed + b"\n") is None or changed == b""


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_crash_the_decoder(data: bytes) -> None:
    with pytest.raises(AuditRecordError):
        decode_record(data)


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_sort_as_text_and_come_back(micros: int) -> None:
    stamp = format_time(micros / 1e6)
    assert len(stamp) == 27
    assert abs(parse_time(stamp) - micros / 1e6) < 1e-5
    assert stamp <= format_time(micros / 1e6 + 1)


@pytest.mark.parametrize("log_id", ["", "a b", "a+b", 'a"b', "a\\b", "\u00e9", "x" * 201, "a\nb"])
def test_a_log_id_that_cannot_be_an_origin_is_refused(log_id: str) -> None:
    with pytest.raises(AuditRecordError):
        check_log_id(log_id)


def test_the_schema_has_no_field_for_content() -> None:
    names = set(Record.__struct_fields__)
    assert not names & {"prompt", "text", "token_ids", "tenant", "session", "block_hash", "hash"}
    assert msgspec.structs.fields(Record)
