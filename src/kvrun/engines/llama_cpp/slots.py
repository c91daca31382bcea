"""llama.cpp's slots: leased to one request at a time, erased before and after, zeroed on demand.

Erasing makes llama.cpp forget which tokens a slot holds; their KV stays in its memory until
something overwrites it. So a slot remembers whose it may still hold, and a scrub restores a state
of zeros over all of it.

What llama.cpp computes for several slots at once it computes in one batch, and sums in a batch of
another shape round otherwise. Requests that run at the same time share batches; but what is left
to compute when an answer has ended shares none with a request that had the server to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvrun.engines.llama_cpp.backend import Backend, BackendError
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.llama_cpp.statefile import StateFormatError, zero_state
from kvrun.instance.protocol import Scrub

ANYONE = b""
"""The owner of a request without a claim: nobody can name it, so every scrub means it."""
_SAMPLE_TOKENS = 8
_PATIENCE_S = 1.0
_ENDS_WITHIN_S = 2.0
_log = logging.getLogger(__name__)


class Work(Enum):
    """What llama.cpp may be computing in a slot: a request, what its end takes, or nothing."""

    REQUEST = 1
    END = 2
    NONE = 3


@dataclass(slots=True, eq=False)
class Slot:
    """One slot, the memory its states go through, and whose KV it may hold."""

    number: int
    scratch: Scratch
    owners: set[bytes] = field(default_factory=set)
    leased: bool = False
    work: Work = Work.NONE


@dataclass(slots=True)
class _Order:
    message: Scrub
    scrubbed: int = 0
    waiting: set[int] = field(default_factory=set)
    told: tuple[int, int] | None = None
    patient: bool = False


class Slots:
    """All slots of one server. ``report(call, scrubbed, held)`` answers an order to scrub."""

    def __init__(
        self,
        backend: Backend,
        scratches: Sequence[Scratch],
        zeros: Scratch,
        report: Callable[[int, int, int], None],
    ) -> None:
        self._backend = backend
        self._zeros = zeros
        self._report = report
        self._slots = [Slot(number, scratch) for number, scratch in enumerate(scratches)]
        self._changed = asyncio.Condition()
        self._orders: dict[int, _Order] = {}
        self._zeroing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.broken = asyncio.Event()
        self.can_scrub = False
        self.scrubs = 0

    async def prepare_scrubs(self) -> bool:
        """Learn the form of this server's states and zero a slot once.

        False where the form is not known: this engine is then not asked to scrub, and
        certificates say so.
        """
        first = self._slots[0]
        cells = await self._backend.slot_tokens()
        try:
            tokens = await self._backend.tokenize("a b c d e f g h i j k l")
            await self._backend.compute(first.number, tokens[:_SAMPLE_TOKENS])
            await self._backend.save(first.number, first.scratch.name)
            first.scratch.open()
            sample = first.scratch.view
            try:
                zeros = zero_state(sample, cells)
            finally:
                sample.release()
            self._zeros.fill(zeros)
            await self._zero(first)
            self.can_scrub = True
        except (StateFormatError, BackendError) as error:
            _log.warning("slots of this model cannot be zeroed: %s", error.message)
            await self._backend.erase(first.number)
        finally:
            first.scratch.wipe()
        return self.can_scrub

    async def take(self, owner: bytes) -> Slot:
        """A slot that holds nothing, for one request of ``owner``; waits until one is free."""
        slot = (await self._take(1))[0]
        slot.owners.add(owner)
        return slot

    async def take_all(self) -> list[Slot]:
        """Every slot, for a request whose slot llama.cpp chooses itself."""
        slots = await self._take(len(self._slots))
        for slot in slots:
            slot.owners.add(ANYONE)
        return slots

    def answered(self, slot: Slot) -> None:
        """The answer has ended: only the rest is to be computed. Call before the client knows."""
        slot.work = Work.END

    async def empty(self, slot: Slot) -> None:
        """Erase a slot whose request ended, once llama.cpp has done with what was cut off of it."""
        try:
            await self._backend.erase(slot.number)
        except BackendError as error:
            # What a slot holds is not known any more: nothing may be served from it.
            _log.error("a slot could not be erased: %s", error.message)
            self.broken.set()
            return
        async with self._changed:
            slot.work = Work.NONE
            self._changed.notify_all()

    async def give_back(self, slots: Sequence[Slot]) -> None:
        """Empty slots whose requests ended, and carry out the scrubs that waited for them."""
        for slot in slots:
            try:
                if slot.work is not Work.NONE:
                    await self.empty(slot)
            finally:
                # Not before: a save that was cut off goes on writing until then.
                slot.scratch.wipe()
        if any(slot.work is not Work.NONE for slot in slots):
            return
        async with self._changed:
            for slot in slots:
                slot.leased = False
            self._changed.notify_all()
        await self._carry_out()

    def scrub(self, message: Scrub) -> None:
        """Zero what these sessions left in slots: idle ones now, others once they are free."""
        order = self._orders.get(message.call)
        if order is None:
            order = self._orders[message.call] = _Order(message)
            order.waiting = {slot.number for slot in self._slots if self._concerns(order, slot)}
        order.told = None
        order.patient = True
        self._later(self._scrub(order))

    async def drain(self) -> None:
        """Returns when nothing is being given back or zeroed any more."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _concerns(self, order: _Order, slot: Slot) -> bool:
        wanted = {*order.message.owners, ANYONE}
        return bool(slot.owners) and (order.message.everything or bool(slot.owners & wanted))

    async def _take(self, count: int) -> list[Slot]:
        def enough() -> bool:
            return len(self._free()) >= count

        async with self._changed:
            # One at a time would let two requests for all slots wait for each other.
            await self._changed.wait_for(enough)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ENDS_WITHIN_S):
                    await self._changed.wait_for(lambda: enough() and not self._ending_alone())
            await self._changed.wait_for(enough)
            taken = self._free()[:count]
            for slot in taken:
                slot.leased, slot.work = True, Work.REQUEST
        try:
            for slot in taken:
                await self._backend.erase(slot.number)
        except BaseException:
            self._later(self.give_back(taken))
            raise
        return taken

    def _free(self) -> list[Slot]:
        return [slot for slot in self._slots if not slot.leased]

    def _ending_alone(self) -> bool:
        """Whether requests are ending and none is beside them whose batches they share anyway."""
        work = {slot.work for slot in self._slots}
        return Work.END in work and Work.REQUEST not in work

    async def _scrub(self, order: _Order) -> None:
        """Carry an order out. Slots of requests that are just ending are waited for a while."""
        await self._carry_out()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S), self._changed:
                await self._changed.wait_for(lambda: not order.waiting)
        order.patient = False
        await self._carry_out()

    async def _carry_out(self) -> None:
        async with self._zeroing:
            await self._zero_what_is_free()

    async def _zero_what_is_free(self) -> None:
        for slot in self._slots:
            async with self._changed:
                meant = any(slot.number in order.waiting for order in self._orders.values())
                if not meant or slot.leased:
                    continue
                slot.leased = True
            try:
                await self._zero(slot)
                self.scrubs += 1
                for order in self._orders.values():
                    if slot.number in order.waiting:
                        order.waiting.discard(slot.number)
                        order.scrubbed += 1
            except BackendError as error:
                _log.error("a slot could not be zeroed: %s", error.message)
                self.broken.set()
                return
            finally:
                async with self._changed:
                    slot.leased = False
                    self._changed.notify_all()
        for call, order in list(self._orders.items()):
            now = (order.scrubbed, len(order.waiting))
            if order.told != now and not (order.patient and order.waiting):
                order.told = now
                self._report(call, *now)
        done = [call for call, order in self._orders.items() if not order.waiting]
        for call in done[:-_REMEMBERED]:
            del self._orders[call]

    async def _zero(self, slot: Slot) -> None:
        await self._backend.erase(slot.number)
        await self._backend.restore(slot.number, self._zeros.name)
        await self._backend.erase(slot.number)
        slot.owners.clear()

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_REMEMBERED = 256
