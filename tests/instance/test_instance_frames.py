"""Whatever arrives on the socket is a message or a ProtocolError, never another exception."""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.instance.protocol import (
    MAX_FRAME_BYTES,
    AdminReply,
    AnyMessage,
    BlockAt,
    Finished,
    FrameReader,
    Load,
    Loaded,
    Match,
    Matched,
    Message,
    OpenSession,
    ProtocolError,
    Verdict,
    encode_frame,
)

_numbers = st.integers(0, 2**63 - 1)
_slots = st.lists(_numbers, max_size=4).map(tuple)
MESSAGES = st.one_of(
    st.builds(Match, _numbers, st.text(), st.text(), _numbers, st.binary(), _numbers, _numbers),
    st.builds(
        Matched,
        _numbers,
        st.sampled_from(Verdict),
        st.text(),
        _numbers,
        st.lists(st.binary()).map(tuple),
    ),
    st.builds(
        Load,
        _numbers,
        _numbers,
        st.lists(st.builds(BlockAt, st.binary(), _numbers, _numbers, _numbers, _numbers)).map(
            tuple
        ),
    ),
    st.builds(Loaded, _numbers, _slots, _slots),
    st.builds(OpenSession, _numbers, st.text(), st.text()),
    st.builds(AdminReply, _numbers, _numbers, st.binary(), st.text(), st.text()),
)


def read(reader: FrameReader, data: bytes) -> list[AnyMessage]:
    return list(reader.feed(data))


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@given(st.lists(MESSAGES, max_size=4), st.lists(st.integers(0, 400), max_size=8))
def test_messages_survive_any_cutting_of_the_stream(
    messages: list[Message], cuts: list[int]
) -> None:
    stream = b"".join(map(encode_frame, messages))
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    reader = FrameReader()
    found: list[AnyMessage] = []
    for start, end in pairwise(edges):
        found += read(reader, stream[start:end])
    assert found == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_a_protocol_error(data: bytes) -> None:
    reader = FrameReader()
    try:
        for message in reader.feed(data):
            assert isinstance(message, Message)
    except ProtocolError:
        pass


@given(st.binary(max_size=300))
def test_any_payload_is_a_message_or_a_protocol_error(payload: bytes) -> None:
    with suppress(ProtocolError):
        assert len(read(FrameReader(), frame(payload))) == 1


@given(MESSAGES, st.data())
def test_a_damaged_message_is_a_message_or_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    stream = bytearray(encode_frame(message))
    at = data.draw(st.integers(4, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    with suppress(ProtocolError):
        read(FrameReader(), bytes(stream))


def test_a_frame_that_announces_too_much_is_refused_before_it_arrives() -> None:
    reader = FrameReader()
    assert read(reader, struct.pack(">I", MAX_FRAME_BYTES)) == []
    with pytest.raises(ProtocolError, match="announces"):
        read(FrameReader(), struct.pack(">I", MAX_FRAME_BYTES + 1))


def test_a_message_that_does_not_fit_a_frame_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        encode_frame(AdminReply(1, 200, bytes(MAX_FRAME_BYTES)))


@pytest.mark.parametrize(
    "content",
    [
        {"t": "no_such_message"},
        {"handle": 1},
        {"t": "finished"},
        {"t": "finished", "handle": "1"},
        {"t": "finished", "handle": 1, "more": 1},
        {"t": "finished", "handle": 1.5},
        {"t": "loaded", "job": 1, "slots": [1, "2"], "failed": []},
        {"t": "load", "job": 1, "handle": 1, "blocks": [[b"h", 0, 0, 0]]},
        [1, 2, 3],
        None,
    ],
)
def test_an_unknown_message_or_a_field_of_another_type_is_refused(content: object) -> None:
    with pytest.raises(ProtocolError):
        read(FrameReader(), frame(msgspec.msgpack.encode(content)))


def test_messages_before_a_bad_frame_are_still_delivered() -> None:
    stream = encode_frame(Finished(7)) + frame(b"\xc1")
    messages = FrameReader().feed(stream)
    assert next(messages) == Finished(7)
    with pytest.raises(ProtocolError):
        next(messages)
