"""llama.cpp through the daemon: what a session's slot held is its own, sealed, right, erasable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_rig import SLOTS, WINDOW, Answer, RefusedError, SlotServer, chat_ask, events

from kvrun.errors import KvrunError
from kvrun.models.folders import cache_folder
from kvrun.models.gguf import ensure_demo_gguf
from support.client import ask, claimed, eventually, prompt, unclaimed
from support.daemon import PATIENT, Daemon

pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.engine, pytest.mark.real("llama.cpp")]

STRANGERS = [("bob", "default"), ("alice", "another")]


@pytest.fixture(scope="session")
def gemma() -> Path:
    """The demo model, whose sliding windows have 512 tokens."""
    return ensure_demo_gguf(cache_folder(), print)


@pytest.fixture(scope="module")
def daemon(module_folder: Path) -> Iterator[Daemon]:
    running = Daemon(module_folder, settings=PATIENT.replace("20000", "3000"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def server(daemon: Daemon, gemma: Path) -> Iterator[SlotServer]:
    running = SlotServer(daemon, gemma)
    yield running
    running.stop()


def likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def kept(tokens: int) -> int:
    return (tokens - 1) // 64 * 64


def test_only_the_same_session_reuses_and_every_answer_is_the_same(
    daemon: Daemon, server: SlotServer
) -> None:
    tokens = prompt(201, 130)
    cold = ask(daemon, server, "alice", tokens)
    for tenant, session in STRANGERS:
        stranger = ask(daemon, server, tenant, tokens, session=session)
        assert (stranger.cached, stranger.text) == (0, cold.text)
    bare = server.ask(unclaimed(tokens))[0]
    assert (bare.cached, bare.text) == (0, cold.text)
    warm = ask(daemon, server, "alice", tokens)
    assert (warm.cached, warm.text) == (kept(130), cold.text)


def test_a_prompt_longer_than_the_sliding_window_is_reused_and_right(
    daemon: Daemon, server: SlotServer
) -> None:
    tokens = prompt(211, 540)
    cold = ask(daemon, server, "alice", tokens, max_tokens=16)
    warm = ask(daemon, server, "alice", tokens, max_tokens=16)
    assert (cold.cached, warm.cached) == (0, kept(540))
    assert warm.text == cold.text
    assert server.metric("kvrun_engine_states_total", result="restore_ineffective") == 0


def test_a_second_turn_reuses_the_first_ones_answer(daemon: Daemon, server: SlotServer) -> None:
    text = "Once upon a time there was a king. " * 8

    def complete(tenant: str, prompt: str, max_tokens: int = 8) -> Answer:
        request = claimed(daemon, tenant, [1], max_tokens=max_tokens)[1]
        return server.complete(request, prompt=prompt)

    first = complete("carol", text, 70)
    follow_up = text + first.text + " So"
    again = complete("carol", follow_up)
    cold = complete("dave", follow_up)
    assert (first.cached, cold.cached) == (0, 0)
    assert again.cached > first.prompt_tokens
    assert again.text == cold.text


def test_a_chat_streams_and_its_reuse_is_told_as_it_was(daemon: Daemon, server: SlotServer) -> None:
    long = "Remember these words: " + " ".join(f"word{n}" for n in range(25))
    cold = server.chat(chat_ask(daemon, "erin"), long)
    warm = server.chat(chat_ask(daemon, "erin"), long)
    assert (cold.cached, warm.cached) == (0, kept(cold.prompt_tokens))
    assert warm.text == cold.text
    _, request = claimed(daemon, "erin", prompt(203, 150))
    server.ask(request)
    connection, answer = server.stream(claimed(daemon, "erin", prompt(203, 150))[1])
    told = events(answer)
    connection.close()
    assert told[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": kept(150)}
    assert not any("timings" in event or "prompt_progress" in event for event in told)


def test_tools_reach_the_model_and_what_chooses_a_slot_does_not(
    daemon: Daemon, server: SlotServer
) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    plain = server.chat(chat_ask(daemon, "erin"), "What time is it?")
    tooled = server.chat(chat_ask(daemon, "erin"), "What time is it?", tools=[tool])
    assert tooled.prompt_tokens > plain.prompt_tokens or tooled.text
    for field, value in (("id_slot", 1), ("cache_prompt", True), ("n", 2), ("lora", [])):
        with pytest.raises(RefusedError, match=field) as refused:
            server.complete(claimed(daemon, "erin", [1, 2, 3])[1], **{field: value})
        assert refused.value.status == 400


def test_responses_and_messages_pass_and_reuse_nothing(daemon: Daemon, server: SlotServer) -> None:
    asked = {
        "/v1/responses": {"input": "What time is it?", "max_output_tokens": 4},
        "/v1/messages": {"messages": [{"role": "user", "content": "Now?"}], "max_tokens": 4},
    }
    for path, body in asked.items():
        stamps = server.body(chat_ask(daemon, "erin"))
        stamped = {name: stamps[name] for name in ("cache_salt", "kv_transfer_params")}
        for _ in range(2):
            answer = server.post(path, body | stamped)
            assert answer["usage"]["output_tokens"] > 0
            assert answer["usage"]["input_tokens"] > 3, "it was computed, not reused"
        with pytest.raises(RefusedError, match="id_slot"):
            server.post(path, body | stamped | {"id_slot": 1})
        streamed = server.open(path, body | stamped | {"stream": True})
        assert b"event: " in streamed


def test_embeddings_pass_where_the_server_makes_them(
    daemon: Daemon, server: SlotServer, gemma: Path
) -> None:
    body = {"input": ["a cat", "a cat", "the sea"], "encoding_format": "float"}
    with pytest.raises(RefusedError, match="embeddings"):
        server.post("/v1/embeddings", body)
    server.stop()
    making = SlotServer(daemon, gemma, "--embeddings", "--pooling", "mean")
    try:
        one, same, other = [
            item["embedding"] for item in making.post("/v1/embeddings", body)["data"]
        ]
        with pytest.raises(RefusedError, match="cache_prompt"):
            making.post("/v1/embeddings", body | {"cache_prompt": True})
    finally:
        making.stop()
        server.start()
    # Texts of one request share batches, where sums round otherwise.
    assert likeness(one, same) > 0.99 > likeness(one, other)


def test_a_prompt_beyond_the_window_is_refused_with_both_numbers(
    daemon: Daemon, server: SlotServer
) -> None:
    with pytest.raises(RefusedError, match=rf"{WINDOW + 1} tokens.*{WINDOW}") as refused:
        ask(daemon, server, "alice", prompt(204, WINDOW + 1))
    assert refused.value.body["error"]["code"] == "context_length_exceeded"
    with pytest.raises(RefusedError, match=f"{WINDOW + 6}.*{WINDOW}"):
        ask(daemon, server, "alice", prompt(204, WINDOW - 2))


def test_a_changed_block_is_computed_anew_and_logged(daemon: Daemon, server: SlotServer) -> None:
    tokens = prompt(205, 130)
    cold = ask(daemon, server, "mallory", tokens)
    daemon.admin("flush")
    before = daemon.count("integrity_failure")
    daemon.stop()
    for block in daemon.data.glob("storage/**/*.kvs"):
        content = bytearray(block.read_bytes())
        content[len(content) // 2] ^= 1
        block.write_bytes(content)
    daemon.start()
    eventually(lambda: connected(daemon, server), "the slot server found the new daemon")
    again = ask(daemon, server, "mallory", tokens)
    assert (again.cached, again.text) == (0, cold.text)
    assert daemon.count("integrity_failure") > before
    # Its first piece was sealed anew; each of the others is found out when it is opened.
    assert [ask(daemon, server, "mallory", tokens).cached for _ in range(2)][1] == kept(130)


def connected(daemon: Daemon, server: SlotServer) -> bool:
    """Whether a governed request is admitted."""
    request_id, request = claimed(daemon, "probe", [1, 2, 3], max_tokens=1)
    server.ask(request)
    try:
        return daemon.reuse(request_id).prompt_tokens == 3
    except KvrunError:
        return False


def test_a_restarted_engine_and_daemon_find_what_was_persisted(
    daemon: Daemon, server: SlotServer
) -> None:
    tokens = prompt(206, 130)
    cold = ask(daemon, server, "frank", tokens)
    daemon.admin("flush")
    server.stop()
    daemon.stop()
    daemon.start()
    server.start()
    request_id, request = claimed(daemon, "frank", tokens)
    warm = server.ask(request)[0]
    assert (warm.cached, warm.text) == (kept(130), cold.text)
    assert daemon.reuse(request_id).disk_tokens == kept(130)
    assert ask(daemon, server, "frank", tokens, session="another").cached == 0


def test_an_erased_session_is_cold_and_its_slots_are_zeroed(
    daemon: Daemon, server: SlotServer
) -> None:
    tokens = prompt(207, 130)
    cold = ask(daemon, server, "grace", tokens)
    assert ask(daemon, server, "grace", tokens).cached == kept(130)
    zeroed = server.metric("kvrun_engine_slots_zeroed")
    stated = daemon.erase_session("grace")
    assert server.metric("kvrun_engine_slots_zeroed") > zeroed
    eventually(lambda: daemon.confirmed(stated), "the engine confirms")
    again = ask(daemon, server, "grace", tokens)
    assert (again.cached, again.text) == (0, cold.text)


def test_an_erasure_ends_the_sessions_running_request(daemon: Daemon, server: SlotServer) -> None:
    _, request = claimed(daemon, "heidi", prompt(208, 130), max_tokens=1500)
    connection, answer = server.stream(request)
    assert answer.readline()  # it generates
    daemon.admin("erase_session", tenant="heidi", session="default")
    told = events(answer)
    connection.close()
    assert not any("usage" in event and event["usage"] for event in told)
    assert ask(daemon, server, "heidi", prompt(208, 130)).cached == 0


def test_a_client_that_leaves_frees_its_slot(daemon: Daemon, server: SlotServer) -> None:
    for _ in range(SLOTS + 1):
        _, request = claimed(daemon, "ivan", prompt(209, 70), max_tokens=1900)
        connection, answer = server.stream(request)
        assert answer.readline()
        answer.close()
        connection.close()
    began = time.monotonic()
    assert ask(daemon, server, "ivan", prompt(209, 70), max_tokens=4).text
    assert time.monotonic() - began < 60


def test_a_daemon_that_stands_still_or_is_gone_costs_the_reuse_only(
    daemon: Daemon, server: SlotServer
) -> None:
    tokens = prompt(210, 130)
    cold = ask(daemon, server, "judy", tokens)
    _, request = claimed(daemon, "judy", tokens)
    daemon.pause()
    try:
        still = server.ask(request)[0]
    finally:
        daemon.resume()
    assert (still.cached, still.text) == (0, cold.text)
    eventually(lambda: connected(daemon, server), "the daemon answers again")
    _, request = claimed(daemon, "judy", tokens)
    daemon.kill()
    gone = server.ask(request)[0]
    assert (gone.cached, gone.text) == (0, cold.text)
    daemon.start()
    eventually(lambda: connected(daemon, server), "the slot server found the new daemon")
    assert ask(daemon, server, "judy", tokens).text == cold.text
