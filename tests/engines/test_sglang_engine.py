"""A real SGLang under kvrun: reuse within a session only, faults are misses, erasure reaches it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sglang", reason="runs in scripts/sglang-venv.sh's environment")

from kvrun.errors import KvrunError
from support.announcing import announced
from support.client import eventually, prompt
from support.daemon import PATIENT, Daemon
from support.sglang_engine import PAGE, Answer, SglangEngine

pytestmark = [pytest.mark.long, pytest.mark.real("SGLang"), pytest.mark.timeout(1200)]

LENGTH = 20 * PAGE + 5
WHOLE = 20 * PAGE


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[SglangEngine]:
    running = SglangEngine(tiny_llama, daemon.socket, module_folder / "engine.log")
    yield running
    running.stop()


def asked(
    daemon: Daemon,
    engine: SglangEngine,
    tenant: str,
    tokens: list[int],
    *,
    session: str = "default",
    max_tokens: int = 8,
) -> tuple[str, Answer]:
    request_id, granted = announced(daemon, tenant, session=session)
    return request_id, engine.ask(tokens, granted.salt, max_tokens=max_tokens)


def ask(
    daemon: Daemon,
    engine: SglangEngine,
    tenant: str,
    tokens: list[int],
    *,
    session: str = "default",
) -> Answer:
    return asked(daemon, engine, tenant, tokens, session=session)[1]


def store(
    daemon: Daemon,
    engine: SglangEngine,
    tenant: str,
    tokens: list[int],
    *,
    session: str = "default",
    max_tokens: int = 8,
    already: int = 0,
) -> Answer:
    request_id, answer = asked(
        daemon, engine, tenant, tokens, session=session, max_tokens=max_tokens
    )
    pages = len(tokens) // PAGE - already
    eventually(lambda: daemon.reuse(request_id).sealed_blocks >= pages, f"{pages} sealed pages")
    daemon.admin("flush")
    return answer


def same(one: Answer, other: Answer) -> None:
    """The same tokens, and log probabilities that differ by rounding at most."""
    assert one.tokens == other.tokens
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def reconnect(daemon: Daemon, engine: SglangEngine) -> None:
    """Ask until the engine has found the daemon again."""

    def sealed() -> bool:
        tokens = prompt(secrets.randbits(32), 2 * PAGE + 1)
        try:
            request_id, _ = asked(daemon, engine, "warm-up", tokens)
            return daemon.reuse(request_id).sealed_blocks > 0
        except KvrunError:
            # A daemon that stood still first has its keys confirmed again.
            return False

    eventually(sealed, "the engine has found the daemon again", timeout_s=60)


def test_the_same_session_reuses_from_engine_memory_and_disk(
    daemon: Daemon, engine: SglangEngine
) -> None:
    tokens = prompt(1, LENGTH)
    cold = store(daemon, engine, "alice", tokens)
    device_id, device = asked(daemon, engine, "alice", tokens)
    engine.flush()
    memory_id, memory = asked(daemon, engine, "alice", tokens)
    assert daemon.reuse(device_id).engine_tokens == WHOLE
    assert daemon.reuse(memory_id).memory_tokens == WHOLE
    daemon.stop()
    daemon.start()
    reconnect(daemon, engine)
    engine.flush()
    disk_id, disk = asked(daemon, engine, "alice", tokens)
    assert (cold.cached, device.cached, memory.stored, disk.stored) == (0, WHOLE, WHOLE, WHOLE)
    for answer in (device, memory, disk):
        same(answer, cold)
    assert daemon.reuse(disk_id).disk_tokens == WHOLE


def test_strangers_reuse_nothing_in_any_tier(daemon: Daemon, engine: SglangEngine) -> None:
    tokens = prompt(2, LENGTH)
    cold = store(daemon, engine, "alice", tokens)
    for tier in ("engine", "memory"):
        if tier == "memory":
            engine.flush()
        for tenant, session in [("bob", tier), ("alice", f"other-{tier}"), ("Alice", tier)]:
            stranger = ask(daemon, engine, tenant, tokens, session=session)
            assert stranger.cached == 0
            same(stranger, cold)
        again = ask(daemon, engine, "alice", tokens)
        assert again.cached == WHOLE
        same(again, cold)


def test_a_second_turn_reuses_the_first_turns_answer(daemon: Daemon, engine: SglangEngine) -> None:
    question = prompt(3, 4 * PAGE)
    first = store(daemon, engine, "alice", question, max_tokens=3 * PAGE + 2)
    turn = question + first.tokens + prompt(4, 5)
    engine.flush()
    eventually(
        lambda: ask(daemon, engine, "alice", turn).cached >= 7 * PAGE, "the answer is reused"
    )
    engine.flush()
    warm, cold = (ask(daemon, engine, tenant, turn) for tenant in ("alice", "bob"))
    assert cold.cached == 0
    assert warm.cached >= 7 * PAGE
    same(warm, cold)


def test_without_a_claim_nothing_is_reused_or_sealed(daemon: Daemon, engine: SglangEngine) -> None:
    tokens = prompt(5, LENGTH)
    cold = store(daemon, engine, "alice", tokens)
    _, granted = announced(daemon, "alice", claim="kvc1.forged")
    sealed = daemon.count("sealed")
    forged = engine.ask(tokens, granted.salt)
    nobody = [engine.ask(tokens), engine.ask(tokens)]
    random = [engine.ask(tokens, salt) for salt in [secrets.token_urlsafe(32)] * 2]
    for answer in (forged, *nobody, *random):
        assert answer.cached == 0
        same(answer, cold)
    daemon.admin("flush")
    assert daemon.count("sealed") == sealed
    assert ask(daemon, engine, "alice", tokens).cached == WHOLE


def test_a_damaged_page_costs_its_tokens_and_is_reported(
    daemon: Daemon, engine: SglangEngine
) -> None:
    tokens = prompt(6, LENGTH)
    store(daemon, engine, "damaged", tokens[: 8 * PAGE])
    before = set((daemon.data / "storage").rglob("*.kvs"))
    store(daemon, engine, "damaged", tokens[: 9 * PAGE], already=8)
    ninth = set((daemon.data / "storage").rglob("*.kvs")) - before
    right = store(daemon, engine, "damaged", tokens, already=9)
    daemon.stop()
    for file in ninth:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    failures = daemon.count("integrity_failure")
    daemon.start()
    reconnect(daemon, engine)
    engine.flush()
    hurt = ask(daemon, engine, "damaged", tokens)
    assert hurt.cached == 8 * PAGE
    same(hurt, right)
    assert daemon.count("integrity_failure") == failures + 1


@pytest.mark.parametrize("how", ["gone", "stopped"])
def test_a_daemon_that_does_not_answer_costs_the_cache_only(
    daemon: Daemon, engine: SglangEngine, how: str
) -> None:
    tokens = prompt(7, LENGTH)
    cold = store(daemon, engine, f"away-{how}", tokens)
    _, granted = announced(daemon, f"away-{how}")
    if how == "gone":
        daemon.kill()
    else:
        daemon.pause()
    try:
        away = engine.ask(tokens, granted.salt)
    finally:
        if how == "gone":
            daemon.start()
        else:
            daemon.resume()
    assert away.cached == 0
    same(away, cold)
    reconnect(daemon, engine)
    engine.flush()
    back = ask(daemon, engine, f"away-{how}", tokens)
    assert back.stored == WHOLE
    same(back, cold)


def test_an_erased_session_is_cold_and_its_pages_are_confirmed_zero(
    daemon: Daemon, engine: SglangEngine
) -> None:
    tokens = prompt(8, LENGTH)
    cold = store(daemon, engine, "erased", tokens, session="one")
    kept = store(daemon, engine, "erased", tokens, session="two")
    assert ask(daemon, engine, "erased", tokens, session="one").cached == WHOLE
    stated = daemon.erase_session("erased", "one")
    eventually(lambda: daemon.confirmed(stated), "the engine confirms")
    again = ask(daemon, engine, "erased", tokens, session="one")
    assert again.cached == 0
    same(again, cold)
    other = ask(daemon, engine, "erased", tokens, session="two")
    assert other.cached == WHOLE
    same(other, kept)


def test_an_engine_restart_keeps_the_sealed_pages(daemon: Daemon, engine: SglangEngine) -> None:
    tokens = prompt(9, LENGTH)
    cold = store(daemon, engine, "restart", tokens)
    engine.restart()
    warm = ask(daemon, engine, "restart", tokens)
    assert (warm.cached, warm.stored) == (WHOLE, WHOLE)
    same(warm, cold)


def test_an_engine_whose_host_memory_would_hold_plaintext_does_not_start(
    daemon: Daemon, tiny_llama: Path, module_folder: Path
) -> None:
    log = module_folder / "refused.log"
    with pytest.raises(RuntimeError, match="hicache-host-memory-mode"):
        SglangEngine(tiny_llama, daemon.socket, log, hicache_host_memory_mode="cache")


def test_stateless_reuses_nothing_and_writes_nothing(short_folder: Path, tiny_llama: Path) -> None:
    stateless = Daemon(short_folder, settings=PATIENT + "[deployment]\nstateless = true\n")
    stateless.start()
    running = SglangEngine(tiny_llama, stateless.socket, short_folder / "engine.log")
    try:
        tokens = prompt(10, LENGTH)
        first, second = (ask(stateless, running, "alice", tokens) for _ in range(2))
        assert (first.cached, second.cached) == (0, 0)
        same(first, second)
        stateless.admin("flush")
        assert not list(stateless.data.rglob("*.kvs"))
        assert stateless.count("sealed") == 0
    finally:
        running.stop()
        stateless.stop()
