"""vLLM over the object tier: a killed daemon and a dead bucket cost only the cache."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.client import ask, claimed, eventually, prompt, reconnect, store, unclaimed
from support.daemon import Daemon
from support.engine import Engine
from support.faultproxy import Fault, FaultProxy
from support.object_stores import ObjectStore
from support.packs import assert_whole_packs

pytestmark = [pytest.mark.engine, pytest.mark.long]

BLOCK = 128
KILLS = 5
SECONDS = 20


@dataclass
class Scene:
    """A daemon without a disk tier behind a proxy to its bucket, and an engine."""

    daemon: Daemon
    engine: Engine
    proxy: FaultProxy
    store: ObjectStore
    bucket: str

    def restart(self) -> None:
        """The next one knows nothing but keys and bucket, and the engine nothing at all."""
        self.daemon.start()
        reconnect(self.daemon, self.engine)
        self.engine.reset()

    def available(self) -> bool:
        status = self.daemon.admin("status")
        assert isinstance(status, dict)
        return bool(status["cache"]["object_available"])

    def know_packs(self, tenant: str, tokens: list[int]) -> None:
        """Until the session's packs are known: a first request waits for a moment only."""

        def known() -> bool:
            ask(self.daemon, self.engine, tenant, tokens[:BLOCK], max_tokens=1)
            status = self.daemon.admin("status")
            assert isinstance(status, dict)
            return int(status["cache"]["object_bytes"]) > 0

        eventually(known, "the session's packs are known", 60)
        self.engine.reset()

    def from_storage(self, tenant: str, tokens: list[int]) -> tuple[list[int], int]:
        """A request's answer, and how many of its tokens came from Storage."""
        request_id, request = claimed(self.daemon, tenant, tokens)
        answer = self.engine.ask(request)[0]
        return answer.tokens, self.daemon.reuse(request_id).object_tokens


@pytest.fixture(scope="module")
def scene(moto_store: ObjectStore, tiny_llama: Path, module_folder: Path) -> Iterator[Scene]:
    bucket = f"b{secrets.token_hex(8)}"
    url = moto_store.bucket(bucket)
    proxy = FaultProxy(moto_store.endpoint)
    settings = "match_deadline_ms = 3000\nload_deadline_ms = 5000\n"
    settings += "disk_bytes = 0\nobject_pack_age_s = 0.2\n"
    daemon = Daemon(module_folder, settings=settings + moto_store.settings(url, proxy.url))
    daemon.start()
    engine = Engine(tiny_llama, daemon.socket, module_folder / "engine.log")
    yield Scene(daemon, engine, proxy, moto_store, bucket)
    engine.stop()
    daemon.kill()
    proxy.close()


@pytest.mark.timeout(1800)
def test_a_daemon_killed_at_random_moments_under_an_engine_gives_no_wrong_answer(
    scene: Scene,
) -> None:
    daemon, engine = scene.daemon, scene.engine
    chance = random.Random(61)
    prompts = [prompt(600 + number) for number in range(KILLS + 1)]
    right = [answer.tokens for answer in engine.ask(*(unclaimed(tokens) for tokens in prompts))]
    store(daemon, engine, "killed", prompts[0])
    for number in range(KILLS):
        # Earlier prompts come back out of the bucket while a new one is sealed and packed.
        asked = [claimed(daemon, "killed", tokens)[1] for tokens in prompts[: number + 2]]
        engine.send(*asked)
        time.sleep(chance.uniform(0, 2))
        daemon.kill()
        answers = engine.receive()
        assert [answer.tokens for answer in answers] == right[: number + 2], f"kill {number}"
        scene.restart()
    scene.know_packs("killed", prompts[0])
    again = [scene.from_storage("killed", tokens) for tokens in prompts]
    assert [tokens for tokens, _ in again] == right
    assert sum(count for _, count in again) >= len(prompts[0]) // BLOCK * BLOCK - BLOCK
    daemon.stop()
    objects = scene.store.packs(scene.bucket)
    assert objects
    assert_whole_packs(objects)
    assert scene.store.uploads(scene.bucket) == []
    assert daemon.count("integrity_failure") == 0
    assert "was passed over" not in daemon.log.read_text()
    scene.restart()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", [Fault.GONE, Fault.HANGS])
def test_tokens_keep_flowing_while_the_bucket_is_dead(scene: Scene, fault: Fault) -> None:
    daemon, engine, proxy = scene.daemon, scene.engine, scene.proxy
    tenant, tokens = f"dead-{fault.name}", prompt(700 + len(fault.name))
    cold = store(daemon, engine, tenant, tokens)
    daemon.stop()
    scene.restart()
    proxy.fault = fault
    try:
        for number in range(3):
            began = time.monotonic()
            request_id, request = claimed(daemon, tenant, tokens)
            answer = engine.ask(request)[0]
            assert time.monotonic() - began < SECONDS
            assert answer.tokens == cold.tokens
            assert daemon.reuse(request_id).object_tokens == 0
            if not number:
                assert answer.cached == 0
        eventually(lambda: not scene.available(), "the metric says that it is away", 60)
    finally:
        proxy.fault = Fault.NONE
    eventually(scene.available, "it is back by itself", 90)
    daemon.admin("flush")
    daemon.stop()
    scene.restart()

    def reused() -> bool:
        engine.reset()
        again, from_storage = scene.from_storage(tenant, tokens)
        assert again == cold.tokens
        return from_storage > 0

    eventually(reused, "reused out of the bucket again", 60)
    assert ask(daemon, engine, "stranger", tokens).cached == 0
