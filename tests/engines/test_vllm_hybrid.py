"""A model with sliding-window and full attention: every group's blocks go out and come back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client import ask
from support.daemon import Daemon
from support.engine import Engine

pytestmark = pytest.mark.engine

TOKENS = [random.Random(7).randrange(10, 500) for _ in range(1500)]


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_gemma: Path, module_folder: Path) -> Iterator[Engine]:
    running = Engine(tiny_gemma, daemon.socket, module_folder / "engine.log")
    yield running
    running.stop()


def test_reloaded_groups_give_the_same_answer_as_the_engines_own_cache(
    daemon: Daemon, engine: Engine
) -> None:
    cold = ask(daemon, engine, "alice", TOKENS)
    own = ask(daemon, engine, "alice", TOKENS)
    daemon.admin("flush")
    engine.reset()
    reloaded = ask(daemon, engine, "alice", TOKENS)
    assert cold.cached == 0
    assert own.cached > 1000
    assert reloaded.cached > 1000
    assert reloaded.tokens == own.tokens == cold.tokens
    assert reloaded.logprob == pytest.approx(own.logprob, abs=1e-4)


def test_another_tenant_reuses_nothing_where_the_same_tenant_does(
    daemon: Daemon, engine: Engine
) -> None:
    engine.reset()
    assert ask(daemon, engine, "alice", TOKENS).cached > 1000
    engine.reset()
    assert ask(daemon, engine, "bob", TOKENS).cached == 0


def test_a_second_turn_reuses_the_first_turns_answer(daemon: Daemon, engine: Engine) -> None:
    prompt = TOKENS[:1400]
    first = ask(daemon, engine, "carol", prompt, max_tokens=300)
    engine.reset()
    second = ask(daemon, engine, "carol", prompt + first.tokens + [11, 12, 13])
    assert second.cached > len(prompt)
