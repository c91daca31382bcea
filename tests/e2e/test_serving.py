"""The main claim, end to end: one deployment's processes and the stock OpenAI client."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from e2e_rig import (
    WINDOW,
    Answer,
    User,
    engine_metric,
    eventually,
    files_with,
    running,
    words,
)

from kvrun.audit.segment import SIGNER_NAME
from kvrun.instance.handles import Reuse
from kvrun.launch.processes import ENGINE, INSTANCE
from kvrun.launch.stack import Stack
from support.keycopy import key_traces
from support.memory import family, find_in_memory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
MAX_SESSIONS = 3
BLOCK = 128


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    settings = {
        "KVRUN_GATEWAY__MULTI_TENANT": "true",
        "KVRUN_KEYS__MAX_SESSIONS_PER_TENANT": str(MAX_SESSIONS),
        # A loaded test machine may answer late; deadlines have tests of their own.
        "KVRUN_GATEWAY__SESSION_TIMEOUT_S": "20",
        "KVRUN_INSTANCE__MATCH_DEADLINE_MS": "20000",
        "KVRUN_INSTANCE__LOAD_DEADLINE_MS": "60000",
    }
    with running(settings=settings) as started:
        yield started


def user(stack: Stack, tenant: str | None, session: str | None = None) -> User:
    return User(stack.url, stack.api_key, tenant, session=session)


def reused(stack: Stack, answer: Answer) -> Reuse:
    """What the daemon counted for an answer, which the answer must say as well."""
    reuse = stack.reuse(answer.request_id)
    assert reuse.prompt_tokens == answer.prompt_tokens
    counted = reuse.engine_tokens + reuse.memory_tokens + reuse.disk_tokens
    assert answer.cached_tokens == counted, reuse
    return reuse


def sealed(stack: Stack, answer: Answer) -> Answer:
    """The answer, once every whole block of its prompt is sealed and in its tiers."""
    expected = answer.prompt_tokens // BLOCK - answer.cached_tokens // BLOCK
    eventually(
        lambda: stack.reuse(answer.request_id).sealed_blocks >= expected,
        f"{expected} blocks are sealed",
    )
    stack.flush()
    return answer


def mostly(answer: Answer) -> int:
    """What counts as having reused a prompt: all but its last, incomplete blocks."""
    return answer.prompt_tokens // 2


def test_only_the_same_session_reuses_what_the_engine_holds(stack: Stack) -> None:
    prompt = words(1)
    first = user(stack, "alice").complete(prompt)
    assert reused(stack, first) == Reuse(
        first.request_id,
        first.prompt_tokens,
        sealed_blocks=stack.reuse(first.request_id).sealed_blocks,
    )
    for stranger in (user(stack, "bob"), user(stack, "alice", "second")):
        answer = stranger.complete(prompt)
        assert answer.text == first.text
        assert answer.cached_tokens == 0
        reused(stack, answer)
    again = user(stack, "alice").complete(prompt)
    assert again.text == first.text
    assert reused(stack, again).engine_tokens > mostly(first)


def test_a_chat_reuses_its_earlier_turns(stack: Stack) -> None:
    alice = user(stack, "alice")
    question = words(2)
    first = alice.chat(question)
    assert first.text
    assert first.cached_tokens == 0
    assert alice.chat(question).text == first.text
    second = alice.chat(question, first.text, "and why?")
    assert second.prompt_tokens > first.prompt_tokens
    assert reused(stack, second).engine_tokens > mostly(first)


def test_a_stream_says_the_same_as_a_whole_answer(stack: Stack) -> None:
    alice = user(stack, "alice")
    whole = alice.complete(words(3))
    raw = alice.client.completions.with_raw_response.create(
        model=alice.model,
        prompt=words(3),
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(raw.parse())
    assert len(chunks) > 3
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.text
    details = chunks[-1].usage.prompt_tokens_details
    reuse = stack.reuse(raw.headers["X-KV-Request-Id"])
    assert details.cached_tokens == reuse.engine_tokens > mostly(whole)
    assert not any("kv_transfer_params" in chunk.model_extra for chunk in chunks)


def test_an_answer_carries_its_request_id_and_nothing_of_the_stamp(stack: Stack) -> None:
    for answer in (user(stack, "alice").complete("hello"), user(stack, "alice").chat("hello")):
        assert answer.request_id.startswith("kvr-")
        for name in ("kv_transfer_params", "kvrun_claim", "cache_salt"):
            assert name not in answer.raw


def test_a_prompt_beyond_the_window_is_refused_with_both_numbers(stack: Stack) -> None:
    long = words(4, 1000)
    with pytest.raises(openai.BadRequestError) as refusal:
        user(stack, "alice").complete(long)
    message = str(refusal.value.body["message"])  # type: ignore[index]
    numbers = [int(part) for part in message.replace(".", " ").split() if part.isdigit()]
    assert WINDOW in numbers
    assert any(number > WINDOW for number in numbers), message


def test_a_request_without_a_tenant_is_refused(stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError, match="X-KV-Tenant"):
        user(stack, None).complete("hello")


def test_a_tenant_with_too_many_sessions_gets_429(stack: Stack) -> None:
    for number in range(MAX_SESSIONS):
        user(stack, "many", f"s{number}").complete("hello", 1)
    with pytest.raises(openai.RateLimitError):
        user(stack, "many", "one-more").complete("hello", 1)
    # Those that exist, and other tenants, go on.
    user(stack, "many", "s0").complete("hello", 1)
    user(stack, "alice").complete("hello", 1)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_ends_its_request_in_the_engine(stack: Stack, streaming: bool) -> None:
    tokens = WINDOW - 100
    before = engine_metric(stack, "vllm:generation_tokens_total")
    alice = user(stack, "alice")
    request = {
        "model": alice.model,
        "prompt": "leaving",
        "max_tokens": tokens,
        "extra_body": {"ignore_eos": True},
    }
    if streaming:
        stream = alice.client.completions.create(**request, stream=True)
        next(stream)
        assert engine_metric(stack, "vllm:num_requests_running") == 1
        stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            alice.client.with_options(timeout=2).completions.create(**request)
    eventually(
        lambda: engine_metric(stack, "vllm:num_requests_running") == 0,
        "the engine has no request left",
    )
    made = engine_metric(stack, "vllm:generation_tokens_total") - before
    assert 0 < made < tokens


def test_an_erased_session_is_cold(stack: Stack) -> None:
    erin = user(stack, "erin")
    first = erin.complete(words(5))
    reused(stack, first)
    assert reused(stack, erin.complete(words(5))).engine_tokens > mostly(first)
    assert len(stack.erase("erin")) == 1
    after = erin.complete(words(5))
    assert after.text == first.text
    assert after.cached_tokens == 0
    assert reused(stack, after).denied == ""
    # A new key was made: from here on she reuses again.
    assert erin.complete(words(5)).cached_tokens > 0


@pytest.mark.root
def test_a_sessions_key_is_in_the_daemon_alone_and_once_erased_nowhere(
    stack: Stack, tmp_path: Path
) -> None:
    olga = user(stack, "olga")
    sealed(stack, olga.complete(words(11)))
    needles = key_traces(stack.config.layout.data_dir, tmp_path, "olga").needles

    def holders() -> set[str]:
        return {
            name
            for name, pid in stack.supervisor.pids().items()
            for each in family(pid)
            if any(find_in_memory(each, needles).values())
        }

    assert holders() == {INSTANCE}
    assert len(stack.erase("olga")) == 1
    assert holders() == set()


def test_no_process_of_the_engine_would_leave_its_memory_in_a_core_dump(stack: Stack) -> None:
    processes = family(stack.supervisor.pids()[ENGINE])
    assert len(processes) >= 2, "API server and engine core"
    for pid in processes:
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (1, 1)
        assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0


def test_while_the_daemon_is_away_answers_go_on_uncached_and_afterwards_cached(
    stack: Stack,
) -> None:
    dora = user(stack, "dora")
    first = dora.complete(words(6))
    stack.supervisor.kill(INSTANCE)
    try:
        for _ in range(2):
            alone = dora.complete(words(6))
            assert alone.text == first.text
            assert alone.cached_tokens == 0
    finally:
        stack.start(INSTANCE)

    def cached() -> bool:
        answer = dora.complete(words(6))
        assert answer.text == first.text
        return answer.cached_tokens > mostly(first)

    eventually(cached, "requests are cached again")


@dataclass(frozen=True, slots=True)
class Before:
    """What was asked before a restart, and what came."""

    prompt: str
    first: Answer


def test_after_an_engine_restart_only_the_same_session_reuses_the_memory_tier(
    stack: Stack,
) -> None:
    before = Before(words(7), sealed(stack, user(stack, "alice").complete(words(7))))
    stack.stop(ENGINE)
    stack.start(ENGINE)
    for stranger in (user(stack, "bob"), user(stack, "alice", "second")):
        answer = stranger.complete(before.prompt)
        assert answer.text == before.first.text
        assert answer.cached_tokens == 0
    again = user(stack, "alice").complete(before.prompt)
    assert again.text == before.first.text
    reuse = reused(stack, again)
    assert reuse.memory_tokens > mostly(again)
    assert (reuse.engine_tokens, reuse.disk_tokens) == (0, 0)


@pytest.fixture(scope="module")
def restarted(stack: Stack) -> dict[str, Before]:
    """Daemon and engine were restarted; of ``damaged``, one stored block was changed meanwhile."""
    asked = {}
    for tenant, seed in (("alice", 8), ("damaged", 9)):
        known = set(stack.blocks.rglob("*.kvs"))
        asked[tenant] = Before(
            words(seed), sealed(stack, user(stack, tenant).complete(words(seed)))
        )
        stored = sorted(set(stack.blocks.rglob("*.kvs")) - known)
        assert len(stored) > 3
    stack.stop(ENGINE, INSTANCE)
    content = bytearray(stored[0].read_bytes())
    content[len(content) // 2] ^= 1
    stored[0].write_bytes(content)
    stack.start(INSTANCE, ENGINE)
    return asked


def test_after_both_restarted_only_the_same_session_reuses_the_persistent_tier(
    stack: Stack, restarted: dict[str, Before]
) -> None:
    before = restarted["alice"]
    for stranger in (user(stack, "bob"), user(stack, "alice", "second")):
        answer = stranger.complete(before.prompt)
        assert answer.text == before.first.text
        assert answer.cached_tokens == 0
    again = user(stack, "alice").complete(before.prompt)
    assert again.text == before.first.text
    reuse = reused(stack, again)
    assert reuse.disk_tokens > mostly(again)
    assert (reuse.engine_tokens, reuse.memory_tokens) == (0, 0)


def test_a_changed_block_is_recomputed_and_logged(
    stack: Stack, restarted: dict[str, Before]
) -> None:
    before = restarted["damaged"]
    again = user(stack, "damaged").complete(before.prompt)
    assert again.text == before.first.text
    assert reused(stack, again).failed_blocks == 1
    failures = [event for event in stack.events() if event["event"] == "integrity_failure"]
    assert [event["request_id"] for event in failures] == [again.request_id]


def test_no_file_holds_text_of_a_prompt(stack: Stack) -> None:
    marker = "sevenpurplewalruses"
    user(stack, "alice").complete(f"{marker} {words(10)}")
    stack.flush()
    folder = stack.config.layout.data_dir.parent
    assert list(stack.blocks.rglob("*.kvs"))
    assert files_with(folder, "integrity") != [], "the search finds what is there"
    assert files_with(folder, marker) == []


def verify(*arguments: object) -> int:
    command = [sys.executable, "-m", "kvrun", "verify", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode


def test_the_log_verifies_under_its_key_and_not_when_changed(stack: Stack, tmp_path: Path) -> None:
    user(stack, "alice").complete("hello", 1)
    stack.flush()
    audit = stack.config.layout.audit
    key = shutil.copy(audit / SIGNER_NAME, tmp_path / "log.vkey")
    assert verify(audit) == 2  # nothing wrong, but the log's own word for the key
    assert verify(audit, "--key", key) == 0
    copy = tmp_path / "audit"
    shutil.copytree(audit, copy)
    segment = sorted(copy.glob("*.jsonl"))[0]
    text = segment.read_text()
    assert '"alice"' not in text
    segment.write_text(text.replace('"outcome":"ok"', '"outcome":"no"', 1))
    assert segment.read_text() != text
    assert verify(copy, "--key", key) == 1
