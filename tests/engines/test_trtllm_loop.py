"""The TensorRT-LLM connector in a simulated executor loop (not run on TensorRT-LLM)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("blake3")

from kvrun.engines.tensorrt_llm import connector
from kvrun.engines.tensorrt_llm.connector import BrokenPromiseError, KvrunScheduler, KvrunWorker
from kvrun.engines.tensorrt_llm.tokens import salt_number
from kvrun.errors import KvrunError
from kvrun.instance.protocol import page_owner
from support.announcing import announced
from support.client import eventually, prompt
from support.daemon import PATIENT, Daemon
from support.executor import BLOCK, Answer, Executor, llm_args

LENGTH = 10 * BLOCK + 5
WHOLE = 10 * BLOCK
FINGERPRINT = "11" * 32


@pytest.fixture(scope="module")
def environment(daemon: Daemon) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLLM_KVRUN_SOCKET", str(daemon.socket))
        patch.setenv("TLLM_KVRUN_MODEL_FINGERPRINT", FINGERPRINT)
        yield


@pytest.fixture(scope="module", params=["1.2", "newer"])
def executor(environment: None, request: pytest.FixtureRequest) -> Iterator[Executor]:
    yield from engine(newer=request.param == "newer")


def engine(**options: Any) -> Iterator[Executor]:
    args = llm_args()
    worker, scheduler = KvrunWorker(args), KvrunScheduler(args)
    yield Executor(scheduler, worker, **options)
    scheduler.close()


def named(executor: Executor, session: str = "default") -> str:
    """A session of this release's own: the daemon serves both, one after the other."""
    return f"{session}-{'newer' if executor.newer else '1.2'}"


def ask(
    daemon: Daemon,
    executor: Executor,
    tenant: str,
    tokens: list[int],
    *,
    session: str = "default",
    new: int = 3,
) -> Answer:
    return asked(daemon, executor, tenant, tokens, session=session, new=new)[1]


def asked(
    daemon: Daemon,
    executor: Executor,
    tenant: str,
    tokens: list[int],
    *,
    session: str = "default",
    new: int = 3,
) -> tuple[str, Answer]:
    request_id, granted = announced(daemon, tenant, session=named(executor, session))
    # 1.2 tells the connector the salt's number, newer releases the salt.
    if executor.newer:
        answer = executor.generate(tokens, salt=granted.salt, new=new)
    else:
        answer = executor.generate(tokens, number=salt_number(granted.salt), new=new)
    return request_id, answer


def store(
    daemon: Daemon,
    executor: Executor,
    tenant: str,
    tokens: list[int],
    *,
    already: int = 0,
    **options: Any,
) -> Answer:
    request_id, answer = asked(daemon, executor, tenant, tokens, **options)
    blocks = len(tokens) // BLOCK - already
    eventually(lambda: daemon.reuse(request_id).sealed_blocks >= blocks, f"{blocks} sealed blocks")
    daemon.admin("flush")
    return answer


def test_the_same_session_reuses_and_the_answer_stays_the_same(
    daemon: Daemon, executor: Executor
) -> None:
    tokens = prompt(1, LENGTH)
    cold = store(daemon, executor, "alice", tokens)
    request_id, warm = asked(daemon, executor, "alice", tokens)
    assert (cold.matched, warm.matched) == (0, WHOLE)
    assert warm.tokens == cold.tokens
    assert daemon.reuse(request_id).memory_tokens == WHOLE


def test_strangers_reuse_nothing(daemon: Daemon, executor: Executor) -> None:
    tokens = prompt(2, LENGTH)
    cold = store(daemon, executor, "alice", tokens)
    for tenant, session in [("bob", "default"), ("alice", "other")]:
        stranger = ask(daemon, executor, tenant, tokens, session=session)
        assert (stranger.matched, stranger.tokens) == (0, cold.tokens)
    assert ask(daemon, executor, "alice", tokens).matched == WHOLE


def test_without_a_claim_nothing_is_reused_or_sealed(daemon: Daemon, executor: Executor) -> None:
    tokens = prompt(3, LENGTH)
    cold = store(daemon, executor, "alice", tokens)
    _, granted = announced(daemon, "alice", session=named(executor), claim="kvc1.forged")
    forged = executor.generate(tokens, salt=granted.salt, number=salt_number(granted.salt))
    nobody = executor.generate(tokens)
    assert (forged.matched, nobody.matched) == (0, 0)
    assert forged.tokens == nobody.tokens == cold.tokens


def test_a_claim_serves_one_request_only(daemon: Daemon, executor: Executor) -> None:
    tokens = prompt(4, LENGTH)
    store(daemon, executor, "alice", tokens)
    _, granted = announced(daemon, "alice", session=named(executor))
    salts: dict[str, Any] = {"salt": granted.salt, "number": salt_number(granted.salt)}
    if executor.newer:
        del salts["number"]
    hub = connector._rank.hub
    assert hub is not None
    first = executor.generate(tokens, **salts)
    # The next one waits for a claim of its own; nobody announces one.
    hub.admissions.deadline_s = 0.05
    second = executor.generate(tokens, **salts)
    hub.admissions.deadline_s = 20.0
    assert (first.matched, second.matched) == (WHOLE, 0)
    assert second.tokens == first.tokens


def test_an_answer_is_sealed_too_and_the_next_turn_reuses_it(
    daemon: Daemon, executor: Executor
) -> None:
    question = prompt(5, 2 * BLOCK)
    first = store(daemon, executor, "alice", question, new=2 * BLOCK + 3)
    turn = question + first.tokens + prompt(6, 9)
    eventually(
        lambda: ask(daemon, executor, "alice", turn).matched == 4 * BLOCK,
        "prompt and answer of the first turn are reused",
    )
    assert ask(daemon, executor, "alice", turn).tokens == ask(daemon, executor, "bob", turn).tokens


@pytest.mark.parametrize("chunk", [BLOCK, 24, 7])
def test_chunked_prefill_seals_only_what_is_computed(
    daemon: Daemon, executor: Executor, chunk: int
) -> None:
    tokens = prompt(700 + chunk, LENGTH)
    executor.chunk = chunk
    cold = store(daemon, executor, "alice", tokens)
    longer = [*tokens, *prompt(7, 3 * BLOCK)]
    extended = ask(daemon, executor, "alice", longer)
    executor.chunk = 4096
    warm = ask(daemon, executor, "alice", tokens)
    whole = ask(daemon, executor, "bob", longer)
    assert extended.matched == WHOLE
    assert (warm.tokens, extended.tokens) == (cold.tokens, whole.tokens)


def test_a_damaged_block_costs_its_tokens_and_those_behind_it(
    daemon: Daemon, executor: Executor
) -> None:
    tenant, tokens = f"damaged-{executor.newer}", prompt(8, LENGTH)
    cold = store(daemon, executor, tenant, tokens[: 4 * BLOCK + 1])
    before = set((daemon.data / "storage").rglob("*.kvs"))
    cold = store(daemon, executor, tenant, tokens[: 5 * BLOCK + 1], already=4)
    (fifth,) = set((daemon.data / "storage").rglob("*.kvs")) - before
    right = store(daemon, executor, tenant, tokens, already=5)
    daemon.stop()
    content = bytearray(fifth.read_bytes())
    content[len(content) // 2] ^= 1
    fifth.write_bytes(content)
    failures = daemon.count("integrity_failure")
    daemon.start()
    reconnect(daemon, executor)
    hurt = ask(daemon, executor, tenant, tokens)
    assert cold.tokens != right.tokens
    assert (hurt.matched, hurt.tokens) == (4 * BLOCK, right.tokens)
    assert daemon.count("integrity_failure") == failures + 1


def test_a_daemon_that_went_away_costs_the_cache_only(daemon: Daemon, executor: Executor) -> None:
    tokens = prompt(9, LENGTH)
    cold = store(daemon, executor, "alice", tokens)
    daemon.kill()
    away = executor.generate(tokens, salt="s" * 43)
    daemon.start()
    reconnect(daemon, executor)
    back = ask(daemon, executor, "alice", tokens)
    assert (away.matched, back.matched) == (0, WHOLE)
    assert away.tokens == back.tokens == cold.tokens


def test_a_daemon_that_goes_between_promise_and_use_ends_the_step(
    daemon: Daemon, executor: Executor
) -> None:
    tokens = prompt(10, LENGTH)
    store(daemon, executor, "alice", tokens)
    _, granted = announced(daemon, "alice", session=named(executor))
    salts: dict[str, Any] = (
        {"salt": granted.salt} if executor.newer else {"number": salt_number(granted.salt)}
    )
    with executor.running(tokens, **salts) as running:
        assert running.computed == WHOLE
        daemon.kill()
        with pytest.raises(BrokenPromiseError, match="went away"):
            executor._prefill(running)
    daemon.start()
    reconnect(daemon, executor)


def test_a_block_without_an_id_is_neither_written_nor_sealed(
    daemon: Daemon, executor: Executor
) -> None:
    tokens = prompt(12, LENGTH)
    store(daemon, executor, "alice", tokens)
    before = executor.tensor[-1].clone()
    executor.bad_blocks = True
    try:
        with pytest.raises(BrokenPromiseError, match="no block"):
            ask(daemon, executor, "alice", tokens)
    finally:
        executor.bad_blocks = False
    assert executor.tensor[-1].equal(before)


def test_erasing_reaches_the_engine_and_says_what_running_requests_hold(
    daemon: Daemon, executor: Executor
) -> None:
    tenant, tokens = f"erased-{executor.newer}", prompt(13, LENGTH)
    store(daemon, executor, tenant, tokens)
    hub = connector._rank.hub
    assert hub is not None
    _, granted = announced(daemon, tenant, session=named(executor))
    salts: dict[str, Any] = (
        {"salt": granted.salt} if executor.newer else {"number": salt_number(granted.salt)}
    )
    finished = connector._rank.finished
    with executor.running(tokens, **salts) as running:
        executor._prefill(running)
        blocks = list(running.blocks)
        finished.ask(-1, [page_owner(granted.salt)], False)
        plans = [(p.owner, len(p.blocks)) for p in executor.scheduler._plans.values()]
        (held,) = finished.progress(plans)
        assert held.held == len(blocks)
        assert executor.tensor[blocks].any()
    # Zero before they are free again, erasure or not.
    assert not executor.tensor[blocks].any()
    eventually(lambda: finished._calls[-1].reported == 0, "the rest is reported")
    assert finished._calls[-1].scrubbed == len(blocks)
    stated = daemon.erase_session(tenant, named(executor))
    eventually(lambda: daemon.confirmed(stated), "the engine confirms")
    assert not executor.tensor.any()
    assert ask(daemon, executor, tenant, tokens).matched == 0


def test_blocks_of_other_weights_are_never_found(
    daemon: Daemon, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(14, LENGTH)
    for _, executor in zip(range(1), engine(newer=True), strict=False):
        store(daemon, executor, "alice", tokens)
        assert ask(daemon, executor, "alice", tokens).matched == WHOLE
    monkeypatch.setenv("TLLM_KVRUN_MODEL_FINGERPRINT", "22" * 32)
    eventually(lambda: daemon.count("deployment_stopped") > 0, "the engine is gone")
    for _, executor in zip(range(1), engine(newer=True), strict=False):
        assert ask(daemon, executor, "alice", tokens).matched == 0


def test_a_stateless_deployment_reuses_and_seals_nothing(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stateless = Daemon(short_folder, settings=PATIENT + "[deployment]\nstateless = true\n")
    stateless.start()
    monkeypatch.setenv("TLLM_KVRUN_SOCKET", str(stateless.socket))
    monkeypatch.setenv("TLLM_KVRUN_MODEL_FINGERPRINT", FINGERPRINT)
    try:
        for _, executor in zip(range(1), engine(newer=True), strict=False):
            tokens = prompt(15, LENGTH)
            first, second = (ask(stateless, executor, "alice", tokens) for _ in range(2))
            assert (first.matched, second.matched) == (0, 0)
            assert first.tokens == second.tokens
        assert not list(stateless.data.rglob("*.kvs"))
        assert stateless.count("sealed") == 0
    finally:
        stateless.stop()


def test_an_engine_without_a_daemon_does_not_start(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLLM_KVRUN_SOCKET", str(short_folder / "none.sock"))
    with pytest.raises(KvrunError, match="launch token"):
        next(engine())


def reconnect(daemon: Daemon, executor: Executor) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        request_id, _ = asked(
            daemon, executor, "warm-up", prompt(int.from_bytes(os.urandom(3), "big"), 2 * BLOCK + 1)
        )
        time.sleep(0.05)
        try:
            if daemon.reuse(request_id).sealed_blocks:
                return
        except KvrunError:
            continue
    raise AssertionError("the engine did not find the daemon again")
