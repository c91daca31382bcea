"""llama.cpp's answers are the same to the last bit, whether their prompt was computed or restored.

Probabilities are compared, not texts: on two threads and beyond a sliding window, where llama.cpp
shares out the keys among its threads and so adds them up in an order that depends on their places.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from llama_rig import SlotServer
from test_llama_slots import kept

from kvrun.engines.llama_cpp.arguments import ServerShape, server_arguments
from kvrun.engines.llama_cpp.backend import Backend
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.models.folders import cache_folder
from kvrun.models.gguf import ensure_demo_gguf
from support.client import claimed, prompt
from support.daemon import PATIENT, Daemon

pytest.importorskip("xllamacpp")
# Two threads need two cores; make test gives each worker one.
pytestmark = [pytest.mark.long, pytest.mark.engine, pytest.mark.real("llama.cpp")]

WINDOW = 512
THREADS = 2


@pytest.fixture(scope="module")
def daemon(module_folder: Path) -> Iterator[Daemon]:
    running = Daemon(module_folder, settings=PATIENT.replace("20000", "3000"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def server(daemon: Daemon) -> Iterator[SlotServer]:
    model = ensure_demo_gguf(cache_folder(), print)
    running = SlotServer(daemon, model, threads=THREADS)
    yield running
    running.stop()


def told(
    daemon: Daemon, server: SlotServer, tenant: str, tokens: list[int], answer: int = 12
) -> tuple[object, int]:
    """Each token's probabilities in a tenant's answer, and how many of its prompt were reused."""
    request = claimed(daemon, tenant, tokens, max_tokens=answer)[1]
    body = server.post("/v1/completions", server.body(request) | {"logprobs": 3})
    choice, usage = body["choices"][0], body["usage"]
    assert len(choice["logprobs"]["content"]) == answer
    return choice["logprobs"], usage["prompt_tokens_details"]["cached_tokens"]


def test_a_restored_prompts_probabilities_are_the_computed_ones(
    daemon: Daemon, server: SlotServer
) -> None:
    tokens = prompt(231, WINDOW + 200)
    cold, nothing = told(daemon, server, "alice", tokens)
    warm, reused = told(daemon, server, "alice", tokens)
    assert (nothing, reused) == (0, kept(len(tokens)))
    assert warm == cold
    stranger, nothing = told(daemon, server, "bob", tokens)
    assert nothing == 0
    assert stranger == cold


def test_many_prompts_are_exact_beside_load(daemon: Daemon, server: SlotServer) -> None:
    with busy(2):
        for seed in range(6):
            tokens = prompt(300 + seed, WINDOW + 90 + 190 * seed)
            cold, _ = told(daemon, server, "carol", tokens, 32)
            stranger, nothing = told(daemon, server, f"stranger-{seed}", tokens, 32)
            warm, reused = told(daemon, server, "carol", tokens, 32)
            assert (nothing, reused) == (0, kept(len(tokens)))
            assert cold == stranger == warm


async def test_cells_in_other_places_give_other_probabilities(short_folder: Path) -> None:
    """Why a prompt that was computed is restored all the same."""
    tokens = prompt(232, WINDOW + 800)
    end = kept(len(tokens))
    async with running(short_folder) as (backend, scratch):
        await backend.compute(0, tokens[:end])
        await backend.save(0, scratch.name)
        in_place = await continued(backend, tokens)
        answers = []
        for _ in range(2):
            await backend.erase(0)
            assert await backend.restore(0, scratch.name) == end
            answers.append(await continued(backend, tokens))
    assert answers[0] == answers[1]
    assert answers[0] != in_place


async def test_a_state_has_the_same_bytes_in_whatever_parts_it_was_computed(
    short_folder: Path,
) -> None:
    tokens = prompt(233, WINDOW + 192)
    async with running(short_folder) as (backend, scratch):

        async def saved() -> bytes:
            await backend.save(0, scratch.name)
            scratch.open()
            state = bytes(scratch.view)
            scratch.close_map()
            return state

        await backend.compute(0, tokens)
        at_once = await saved()
        for part in (64, 100, 320, WINDOW, WINDOW + 64):
            await backend.erase(0)
            await backend.compute(0, tokens[:part])
            await saved()
            await backend.erase(0)
            assert await backend.restore(0, scratch.name) == part
            assert (await backend.compute(0, tokens)).cache_n == part
            assert await saved() == at_once


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute without end."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


async def continued(backend: Backend, tokens: list[int]) -> Any:
    body = {
        "prompt": tokens, "n_predict": 24, "id_slot": 0, "cache_prompt": True, "temperature": 0,
        "n_probs": 3, "ignore_eos": True,
    }  # fmt: skip
    status, answer = await backend.call("/completion", body)
    assert status == 200
    return json.loads(answer)["completion_probabilities"]


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Backend, Scratch]]:
    """A server of two slots without kvrun in front of it."""
    model = ensure_demo_gguf(cache_folder(), print)
    shape = ServerShape(model, "gemma", folder / "l.sock", 2048, 2, THREADS, ("--no-warmup",))
    scratch = Scratch()
    backend = Backend(server_arguments(shape), folder / "l.sock", [scratch.fd])
    try:
        await backend.start(60)
        yield backend, scratch
    finally:
        await backend.stop()
        scratch.close()
