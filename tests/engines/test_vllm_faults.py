"""A fault in the cache is a miss: the answer is right and in time, and the cache comes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.client import ask, claimed, eventually, prompt, reconnect, store, unclaimed
from support.daemon import AT_A_MOMENT, Daemon
from support.engine import Engine

pytestmark = pytest.mark.engine

BLOCK = 128
FIRST = 2 * BLOCK
SECONDS = 20

MOMENTS = [("match", 0), ("_seal_one", 3), ("_open_one", 3)]


@pytest.fixture(scope="module")
def daemon(module_folder: Path) -> Iterator[Daemon]:
    running = Daemon(
        module_folder,
        settings="match_deadline_ms = 3000\nload_deadline_ms = 3000\nsealing_threads = 1\n",
        prelude=AT_A_MOMENT,
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    running = Engine(tiny_llama, daemon.socket, module_folder / "engine.log")
    yield running
    running.stop()


def files(daemon: Daemon) -> set[Path]:
    return set((daemon.data / "storage").rglob("*.kvs"))


def flip(damaged: list[Path]) -> None:
    content = bytearray(damaged[0].read_bytes())
    content[len(content) // 2] ^= 1
    damaged[0].write_bytes(content)


def truncate(damaged: list[Path]) -> None:
    with damaged[0].open("r+b") as file:
        file.truncate(1000)


def empty(damaged: list[Path]) -> None:
    damaged[0].write_bytes(b"")


def rename(damaged: list[Path]) -> None:
    damaged[1].rename(damaged[0])


def swap(damaged: list[Path]) -> None:
    one, two = (path.read_bytes() for path in damaged[:2])
    damaged[0].write_bytes(two)
    damaged[1].write_bytes(one)


@pytest.mark.parametrize("damage", [flip, truncate, empty, rename, swap])
def test_a_damaged_block_costs_its_tokens_and_is_reported(
    daemon: Daemon, engine: Engine, damage: Callable[[list[Path]], None]
) -> None:
    tenant, tokens = f"damaged-{damage.__name__}", prompt(len(damage.__name__) + 50)
    store(daemon, engine, tenant, tokens[:FIRST])
    later: list[Path] = []
    for count in (3, 4):
        before = files(daemon)
        store(daemon, engine, tenant, tokens[: count * BLOCK], already=count - 1)
        later += files(daemon) - before
    assert len(later) == 2, "the files of the third and the fourth block"
    right = store(daemon, engine, tenant, tokens, already=4)
    full = len(tokens) // BLOCK * BLOCK
    daemon.stop()
    damage(later)
    failures = daemon.count("integrity_failure")
    daemon.start()
    reconnect(daemon, engine)
    engine.reset()
    request_id, request = claimed(daemon, tenant, tokens)
    began = time.monotonic()
    hurt = engine.ask(request)[0]
    assert time.monotonic() - began < SECONDS
    assert hurt.tokens == right.tokens
    assert hurt.cached == FIRST
    daemon.admin("flush")
    failed = daemon.count("integrity_failure") - failures
    assert 1 <= failed <= 2
    # The engine says what it did not compute; the daemon's own count for the bill agrees.
    reuse = daemon.reuse(request_id)
    assert reuse.engine_tokens + reuse.memory_tokens + reuse.disk_tokens == hurt.cached
    # The recomputed blocks took the bad ones' place.
    eventually(lambda: daemon.reuse(request_id).sealed_blocks >= failed, "sealed again")
    engine.reset()
    healed = ask(daemon, engine, tenant, tokens)
    assert (healed.cached, healed.tokens) == (full, right.tokens)


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize(("moment", "after"), MOMENTS, ids=["match", "store", "load"])
def test_a_daemon_that_dies_or_hangs_in_the_middle_costs_only_the_cache(
    daemon: Daemon, engine: Engine, moment: str, after: int, how: str
) -> None:
    tenant = f"{moment}-{how}"
    tokens, other = prompt(60), prompt(61)
    reconnect(daemon, engine)
    cold = store(daemon, engine, tenant, tokens)
    engine.reset()
    number = signal.SIGKILL if how == "killed" else signal.SIGSTOP
    request = claimed(daemon, tenant, other if moment == "_seal_one" else tokens)[1]
    flag = daemon.folder / "moment"
    flag.write_text(f"{moment} {int(number)} {after}")
    try:
        began = time.monotonic()
        answer = engine.ask(request)[0]
        assert time.monotonic() - began < SECONDS
        eventually(lambda: not flag.exists(), f"the daemon is {how} in {moment}")
    finally:
        flag.unlink(missing_ok=True)
    began = time.monotonic()
    # The engine goes on without its cache, also for the requests that follow.
    without = engine.ask(unclaimed(request.tokens))[0]
    assert time.monotonic() - began < SECONDS
    assert without.tokens == answer.tokens
    assert without.cached == 0
    if moment != "_seal_one":
        assert (answer.cached, answer.tokens) == (0, cold.tokens)
    if how == "killed":
        assert daemon.process is not None
        assert daemon.process.wait(timeout=10) == -signal.SIGKILL
        daemon.start()
    else:
        daemon.resume()
    reconnect(daemon, engine)
    engine.reset()
    again = ask(daemon, engine, tenant, tokens)
    assert again.tokens == cold.tokens
    assert again.cached == len(tokens) // BLOCK * BLOCK
    assert ask(daemon, engine, tenant, request.tokens).tokens == answer.tokens


def test_an_erased_session_is_cold_and_the_others_are_not(daemon: Daemon, engine: Engine) -> None:
    tokens = prompt(70)
    daemon.admin("flush")  # blocks of the tests before are written behind
    before = files(daemon)
    store(daemon, engine, "erased", tokens, session="a")
    mine = files(daemon) - before
    store(daemon, engine, "erased", tokens, session="b")
    assert ask(daemon, engine, "erased", tokens, session="a").cached > 0
    daemon.admin("erase_session", tenant="erased", session="a")
    assert len(mine) == len(tokens) // BLOCK
    assert not mine & files(daemon)
    assert ask(daemon, engine, "erased", tokens, session="a").cached == 0
    assert ask(daemon, engine, "erased", tokens, session="b").cached > 0
    engine.reset()
    assert ask(daemon, engine, "erased", tokens, session="b").cached > 0


def test_what_cannot_be_logged_is_not_reused_and_the_engine_goes_on_uncached(
    daemon: Daemon, engine: Engine
) -> None:
    tokens = prompt(75)
    full = len(tokens) // BLOCK * BLOCK
    cold = store(daemon, engine, "unlogged", tokens)
    before = ask(daemon, engine, "unlogged", tokens)
    assert (before.cached, before.tokens) == (full, cold.tokens), "the engine's own prefix cache"
    request = claimed(daemon, "unlogged", tokens)[1]
    with daemon.no_disk():
        without = engine.ask(request)[0]
    assert (without.cached, without.tokens) == (0, cold.tokens)

    def logged() -> bool:
        again = ask(daemon, engine, "unlogged", tokens)
        assert again.tokens == cold.tokens
        return again.cached == full

    eventually(logged, "the log is written and the prefix reused again")


def test_a_killed_engine_leaves_no_plaintext_and_the_next_one_goes_on(
    daemon: Daemon, engine: Engine
) -> None:
    tokens = prompt(80)
    cold = store(daemon, engine, "survivor", tokens)
    engine.kill()

    def forgotten() -> bool:
        status = daemon.admin("status")
        assert isinstance(status, dict)
        return (status["engine"], status["requests"]) == ("", 0)

    eventually(forgotten, "the daemon lets the engine's requests go")
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "kvrun-staging" not in maps
    engine.start_again()
    again = ask(daemon, engine, "survivor", tokens)
    assert (again.cached, again.tokens) == (len(tokens) // BLOCK * BLOCK, cold.tokens)
