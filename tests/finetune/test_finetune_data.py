"""Data of a fine-tune: bad lines are named, and a split depends on content and seed alone."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.finetune.dataset import (
    MAX_HELD_OUT,
    MAX_LINE_BYTES,
    Example,
    hold_out,
    overlap,
    parse_dataset,
)
from kvrun.finetune.errors import FineTuneError

GOOD = b'{"prompt": "a", "completion": "b"}'


def messages(*roles: str) -> bytes:
    return json.dumps({"messages": [{"role": role, "content": "x"} for role in roles]}).encode()


def test_both_forms_of_a_line_are_read_with_their_numbers() -> None:
    data = b"\n".join([GOOD, b"", messages("system", "user", "assistant")])
    found = parse_dataset(data, "d.jsonl")
    assert [(item.line, item.prompt, len(item.turns)) for item in found.examples] == [
        (1, "a", 0),
        (3, "", 2),
    ]
    assert found.size_bytes == len(data)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"prompt": "a"}', "'prompt'"),
        (b'{"prompt": "a", "completion": "b", "id": 1}', "'id'"),
        (b'{"prompt": "a", "completion": ""}', "completion is not text, or empty"),
        (b'{"prompt": 1, "completion": "b"}', "prompt is not text"),
        (b'{"prompt": "a", "completion": "\\ud800"}', "half a character"),
        (b'{"messages": []}', "messages is not a list"),
        (b'{"messages": ["x"]}', "a message is an object"),
        (messages("user", "tool"), "'tool'"),
        (messages("assistant", "user"), "the last message"),
        (messages("assistant"), "nothing is asked"),
        (b'{"prompt": "' + b"x" * MAX_LINE_BYTES + b'", "completion": "b"}', "bytes"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: bytes, said: str) -> None:
    with pytest.raises(FineTuneError) as error:
        parse_dataset(GOOD + b"\n" + line + b"\n" + GOOD, "d.jsonl")
    assert "line 2: " in error.value.message
    assert said in error.value.message
    assert len(error.value.message) < 400


def test_many_bad_lines_are_counted_and_an_empty_file_is_refused() -> None:
    with pytest.raises(FineTuneError, match=r"line 10: .*; and 5 more"):
        parse_dataset(b"{\n" * 15, "d.jsonl")
    with pytest.raises(FineTuneError, match="no example"):
        parse_dataset(b"\n\n", "d.jsonl")


def example(number: int, text: str) -> Example:
    return Example(number, completion="c", prompt=text)


@given(
    texts=st.lists(st.sampled_from("abcdefghijklmnop"), min_size=2, max_size=60).filter(
        lambda found: len(set(found)) > 1
    ),
    seed=st.integers(0, 2**31 - 1),
    shuffled=st.integers(),
)
def test_a_split_shares_nothing_and_depends_on_content_and_seed(
    texts: list[str], seed: int, shuffled: int
) -> None:
    examples = [example(number, text) for number, text in enumerate(texts, 1)]
    train, held = hold_out(examples, seed)
    assert train
    assert 1 <= len(held) <= MAX_HELD_OUT
    assert overlap(train, held) == 0
    assert {item.prompt for item in (*train, *held)} == set(texts)
    random.Random(shuffled).shuffle(examples)
    again = hold_out(examples, seed)[1]
    assert {item.digest for item in again} == {item.digest for item in held}


def test_another_seed_holds_out_others_and_one_example_cannot_be_split() -> None:
    examples = [example(number, str(number)) for number in range(100)]
    assert {e.prompt for e in hold_out(examples, 1)[1]} != {
        e.prompt for e in hold_out(examples, 2)[1]
    }
    with pytest.raises(FineTuneError, match="held out at once"):
        hold_out([example(1, "a"), example(2, "a")], 0)
    assert overlap(examples, [example(7, "5"), example(8, "none")]) == 1
