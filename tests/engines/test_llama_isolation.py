"""What llama.cpp's own server does with slots, with kvrun's arguments and without them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvrun.engines.llama_cpp.arguments import STATES, ServerShape, server_arguments
from kvrun.engines.llama_cpp.backend import Backend
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.llama_cpp.slots import Slots
from kvrun.instance.protocol import Scrub
from kvrun.models.folders import cache_folder
from kvrun.models.gguf import ensure_demo_gguf
from support.client import prompt
from support.memory import find_in_memory

pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.engine, pytest.mark.real("llama.cpp")]


def shape(folder: Path) -> ServerShape:
    model = ensure_demo_gguf(cache_folder(), print)
    return ServerShape(model, "gemma", folder / "l.sock", 1024, 2, 1, ("--no-warmup",))


@asynccontextmanager
async def running(arguments: Sequence[str], folder: Path) -> AsyncIterator[tuple[Backend, Slots]]:
    """A server of two slots, and what it reported of scrubs."""
    scratches, zeros = [Scratch(), Scratch()], Scratch()
    fds = [scratch.fd for scratch in (*scratches, zeros)]
    backend = Backend(arguments, folder / "l.sock", fds)
    try:
        await backend.start(60)
        yield backend, Slots(backend, scratches, zeros, lambda *report: REPORTS.append(report))
    finally:
        await backend.stop()


REPORTS: list[tuple[int, int, int]] = []


@pytest.fixture
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))


@pytest.mark.long
@pytest.mark.parametrize("isolated", [True, False])
async def test_without_kvruns_arguments_a_pinned_slot_finds_anothers_prompt(
    isolated: bool, folder: Path
) -> None:
    arguments = server_arguments(shape(folder))
    if not isolated:
        arguments = [*arguments[: arguments.index("--cache-ram")], *STATES]
    tokens = prompt(221, 800)
    async with running(arguments, folder) as (backend, _):
        for slot, asked in (
            (0, [*tokens[:300], 10]),  # the first tenant, and another prompt of it
            (0, tokens[400:460]),
            (1, tokens[500:560]),  # the second one's own
        ):
            await backend.compute(slot, asked)
        found = await backend.compute(1, [*tokens[:300], 11])
    assert (found.cache_n == 0) == isolated


@pytest.mark.root
async def test_a_scrub_leaves_no_byte_of_a_slots_kv(folder: Path) -> None:
    async with running(server_arguments(shape(folder)), folder) as (backend, slots):
        assert await slots.prepare_scrubs()
        slot = await slots.take(b"owner")
        await backend.compute(slot.number, prompt(222, 100))
        await backend.save(slot.number, slot.scratch.name)
        slot.scratch.open()
        state = bytes(slot.scratch.view)
        pieces = [state[at : at + 64] for at in range(len(state) // 4, len(state), len(state) // 9)]
        slot.scratch.wipe()
        await slots.give_back([slot])
        assert all(find_in_memory(backend.pid, pieces).values()), "erasing alone zeroes nothing"
        slots.scrub(Scrub(7, (b"somebody else",)))
        await slots.drain()
        assert REPORTS[-1] == (7, 0, 0)
        slots.scrub(Scrub(8, (b"owner",)))
        await slots.drain()
        assert REPORTS[-1] == (8, 1, 0)
        # llama.cpp reads a state through buffers of its own, which hold zeros by now.
        assert not any(find_in_memory(backend.pid, pieces).values())


@pytest.mark.long
async def test_a_slot_in_use_is_scrubbed_when_it_is_free(folder: Path) -> None:
    async with running(server_arguments(shape(folder)), folder) as (_, slots):
        assert await slots.prepare_scrubs()
        slot = await slots.take(b"held")
        slots.scrub(Scrub(9, (b"held",)))
        await slots.drain()
        assert REPORTS[-1] == (9, 0, 1)
        await slots.give_back([slot])
        await slots.drain()
        assert REPORTS[-1] == (9, 1, 0)
        both = await asyncio.gather(slots.take(b"a"), slots.take(b"b"))
        assert {slot.number for slot in both} == {0, 1}
