"""Erasing a session reaches the engine's own memory, also while the engine has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client import ask, eventually, prompt, store
from support.daemon import PATIENT, Daemon
from support.engine import Engine
from support.memory import find_in_memory

pytestmark = [pytest.mark.engine, pytest.mark.root]

LENGTH = 700
CACHED = 640


@pytest.fixture(scope="module")
def daemon(module_folder: Path) -> Iterator[Daemon]:
    running = Daemon(module_folder, settings=PATIENT)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    # With an engine core of its own, which sleeps while it has nothing to do, as a server has.
    running = Engine(
        tiny_llama,
        daemon.socket,
        module_folder / "engine.log",
        environment={
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        },
    )
    yield running
    running.stop()


def pieces(engine: Engine, before: set[bytes]) -> list[bytes]:
    """What came into the engine's pages since ``before``."""
    return sorted(page for page in set(engine.pages()) - before if len(set(page)) > 32)


def held(engine: Engine, needles: list[bytes]) -> set[bytes]:
    """Those that some process of the engine has in its memory."""
    return {
        needle
        for pid in engine.pids
        for needle, places in find_in_memory(pid, needles).items()
        if places
    }


def test_only_the_erased_sessions_pages_are_zeroed_in_an_idle_engine(
    daemon: Daemon, engine: Engine
) -> None:
    alices, bobs = prompt(301, LENGTH), prompt(302, LENGTH)
    seen = set(engine.pages())
    alice = store(daemon, engine, "alice", alices)
    of_alice = pieces(engine, seen)
    seen |= set(engine.pages())
    bob = store(daemon, engine, "bob", bobs)
    of_bob = pieces(engine, seen)
    assert len(of_alice) >= 5
    assert len(of_bob) >= 5
    # The search finds what is there.
    assert held(engine, of_alice + of_bob) == {*of_alice, *of_bob}

    daemon.admin("erase_session", tenant="alice", session="default")
    eventually(
        lambda: not held(engine, of_alice),
        "nothing of the erased session is in the engine's memory",
    )
    assert held(engine, of_bob) == set(of_bob)
    again = ask(daemon, engine, "bob", bobs)
    assert (again.cached, again.tokens) == (CACHED, bob.tokens)
    cold = ask(daemon, engine, "alice", alices)
    assert (cold.cached, cold.tokens) == (0, alice.tokens)


def test_what_a_second_session_of_the_tenant_holds_of_the_same_text_stays(
    daemon: Daemon, engine: Engine
) -> None:
    tokens = prompt(303, LENGTH)
    first = store(daemon, engine, "carol", tokens, session="one")
    store(daemon, engine, "carol", tokens, session="two")
    daemon.admin("erase_session", tenant="carol", session="one")
    kept = ask(daemon, engine, "carol", tokens, session="two")
    assert (kept.cached, kept.tokens) == (CACHED, first.tokens)
    gone = ask(daemon, engine, "carol", tokens, session="one")
    assert (gone.cached, gone.tokens) == (0, first.tokens)
