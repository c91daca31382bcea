"""One session's KV is reused from every tier, is right, and is nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client import ask, claimed, prompt, reconnect, store
from support.daemon import Daemon
from support.engine import Engine

pytestmark = pytest.mark.engine

BLOCK = 128
TOKENS = prompt(11)
WHOLE = len(TOKENS) // BLOCK * BLOCK
STRANGERS = [("bob", "default"), ("alice", "another"), ("Alice", "default")]


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    running = Engine(tiny_llama, daemon.socket, module_folder / "engine.log")
    yield running
    running.stop()


def restart(daemon: Daemon, engine: Engine) -> None:
    daemon.stop()
    daemon.start()
    reconnect(daemon, engine)
    engine.reset()


def test_answers_are_the_same_cold_and_from_every_tier(daemon: Daemon, engine: Engine) -> None:
    cold = store(daemon, engine, "alice", TOKENS, max_tokens=24)
    from_engine = ask(daemon, engine, "alice", TOKENS, max_tokens=24)
    engine.reset()
    memory_id, request = claimed(daemon, "alice", TOKENS, max_tokens=24)
    from_memory = engine.ask(request)[0]
    memory = daemon.reuse(memory_id)
    restart(daemon, engine)
    disk_id, request = claimed(daemon, "alice", TOKENS, max_tokens=24)
    from_disk = engine.ask(request)[0]
    disk = daemon.reuse(disk_id)
    assert cold.cached == 0
    assert [a.cached for a in (from_engine, from_memory, from_disk)] == [WHOLE] * 3
    assert from_engine.tokens == from_memory.tokens == from_disk.tokens == cold.tokens
    for answer in (from_engine, from_memory, from_disk):
        assert answer.logprob == pytest.approx(cold.logprob, abs=1e-3)
    assert (memory.engine_tokens, memory.memory_tokens, memory.disk_tokens) == (0, WHOLE, 0)
    assert (disk.engine_tokens, disk.memory_tokens, disk.disk_tokens) == (0, 0, WHOLE)


def test_strangers_reuse_nothing_from_engine_memory(daemon: Daemon, engine: Engine) -> None:
    tokens = prompt(12)
    cold = ask(daemon, engine, "alice", tokens)
    for tenant, session in STRANGERS:
        stranger = ask(daemon, engine, tenant, tokens, session=session)
        assert (stranger.cached, stranger.tokens) == (0, cold.tokens)
    assert ask(daemon, engine, "alice", tokens).cached == WHOLE


def test_strangers_reuse_nothing_from_the_memory_and_the_persistent_tier(
    daemon: Daemon, engine: Engine
) -> None:
    tokens = prompt(13)
    cold = store(daemon, engine, "alice", tokens)
    for tier in ("memory", "disk"):
        if tier == "disk":
            restart(daemon, engine)
        engine.reset()
        # Each tier meets strangers of its own: a stranger may reuse what it stored itself.
        for tenant, session in STRANGERS:
            stranger = ask(daemon, engine, tenant, tokens, session=f"{session}-{tier}")
            assert (stranger.cached, stranger.tokens) == (0, cold.tokens)
        same = ask(daemon, engine, "alice", tokens)
        assert (same.cached, same.tokens) == (WHOLE, cold.tokens)


def test_a_second_turn_reuses_the_first_turns_answer(daemon: Daemon, engine: Engine) -> None:
    question = prompt(14, 1000)
    first = store(daemon, engine, "alice", question, max_tokens=300)
    second = question + first.tokens + prompt(15, 40)
    engine.reset()
    warm = ask(daemon, engine, "alice", second)
    cold = ask(daemon, engine, "carol", second)
    assert cold.cached == 0
    # All of the answer but its last token, which the engine never computed, in whole blocks.
    assert warm.cached == (len(question) + 299) // BLOCK * BLOCK > len(question)
    assert warm.tokens == cold.tokens


def test_twenty_tenants_under_load_get_their_own_answers(daemon: Daemon, engine: Engine) -> None:
    shared = prompt(16, 520)
    tails = [prompt(100 + number, 130) for number in range(20)]
    cold = [
        ask(daemon, engine, f"reference-{number}", shared + tail)
        for number, tail in enumerate(tails)
    ]

    def all_at_once() -> list[tuple[int, list[int]]]:
        asks = [
            claimed(daemon, f"crowd-{number}", shared + tail)[1]
            for number, tail in enumerate(tails)
        ]
        return [(answer.cached, answer.tokens) for answer in engine.ask(*asks)]

    right = [answer.tokens for answer in cold]
    assert all(answer.cached == 0 for answer in cold)
    engine.reset()
    assert all_at_once() == [(0, tokens) for tokens in right]
    assert all_at_once() == [(640, tokens) for tokens in right]
    daemon.admin("flush")
    engine.reset()
    assert all_at_once() == [(640, tokens) for tokens in right]


def test_an_engine_restart_keeps_the_sealed_blocks(daemon: Daemon, engine: Engine) -> None:
    cold = store(daemon, engine, "alice", TOKENS, session="restart")
    engine.restart()
    request_id, request = claimed(daemon, "alice", TOKENS, session="restart")
    warm = engine.ask(request)[0]
    assert (warm.cached, warm.tokens) == (WHOLE, cold.tokens)
    assert daemon.reuse(request_id).memory_tokens == WHOLE
