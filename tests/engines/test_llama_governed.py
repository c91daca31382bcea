"""Faults between slots, llama.cpp and the daemon cost the reuse, and never an answer's tokens.

llama.cpp is simulated by what its server does with slots, the daemon's link by a dictionary.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kvrun.engines.admission import Admission, State
from kvrun.engines.llama_cpp.backend import BackendError, Timings
from kvrun.engines.llama_cpp.governed import GovernedSlots, Run, match_names
from kvrun.engines.llama_cpp.link import Piece
from kvrun.engines.llama_cpp.metrics import SlotMetrics
from kvrun.engines.llama_cpp.pieces import PIECE_BYTES
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.llama_cpp.slots import Slot

TOKENS = [(7 * number) % 5000 for number in range(300)]


def state_of(tokens: Sequence[int], order: int = 1) -> bytes:
    """A state file of one cache with one layer, its rows made of the tokens."""
    count = len(tokens)
    positions = list(range(count))[::order]
    return b"".join(
        [
            b"qsgg" + struct.pack("<II", 2, count) + struct.pack(f"<{count}i", *tokens),
            struct.pack("<II", 1, count),
            *(struct.pack("<iIi", position, 1, 0) for position in positions),
            struct.pack("<II", 0, 1),
            *(struct.pack("<iQ", 1, 8192) + (b"%8d" % tokens[-1]) * 1024 * count for _ in "kv"),
        ]
    )


@dataclass
class Llama:
    """A server of one slot. ``faults`` names what goes wrong.

    ``restored`` says whether all that the slot holds was restored.
    """

    scratch: Scratch
    faults: set[str] = field(default_factory=set)
    held: list[int] = field(default_factory=list)
    computed: int = 0
    restored: bool = False

    async def compute(self, slot: int, tokens: Sequence[int]) -> Timings:
        same = 0
        while same < min(len(self.held), len(tokens)) and self.held[same] == tokens[same]:
            same += 1
        if same == len(tokens):
            same -= 1
        if "forgets" in self.faults:
            same = 0
        if "half" in self.faults and self.held:
            same //= 2
        self.held = list(tokens)
        self.restored = False
        self.computed += len(tokens) - same
        return Timings(same, len(tokens) - same)

    async def save(self, slot: int, name: str) -> tuple[int, int]:
        if "refuses" in self.faults:
            raise BackendError("Unable to save slot")
        state = state_of(self.held, -1 if "disorder" in self.faults else 1)
        os.ftruncate(self.scratch.fd, 0)
        whole = self.faults.isdisjoint({"breaks off", "fails half-way"})
        cut = state if whole else state[: len(state) // 2]
        os.pwrite(self.scratch.fd, cut, 0)
        if "fails half-way" in self.faults:
            raise BackendError("Unable to save slot")
        return len(self.held), len(state)

    async def restore(self, slot: int, name: str) -> int:
        data = os.pread(self.scratch.fd, self.scratch.size_bytes, 0)
        if "bad state" in self.faults:
            self.held = []
            raise BackendError("Unable to restore slot", status=400)
        (count,) = struct.unpack_from("<I", data, 8)
        self.held = list(struct.unpack_from(f"<{count}i", data, 12))
        assert data in (state_of(self.held), state_of(self.held, -1))
        self.restored = True
        return count

    async def erase(self, slot: int) -> None:
        self.held = []


@dataclass
class Daemon:
    """The link to a daemon that keeps every piece it is given."""

    scratch: Scratch
    pieces: dict[bytes, bytes] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)
    stateless: bool = False
    told: list[int] = field(default_factory=list)

    async def store(self, handle: int, number: int, pieces: Sequence[Piece]) -> bool:
        if not handle:
            return False
        buffer = ctypes.create_string_buffer(PIECE_BYTES)
        for piece in pieces:
            self.scratch.copy_out(piece.index, ctypes.addressof(buffer))
            self.pieces.setdefault(piece.block_hash, buffer.raw)
        return True

    async def load(self, handle: int, number: int, pieces: Sequence[Piece]) -> bool:
        for piece in pieces:
            data = self.pieces.get(piece.block_hash)
            if data is None or ("tampered" in self.faults and piece.index == 1):
                return False
            buffer = ctypes.create_string_buffer(data, PIECE_BYTES)
            self.scratch.copy_in(piece.index, ctypes.addressof(buffer))
        return True

    async def settled(self, number: int) -> None:
        pass

    async def released(self) -> None:
        pass

    def started(self, request_id: str, loaded_tokens: int) -> None:
        self.told.append(loaded_tokens)

    def finish(self, request_id: str) -> None:
        pass

    def admission(self, tokens: Sequence[int]) -> Admission:
        found = bytes(name in self.pieces for name in match_names(tokens))
        return Admission(1, State.ADMITTED, handle=5, tiers=(found,))


class World:
    """One slot, its server and a daemon; ``ask`` is one request of a session."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.llama = Llama(self.scratch)
        self.daemon = Daemon(self.scratch)
        self.metrics = SlotMetrics()
        self.governed = GovernedSlots(self.llama, self.daemon, self.metrics)

    async def ask(self, tokens: list[int], answer: Sequence[int] = ()) -> Run:
        """Serve a prompt as the front does; the slot must hold the prompt at its end."""
        await self.llama.erase(0)
        run = Run("r", tokens, self.daemon.admission(tokens), Slot(0, self.scratch))
        await self.governed.prepare(run)
        timings = await self.llama.compute(0, tokens)
        if not await self.governed.generated(run, timings):
            await self.governed.start_over(run)
            timings = await self.llama.compute(0, tokens)
            assert await self.governed.generated(run, timings)
        assert self.llama.held == tokens
        self.llama.held += list(answer)[:-1]
        if answer:
            await self.governed.keep_answer(run, len(answer))
        await self.governed.finish(run)
        assert self.scratch.size_bytes == 0, "a state was left in the scratch"
        return run

    def count(self, result: str) -> float:
        return self.metrics.states.labels(result)._value.get()


async def test_a_prompt_and_its_answer_are_found_again() -> None:
    world = World()
    answer = list(range(10, 110))
    assert (await world.ask(TOKENS, answer)).reused == 0
    assert (await world.ask(TOKENS)).reused == 256
    assert (await world.ask(TOKENS + answer + [1, 2, 3])).reused == 384
    assert (await world.ask([*TOKENS[:100], 9, *TOKENS[101:]])).reused == 0
    assert world.daemon.told == [0, 256, 384, 0]


@pytest.mark.parametrize("fault", ["refuses", "breaks off", "fails half-way", "disorder"])
async def test_a_save_that_fails_keeps_nothing(fault: str) -> None:
    world = World()
    world.llama.faults = {fault}
    await world.ask(TOKENS, list(range(100)))
    assert world.daemon.pieces == {}
    assert world.count("save_failed") > 0
    world.llama.faults = set()
    assert (await world.ask(TOKENS)).reused == 0


@pytest.mark.parametrize("fault", ["tampered", "missing piece", "other head"])
async def test_a_state_that_does_not_open_whole_is_computed(fault: str) -> None:
    world = World()
    await world.ask(TOKENS)
    names = list(world.daemon.pieces)
    assert len(names) > 2
    if fault == "missing piece":
        del world.daemon.pieces[names[2]]
    elif fault == "other head":
        first = world.daemon.pieces[names[0]]
        world.daemon.pieces[names[0]] = first[:12] + struct.pack("<Q", 192) + first[20:]
    else:
        world.daemon.faults = {fault}
    assert (await world.ask(TOKENS)).reused == 0
    assert world.count("open_failed") + world.count("restore_failed") == 1


async def test_a_state_that_llama_cpp_refuses_is_computed() -> None:
    world = World()
    await world.ask(TOKENS)
    world.llama.faults = {"bad state"}
    assert (await world.ask(TOKENS)).reused == 0
    assert world.count("restore_failed") == 2  # the one that was kept, and its own afterwards


@pytest.mark.parametrize("fault", ["bad state", "forgets"])
async def test_a_model_whose_states_cannot_be_restored_is_soon_computed_once(fault: str) -> None:
    world = World()
    world.llama.faults = {fault}
    computed = []
    for number in range(5):
        before = world.llama.computed
        await world.ask([number, *TOKENS])
        computed.append(world.llama.computed - before)
    assert computed[:3] == computed[:1] * 3
    assert computed[3] == computed[4] <= computed[0]
    assert fault == "forgets" or computed[4] == len(TOKENS) + 1


@pytest.mark.parametrize("whose", ["the first", "the same", "a longer", "an uncached"])
async def test_every_answer_starts_from_a_restored_slot(whose: str) -> None:
    world = World()
    if whose in ("the same", "a longer"):
        await world.ask(TOKENS)
    tokens = [*TOKENS, *range(200)] if whose == "a longer" else TOKENS
    admission = world.daemon.admission(tokens)
    if whose == "an uncached":
        admission = Admission(1, State.DENIED)
    await world.llama.erase(0)
    run = Run("r", tokens, admission, Slot(0, world.scratch))
    await world.governed.prepare(run)
    assert run.reused == (256 if whose in ("the same", "a longer") else 0)
    assert (world.llama.held, world.llama.restored) == (tokens[: run.ready], True)
    await world.governed.finish(run)
    assert world.scratch.size_bytes == 0


@pytest.mark.parametrize("more", [[], list(range(200))])
async def test_a_restore_without_effect_is_no_reuse_and_is_counted_and_logged(
    more: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    await world.ask(TOKENS)
    world.llama.faults = {"forgets"}
    assert (await world.ask(TOKENS + more)).reused == 0
    assert world.count("restore_ineffective") > 0
    assert "request r: restore ineffective" in caplog.text
    assert world.daemon.told[-1] == 0


@pytest.mark.parametrize("more", [[], list(range(200))])
async def test_a_slot_that_was_used_in_part_is_emptied_first(more: list[int]) -> None:
    world = World()
    await world.ask(TOKENS)
    world.llama.faults = {"half"}
    run = await world.ask(TOKENS + more)
    assert run.reused == 0
    assert world.llama.computed >= len(TOKENS + more)


async def test_a_stateless_or_denied_request_keeps_nothing() -> None:
    world = World()
    world.daemon.stateless = True
    await world.ask(TOKENS, list(range(100)))
    world.daemon.stateless = False
    run = Run("r", TOKENS, Admission(1, State.DENIED), Slot(0, world.scratch))
    await world.governed.prepare(run)
    await world.governed.finish(run)
    assert world.daemon.pieces == {}


async def test_an_answer_of_another_prompt_is_not_kept() -> None:
    world = World()
    run = Run("r", TOKENS, world.daemon.admission(TOKENS), Slot(0, world.scratch))
    await world.governed.prepare(run)
    await asyncio.gather(*run.storing)
    kept = len(world.daemon.pieces)
    world.llama.held = [5] * 500
    await world.governed.keep_answer(run, 200)
    assert len(world.daemon.pieces) == kept
