"""A stateless deployment keeps nothing of a request: not in the engine, not in memory, no file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_rig import User, files_with, running, words

from kvrun.launch.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(stateless=True) as started:
        yield started


def test_the_same_prompt_again_reuses_nothing(stack: Stack) -> None:
    alice = User(stack.url, stack.api_key, "alice")
    answers = [alice.complete(words(1)) for _ in range(3)]
    assert [answer.cached_tokens for answer in answers] == [0, 0, 0]
    assert len({answer.text for answer in answers}) == 1


def test_a_conversation_works_and_reuses_nothing(stack: Stack) -> None:
    alice = User(stack.url, stack.api_key, "alice")
    first = alice.chat(words(2))
    second = alice.chat(words(2), first.text, "and why?")
    assert first.text
    assert second.text
    assert second.prompt_tokens > first.prompt_tokens
    assert second.cached_tokens == 0


def test_no_file_of_blocks_and_no_text_is_written(stack: Stack) -> None:
    marker = "sevenpurplewalruses"
    User(stack.url, stack.api_key, "alice").complete(f"{marker} {words(3)}")
    stack.flush()
    data = stack.config.layout.data_dir
    storage = stack.blocks.parents[3]
    assert storage == data / "storage"
    assert [path for path in storage.rglob("*") if path.is_file()] == []
    assert list(data.rglob("*.kvs")) == []
    assert files_with(data.parent, "deployment_started") != [], "the search finds what is there"
    assert files_with(data.parent, marker) == []
