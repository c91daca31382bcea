"""When the right to use keys ends, requests end, engines zero their pages, and nothing opens."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrun.instance.connection import Connection
from kvrun.instance.protocol import (
    OpenSession,
    Revoked,
    Role,
    Scrub,
    SessionOpened,
    Verdict,
)
from support.byhand import BLOCK_BYTES, HandEngine, hello, wait_for
from support.client import eventually
from support.daemon import Daemon

LEASE_S = 3
HASH = b"h" * 32
PLAIN = b"p" * BLOCK_BYTES


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder, settings=f'[keys]\nlease_s = {LEASE_S}\n[audit]\nmode = "require"\n')
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[HandEngine]:
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as playing:
        yield playing


def opened(daemon: Daemon) -> tuple[int, str, int]:
    """Ask for a session as a gateway does: status, salt, generation."""
    gateway = Connection.connect(
        daemon.socket, hello(Role.GATEWAY, daemon.gateway_token), timeout_s=5
    )
    assert gateway.send(OpenSession(1, "alice", "default"))
    answer = wait_for(gateway, SessionOpened)
    gateway.close()
    assert isinstance(answer, SessionOpened)
    return answer.status, answer.salt, answer.generation


def lease_of(daemon: Daemon) -> str:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    return str(status["protections"]["lease"])


def until(daemon: Daemon, text: str) -> None:
    for _ in range(400):
        if lease_of(daemon).startswith(text):
            return
        time.sleep(0.05)
    raise AssertionError(f"the lease never was {text!r}")


def ended(engine: HandEngine, handle: int) -> None:
    revoked = wait_for(engine.scheduler, Revoked)
    assert isinstance(revoked, Revoked)
    assert handle in revoked.handles
    scrub = wait_for(engine.scheduler, Scrub)
    assert isinstance(scrub, Scrub)
    assert scrub.everything


def keep(engine: HandEngine, handle: int) -> None:
    """Have a block sealed; it can be opened a moment after its slot is free again."""
    engine.store(handle, [(HASH, PLAIN)])
    eventually(lambda: engine.load(handle, [HASH]).plain == {HASH: PLAIN}, "the block is sealed")


def test_a_root_that_is_taken_away_ends_what_runs_and_comes_back_with_the_same_keys(
    daemon: Daemon, engine: HandEngine
) -> None:
    _, salt, generation = opened(daemon)
    matched = engine.match(daemon.claim("alice", salt, generation), salt)
    keep(engine, matched.handle)

    shutil.move(daemon.root, daemon.folder / "taken")
    ended(engine, matched.handle)
    assert lease_of(daemon).startswith("over")
    assert engine.load(matched.handle, [HASH]).failed == [HASH]
    denied = engine.match(daemon.claim("alice", salt, generation), salt)
    assert denied.verdict is Verdict.DENIED
    assert opened(daemon)[0] == 503
    assert [r["outcome"] for r in daemon.events() if r["event"] == "key_leased"] == ["failed"]

    shutil.move(daemon.folder / "taken", daemon.root)
    until(daemon, "keys may be used")
    assert opened(daemon) == (200, salt, generation)
    again = engine.match(daemon.claim("alice", salt, generation), salt)
    assert again.verdict is Verdict.ADMITTED
    assert engine.load(again.handle, [HASH]).plain == {HASH: PLAIN}
    assert engine.load(matched.handle, [HASH]).failed == [HASH]  # what ended stays ended


def test_an_engine_that_was_away_when_the_lease_ended_zeroes_its_pages_when_it_comes_back(
    daemon: Daemon,
) -> None:
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True):
        opened(daemon)
    shutil.move(daemon.root, daemon.folder / "taken")
    until(daemon, "over")
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
        asked = wait_for(engine.scheduler, Scrub)
        assert isinstance(asked, Scrub)
        assert asked.everything


def test_a_daemon_that_was_stopped_for_a_lease_ends_everything_when_it_wakes(
    daemon: Daemon, engine: HandEngine
) -> None:
    _, salt, generation = opened(daemon)
    matched = engine.match(daemon.claim("alice", salt, generation), salt)
    keep(engine, matched.handle)
    daemon.pause()
    stopped_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    while time.clock_gettime(time.CLOCK_BOOTTIME) < stopped_at + LEASE_S:
        time.sleep(0.1)
    daemon.resume()
    assert engine.load(matched.handle, [HASH]).failed == [HASH]
    ended(engine, matched.handle)
    until(daemon, "keys may be used")
    again = engine.match(daemon.claim("alice", salt, generation), salt)
    assert engine.load(again.handle, [HASH]).plain == {HASH: PLAIN}
