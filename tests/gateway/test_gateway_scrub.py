import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.gateway.errors import GatewayError
from kvrun.gateway.scrub import EventScrubber, scrub_json


def test_an_answer_without_the_field_passes_as_the_same_bytes() -> None:
    body = b'{"a" : 1.50, "text":"kv transfer"}'
    assert scrub_json(body) is body


@pytest.mark.parametrize("holder", ["", "response", "message"])
def test_the_field_goes_wherever_an_answer_holds_it(holder: str) -> None:
    inner = {"id": 1, "kv_transfer_params": {"a": 1}, "ec_transfer_params": None}
    body = json.dumps({holder: inner} if holder else inner).encode()
    expected = {holder: {"id": 1}} if holder else {"id": 1}
    assert json.loads(scrub_json(body)) == expected


def test_text_that_only_mentions_the_field_stays() -> None:
    answer = {"choices": [{"text": "set kv_transfer_params to null"}]}
    assert json.loads(scrub_json(json.dumps(answer).encode())) == answer


def test_an_answer_that_cannot_be_read_is_withheld() -> None:
    with pytest.raises(GatewayError, match="the engine's answer is not valid JSON"):
        scrub_json(b'{"kv_transfer_params":')


EVENTS = [
    b'data: {"i":1}\n\n',
    b": ping\n\n",
    b'event: x\ndata: {"i":2,"kv_transfer_params":{"k":"v"}}\n\n',
    b'data: {"response":{"kv_transfer_params":null,"i":3}}\r\n\r\n',
    b'data: {"text":"kv_transfer_params"}\n\n',
    b"data: [DONE]\n\n",
]
CLEAN = [
    b'data: {"i":1}\n\n',
    b": ping\n\n",
    b'event: x\ndata: {"i":2}\n\n',
    b'data: {"response":{"i":3}}\r\n\r\n',
    b'data: {"text":"kv_transfer_params"}\n\n',
    b"data: [DONE]\n\n",
]


def test_each_event_passes_at_once() -> None:
    scrubber = EventScrubber()
    assert [scrubber.feed(event) for event in EVENTS] == CLEAN
    assert scrubber.finish() == b""


@given(st.lists(st.integers(1, 40), max_size=200))
def test_however_the_bytes_are_cut_the_events_are_the_same(cuts: list[int]) -> None:
    data, scrubber, out, position = b"".join(EVENTS), EventScrubber(), b"", 0
    for cut in [*cuts, len(data)]:
        out += scrubber.feed(data[position : position + cut])
        position += cut
        assert b'"k"' not in out
        # Every event that is complete has been given out.
        ends = itertools.accumulate(map(len, EVENTS))
        assert out == b"".join(CLEAN[: sum(end <= position for end in ends)])
    assert out + scrubber.finish() == b"".join(CLEAN)


def test_a_stream_without_a_last_blank_line_is_scrubbed_too() -> None:
    scrubber = EventScrubber()
    assert scrubber.feed(b'data: {"a":1,"kv_transfer_params":2}') == b""
    assert scrubber.finish() == b'data: {"a":1}'


def test_an_event_without_end_is_not_collected_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrun.gateway.scrub.MAX_EVENT_BYTES", 100)
    scrubber = EventScrubber()
    for _ in range(10):
        assert scrubber.feed(b"x" * 10) == b""
    with pytest.raises(GatewayError, match="endless event"):
        scrubber.feed(b"x")
