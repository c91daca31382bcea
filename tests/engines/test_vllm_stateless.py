"""A stateless deployment keeps nothing of a request, in no tier and in no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client import claimed, grant, prompt
from support.daemon import PATIENT, Daemon
from support.engine import Ask, Engine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def daemon(module_folder: Path) -> Iterator[Daemon]:
    running = Daemon(module_folder, settings=PATIENT + "[deployment]\nstateless = true\n")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    running = Engine(tiny_llama, daemon.socket, module_folder / "engine.log")
    yield running
    running.stop()


def test_the_same_prompt_reuses_nothing_and_leaves_no_byte(daemon: Daemon, engine: Engine) -> None:
    tokens = prompt(41, 700)
    answers = [engine.ask(claimed(daemon, "alice", tokens)[1])[0] for _ in range(3)]
    daemon.admin("flush")
    assert [answer.cached for answer in answers] == [0, 0, 0]
    assert answers[0].tokens == answers[1].tokens == answers[2].tokens
    assert daemon.count("sealed") == daemon.count("opened") == 0
    storage = daemon.data / "storage"
    assert [path for path in storage.rglob("*") if path.is_file()] == []
    status = daemon.admin("status")
    assert isinstance(status, dict)
    cache = status["cache"]
    assert cache["free_cells"] == cache["cells"]


def test_even_one_salt_used_twice_finds_nothing(daemon: Daemon, engine: Engine) -> None:
    tokens = prompt(42, 700)
    salt = grant(daemon, "alice").salt
    claims = [daemon.claim("alice", salt, 0) for _ in range(2)]
    first, again = (engine.ask(Ask(tokens, salt, claim))[0] for claim in claims)
    assert (first.cached, again.cached) == (0, 0)
    assert first.tokens == again.tokens


def test_every_request_gets_another_salt(daemon: Daemon) -> None:
    grants = [grant(daemon, "alice") for _ in range(5)]
    assert len({granted.salt for granted in grants}) == 5
    assert {granted.generation for granted in grants} == {0}
