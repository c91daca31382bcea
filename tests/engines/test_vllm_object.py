"""vLLM on a machine that has nothing but keys and the bucket answers as before, and reuses."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import pytest

from support.client import ask, claimed, eventually, prompt, reconnect, store
from support.daemon import PATIENT, Daemon
from support.engine import Engine
from support.object_stores import ObjectStore

pytestmark = [pytest.mark.engine, pytest.mark.long]

BLOCK = 128
TOKENS = prompt(31)
WHOLE = len(TOKENS) // BLOCK * BLOCK


def test_answers_are_the_same_cold_and_from_the_bucket_alone(
    moto_store: ObjectStore, tiny_llama: Path, short_folder: Path
) -> None:
    url = moto_store.bucket(f"b{secrets.token_hex(8)}")
    settings = PATIENT + "disk_bytes = 0\n" + moto_store.settings(url)
    daemon = Daemon(short_folder, settings=settings)
    daemon.start()
    engine = Engine(tiny_llama, daemon.socket, short_folder / "engine.log")
    try:
        cold = store(daemon, engine, "alice", TOKENS, max_tokens=24)
        daemon.stop()
        # Another machine: of the old data folder only what the docs name comes along.
        old = short_folder / "old"
        daemon.data.rename(old)
        for name in ("keys", "erasure", "signing"):
            shutil.copytree(old / name, daemon.data / name)
        daemon.start()
        reconnect(daemon, engine)
        engine.reset()

        def found() -> bool:
            ask(daemon, engine, "alice", TOKENS[:BLOCK], max_tokens=1)
            status = daemon.admin("status")
            assert isinstance(status, dict)
            return int(status["cache"]["object_bytes"]) > 0

        eventually(found, "the session's packs are known")
        engine.reset()
        request_id, request = claimed(daemon, "alice", TOKENS, max_tokens=24)
        again = engine.ask(request)[0]
        reuse = daemon.reuse(request_id)
        assert again.cached == WHOLE
        assert again.tokens == cold.tokens
        assert again.logprob == pytest.approx(cold.logprob, abs=1e-3)
        assert reuse.object_tokens >= WHOLE - BLOCK
        stranger = ask(daemon, engine, "bob", TOKENS, max_tokens=24)
        assert (stranger.cached, stranger.tokens) == (0, cold.tokens)
    finally:
        engine.stop()
        daemon.kill()
