"""What is left to compute when an answer has ended shares no batch with a request that is alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.llama_cpp.slots import Slot, Slots


class Erasing:
    """A server of which only slots are erased."""

    async def erase(self, slot: int) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def slots() -> Iterator[Slots]:
    scratches = [Scratch() for _ in range(4)]
    yield Slots(Erasing(), scratches[:3], scratches[3], lambda *_: None)  # type: ignore[arg-type]
    for scratch in scratches:
        scratch.close()


async def begun(slots: Slots) -> asyncio.Task[Slot]:
    """Another request, given every chance to begin."""
    task = asyncio.create_task(slots.take(b"other"))
    for _ in range(20):
        await asyncio.sleep(0)
    return task


async def test_a_request_waits_for_the_end_of_an_answer_that_was_alone(slots: Slots) -> None:
    first = await slots.take(b"one")
    slots.answered(first)
    waiting = await begun(slots)
    assert not waiting.done()
    await slots.empty(first)
    assert (await waiting).number != first.number, "its slot is not given back yet"
    await slots.give_back([first])


async def test_a_request_that_ends_without_an_answer_holds_others_until_its_slot_is_free(
    slots: Slots,
) -> None:
    first = await slots.take(b"one")
    slots.answered(first)
    waiting = await begun(slots)
    assert not waiting.done()
    await slots.give_back([first])
    await waiting


async def test_requests_that_share_batches_anyway_do_not_wait(slots: Slots) -> None:
    first, second = await slots.take(b"one"), await slots.take(b"two")
    slots.answered(first)
    third = await begun(slots)
    assert third.done()
    for slot in (second, third.result()):
        slots.answered(slot)
    await slots.give_back([second, third.result()])
    waiting = await begun(slots)
    assert not waiting.done(), "the first one's end is still being computed, and now alone"
    await slots.give_back([first])
    await waiting


async def test_an_end_that_lasts_holds_nobody_for_ever(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvrun.engines.llama_cpp.slots._ENDS_WITHIN_S", 0.01)
    first = await slots.take(b"one")
    slots.answered(first)
    async with asyncio.timeout(30):
        second = await slots.take(b"other")
    assert second.number != first.number
    await slots.give_back([first, second])
