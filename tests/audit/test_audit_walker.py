"""All lines at once or one by one: the walker says the same about a log that somebody changed."""

import json
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import LOG_ID, rehash

from kvrun.audit import AuditEvent, AuditRecordError, Event
from kvrun.audit.chain import BreakKind, ChainPoint, ChainWalker, chain_events, genesis
from kvrun.audit.record import (
    MAX_LINE_BYTES,
    decode_lines,
    decode_record,
    format_time,
    gap_event,
    split_lines,
)

COUNT = 12
Mutation = Callable[[list[bytes]], None]


def honest_lines(first_epoch: int = 1) -> list[bytes]:
    events = [
        gap_event("torn_tail", 1)
        if number % 5 == 4
        else AuditEvent(event=Event.SEALED, request_id=f"req-{number}", blocks=number)
        for number in range(COUNT)
    ]
    timed = [(event, format_time(1.8e9 + number)) for number, event in enumerate(events)]
    half = COUNT // 2
    begin, _, point = chain_events(
        timed[:half], ChainPoint(0, genesis(LOG_ID), first_epoch), LOG_ID
    )
    point = ChainPoint(point.next_seq, point.prev, point.epoch + 1, point.ts)
    return split_lines(bytes(begin + chain_events(timed[half:], point, LOG_ID)[0]))


HONEST = honest_lines()
places = st.integers(0, COUNT - 1)


def flip(at: int, where: int, bit: int) -> Mutation:
    def change(lines: list[bytes]) -> None:
        line = bytearray(lines[at % len(lines)])
        if line:
            line[where % len(line)] ^= 1 << bit
        lines[at % len(lines)] = bytes(line)

    return change


def put(at: int, where: int, what: bytes) -> Mutation:
    def change(lines: list[bytes]) -> None:
        line = lines[at % len(lines)]
        where_now = where % (len(line) + 1)
        lines[at % len(lines)] = line[:where_now] + what + line[where_now:]

    return change


RESPELLINGS = [
    (b'"seq":', b'"seq": '),
    (b'"seq":', b'"seq":1'),
    (b"req-", b"other-"),
    (b"req-", b"\\u0072eq-"),
    (b'"v":1', b'"v":1,"v":1'),
    (b'"blocks":', b'"blocks":0'),
]


def respell(at: int, change_to: tuple[bytes, bytes]) -> Mutation:
    def change(lines: list[bytes]) -> None:
        lines[at % len(lines)] = lines[at % len(lines)].replace(*change_to, 1)

    return change


def state(at: int, field: str, value: str | int) -> Mutation:
    """Another value, in canonical form and with the chain made anew behind it."""

    def change(lines: list[bytes]) -> None:
        try:
            record = json.loads(lines[at % len(lines)])
            record[field] = value
            lines[at % len(lines)] = json.dumps(record).encode()
            lines[:] = rehash(lines)
        except (ValueError, TypeError):
            return

    return change


def move(at: int, to: int, *, keep: bool) -> Mutation:
    def change(lines: list[bytes]) -> None:
        line = lines[at % len(lines)]
        if not keep and len(lines) > 1:
            del lines[at % len(lines)]
        lines.insert(to % len(lines), line)

    return change


def delete(at: int) -> Mutation:
    def change(lines: list[bytes]) -> None:
        if len(lines) > 1:
            del lines[at % len(lines)]

    return change


mutations = st.one_of(
    st.builds(flip, places, st.integers(0, 400), st.integers(0, 7)),
    st.builds(put, places, st.integers(0, 400), st.sampled_from([b" ", b"\n", b"\r", b"\x7f"])),
    st.builds(respell, places, st.sampled_from(RESPELLINGS)),
    st.builds(state, places, st.just("epoch"), st.integers(0, 4)),
    st.builds(state, places, st.just("log"), st.sampled_from([LOG_ID, "another/log"])),
    st.builds(state, places, st.just("reason"), st.sampled_from(["short", "x" * MAX_LINE_BYTES])),
    st.builds(move, places, places, keep=st.booleans()),
    st.builds(delete, places),
)


def whole(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def walk(
    pieces: list[bytes], start: ChainPoint | None, *, line_by_line: bool
) -> tuple[object, ...]:
    """Everything that a walk tells; ``line_by_line`` takes the way that names findings."""
    walker = ChainWalker(LOG_ID, start)
    records, leaves = [], []
    for piece in pieces:
        found = walker._walk(piece.split(b"\n")[:-1]) if line_by_line else walker.feed(piece)
        records += found[0]
        leaves += found[1]
    told = walker.breaks, walker.gaps, walker.point, walker.first_ts, walker.last_event
    return records, leaves, *told, walker.records


@settings(max_examples=400)
@given(st.lists(mutations, max_size=2), st.integers(1, COUNT), st.booleans())
def test_both_ways_say_the_same_about_a_changed_log(
    changes: list[Mutation], portion: int, from_the_start: bool
) -> None:
    lines = list(HONEST)
    for change in changes:
        change(lines)
    start = ChainPoint.start(LOG_ID) if from_the_start else None
    pieces = [whole(lines[at : at + portion]) for at in range(0, len(lines), portion)]
    slow = walk(pieces, start, line_by_line=True)
    assert walk(pieces, start, line_by_line=False) == slow
    assert walk([whole(lines)], start, line_by_line=False) == slow


@given(st.integers(1, COUNT // 2 - 2))
def test_an_epoch_that_dips_between_equal_ones_is_named(at: int) -> None:
    lines = honest_lines(first_epoch=2)[: COUNT // 2]
    state(at, "epoch", 1)(lines)
    walker = ChainWalker(LOG_ID, ChainPoint.start(LOG_ID))
    walker.feed(whole(lines))
    assert [(item.kind, item.seq) for item in walker.breaks] == [(BreakKind.EPOCH_ORDER, at)]


def test_an_honest_log_has_no_break_either_way() -> None:
    start = ChainPoint.start(LOG_ID)
    for line_by_line in (False, True):
        _, _, breaks, gaps, point, *_ = walk([whole(HONEST)], start, line_by_line=line_by_line)
        assert breaks == []
        assert isinstance(gaps, list)
        assert len(gaps) == 2
        assert isinstance(point, ChainPoint)
        assert point.next_seq == COUNT


@given(st.lists(mutations, max_size=2))
def test_many_lines_decode_exactly_if_each_one_does(changes: list[Mutation]) -> None:
    lines = list(HONEST)
    for change in changes:
        change(lines)
    data = whole(lines)
    try:
        one_by_one = [decode_record(line) for line in data[:-1].split(b"\n")]
    except AuditRecordError:
        one_by_one = None
    # Only the length of a line is left to the caller.
    if max(map(len, lines)) <= MAX_LINE_BYTES:
        assert decode_lines(data) == one_by_one
