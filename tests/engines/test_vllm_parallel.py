"""Two tensor-parallel workers seal a half of each block; a reload brings both halves back."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client import ask, claimed, eventually, prompt, reconnect
from support.daemon import Daemon
from support.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TOKENS = prompt(101, 700)
WHOLE = 640


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    running = Engine(
        tiny_llama,
        daemon.socket,
        module_folder / "engine.log",
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        tensor_parallel_size=2,
    )
    yield running
    running.stop()


def test_a_reload_equals_the_engines_own_cache(daemon: Daemon, engine: Engine) -> None:
    request_id, request = claimed(daemon, "alice", TOKENS)
    cold = engine.ask(request)[0]
    own = ask(daemon, engine, "alice", TOKENS)
    # Both ranks sealed each of the five blocks, and a block counts once both have it.
    eventually(lambda: daemon.reuse(request_id).sealed_blocks == 10, "both ranks sealed")
    daemon.admin("flush")
    engine.reset()
    reload_id, request = claimed(daemon, "alice", TOKENS)
    reloaded = engine.ask(request)[0]
    assert (cold.cached, own.cached, reloaded.cached) == (0, WHOLE, WHOLE)
    assert reloaded.tokens == own.tokens == cold.tokens
    assert daemon.reuse(reload_id).memory_tokens == WHOLE
    engine.reset()
    bob_id, request = claimed(daemon, "bob", TOKENS)
    assert engine.ask(request)[0].cached == 0
    eventually(lambda: daemon.reuse(bob_id).sealed_blocks == 10, "both ranks sealed bob's")
    daemon.admin("flush")


def test_the_connector_alone_keeps_every_rank_out_of_core_dumps(engine: Engine) -> None:
    """As in a vLLM that somebody else starts: only who computes loads the connector."""
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in engine.pids}
    computing = [engine.pid, *(pid for pid, title in titles.items() if title[:6] == b"VLLM::")]
    assert len(computing) >= 3, titles
    for pid in computing:
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (1, 1)
        assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0


def test_a_block_that_one_rank_lost_is_recomputed(daemon: Daemon, engine: Engine) -> None:
    tokens = prompt(102, 700)
    before = set((daemon.data / "storage").rglob("*.kvs"))
    request_id, request = claimed(daemon, "carol", tokens)
    cold = engine.ask(request)[0]
    eventually(lambda: daemon.reuse(request_id).sealed_blocks == 10, "both ranks sealed")
    daemon.admin("flush")
    made = sorted(set((daemon.data / "storage").rglob("*.kvs")) - before)
    assert len(made) == 10
    daemon.stop()
    made[0].unlink()
    daemon.start()
    reconnect(daemon, engine)
    engine.reset()
    answer = ask(daemon, engine, "carol", tokens)
    assert answer.tokens == cold.tokens
    assert answer.cached < WHOLE
