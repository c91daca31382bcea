"""The worker's half of the cache: pages to staging, staging to pages, and nothing else.

A store is done once its pages are in staging or it was dropped; a load is done once its pages
are written or it failed. No call waits for the daemon: what takes too long is a dropped store or
a failed load, and the engine computes those tokens itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvrun.engines.channel import WorkerChannel
from kvrun.engines.copying import CopyHandle, PageCopier, PageCopy
from kvrun.errors import KvrunError
from kvrun.instance.protocol import BlockAt, Load, Loaded, Release, Released, Store
from kvrun.instance.staging import StagingRegion

_LOAD_RESERVE = 4
_log = logging.getLogger(__name__)


class Block(Protocol):
    """What a transfer needs to know of a block; :class:`BlockRef` says it of a request's."""

    @property
    def block_hash(self) -> bytes:
        """The hash of the token chain up to the block's end."""

    @property
    def group(self) -> int:
        """Position of the block's KV cache group."""

    @property
    def index(self) -> int:
        """Position of the block in its group, from the prompt's start."""


@dataclass(frozen=True)
class BlockRef:
    """One block of a request.

    ``block_hash`` is the hash of the token chain up to the block's end, ``group`` the position of
    its KV cache group, ``index`` its position in the group from the prompt's start.
    """

    block_hash: bytes
    group: int
    index: int


@dataclass(slots=True)
class Done:
    """A finished transfer. A failed load must be recomputed by the engine."""

    job: int
    failed: bool
    size_bytes: int
    seconds: float


@dataclass(slots=True)
class _StoreJob:
    job: int
    handle: int
    blocks: deque[tuple[Block, int]]
    began: float
    size_bytes: int = 0
    copying: int = 0


@dataclass(slots=True)
class _LoadJob:
    job: int
    handle: int
    blocks: deque[tuple[Block, int]]
    began: float
    deadline: float
    left: int
    slots: dict[int, tuple[Block, int]] = field(default_factory=dict)
    copying: int = 0
    failed: bool = False
    size_bytes: int = 0


@dataclass(slots=True)
class _Copying:
    handle: CopyHandle
    then: Callable[[], None]


class Transfers:
    """Every transfer in flight on one worker."""

    def __init__(
        self,
        channel: WorkerChannel,
        make_copier: Callable[[StagingRegion], PageCopier],
        clock: Callable[[], float],
    ) -> None:
        self._channel = channel
        self._make_copier = make_copier
        self._copier = make_copier(channel.region)
        self._clock = clock
        self._loads: dict[int, _LoadJob] = {}
        self._stores: deque[_StoreJob] = deque()
        self._storing: dict[int, _StoreJob] = {}
        self._copying: list[_Copying] = []
        # Slots of loads that ended before the daemon gave them back.
        self._left_behind: dict[int, tuple[Block, int]] = {}
        self._done: list[Done] = []
        self._scrubs: list[tuple[int, CopyHandle]] = []

    def store(self, job: int, handle: int, blocks: Sequence[tuple[Block, int]]) -> None:
        """Seal blocks: ``(block, page number)`` pairs. Blocks that find no slot wait for one."""
        state = _StoreJob(job, handle, deque(blocks), self._clock())
        if not self._channel.connected:
            state.blocks.clear()
        self._storing[job] = state
        self._stores.append(state)
        self._advance_stores()

    def load(self, job: int, handle: int, blocks: Sequence[tuple[Block, int]]) -> None:
        """Open blocks into pages: ``(block, page number)`` pairs."""
        now = self._clock()
        state = _LoadJob(
            job, handle, deque(blocks), now, now + self._channel.transfer_deadline_s, len(blocks)
        )
        self._loads[job] = state
        if handle == 0 or not self._channel.connected:
            state.failed = True
            state.blocks.clear()
        self._advance_load(state)

    def settle_stores(self, jobs: set[int]) -> None:
        """The pages of these stores are about to change: copy out what fits now, drop the rest."""
        for job in jobs:
            state = self._storing.get(job)
            if state is None:
                continue
            self._take_store_slots(state)
            state.blocks.clear()
        self._wait_for_copies()
        self._advance_copies()
        self._advance_stores()

    def scrub(self, order: int, pages: Sequence[int]) -> None:
        """Zero whole pages of the engine."""
        self._scrubs.append((order, self._copier.submit_zero(pages)))

    def scrubbed(self) -> list[int]:
        """The orders whose pages are zero by now, each told once."""
        done = [order for order, handle in self._scrubs if self._copier.done(handle)]
        self._scrubs = [(o, handle) for o, handle in self._scrubs if o not in done]
        return done

    def poll(self, wait_s: float = 0.0) -> list[Done]:
        """Move everything on; the transfers that finished since the last call."""
        self._advance_copies()
        if self._done or not self._loads:
            wait_s = 0.0
        for message in self._channel.poll(wait_s):
            if isinstance(message, Loaded):
                self._loaded(message)
            elif isinstance(message, Released):
                self._channel.released(message)
        if not self._channel.connected:
            self._fail_all()
        self._advance_copies()
        self._advance_stores()
        now = self._clock()
        for state in list(self._loads.values()):
            if now >= state.deadline and not state.failed:
                state.failed = True
                state.blocks.clear()
            self._advance_load(state)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Forget everything and close the channel."""
        self._wait_for_copies()
        self._copying.clear()
        self._copier.close()
        self._channel.close()

    def _take_store_slots(self, state: _StoreJob) -> None:
        channel = self._channel
        placed: list[BlockAt] = []
        copies: list[PageCopy] = []
        while state.blocks and channel.free_slots > min(_LOAD_RESERVE, channel.slots // 4):
            taken = channel.take()
            if taken is None:
                break
            slot, generation = taken
            block, page = state.blocks.popleft()
            placed.append(BlockAt(block.block_hash, block.group, block.index, slot, generation))
            copies.append(PageCopy(block.group, page, slot * channel.slot_bytes))
            state.size_bytes += self._copier.block_bytes(block.group)
        if not placed:
            return
        handle = self._copier.submit_gather(copies)
        state.copying += 1

        def copied() -> None:
            state.copying -= 1
            channel.send(Store(state.handle, tuple(placed)))

        self._copying.append(_Copying(handle, copied))

    def _advance_stores(self) -> None:
        for state in self._stores:
            if state.blocks:
                if not self._channel.connected:
                    state.blocks.clear()
                else:
                    self._take_store_slots(state)
        self._advance_copies()
        for state in [s for s in self._stores if not s.blocks and not s.copying]:
            self._stores.remove(state)
            del self._storing[state.job]
            self._done.append(Done(state.job, False, state.size_bytes, self._clock() - state.began))

    def _advance_load(self, state: _LoadJob) -> None:
        channel = self._channel
        placed: list[BlockAt] = []
        while state.blocks and not state.failed:
            taken = channel.take()
            if taken is None:
                break
            slot, generation = taken
            block, page = state.blocks.popleft()
            state.slots[slot] = (block, page)
            placed.append(BlockAt(block.block_hash, block.group, block.index, slot, generation))
        if placed and not channel.send(Load(state.job, state.handle, tuple(placed))):
            state.failed = True
        finished = state.left == 0 or (state.failed and not state.blocks)
        if finished and not state.copying:
            # A daemon that zeroes slots under a worker that stood still hangs up before it does:
            # what was copied while the connection held is what the daemon opened.
            state.failed = state.failed or channel.hung_up
            # Slots that the daemon still holds come back through a late ``Loaded``.
            self._left_behind.update(state.slots)
            del self._loads[state.job]
            self._done.append(
                Done(state.job, state.failed, state.size_bytes, self._clock() - state.began)
            )

    def _loaded(self, message: Loaded) -> None:
        state = self._loads.get(message.job)
        if state is None or state.failed:
            self._give_back(
                message.slots + message.failed,
                self._left_behind if state is None else state.slots,
            )
            return
        state.deadline = self._clock() + self._channel.transfer_deadline_s
        copies: list[PageCopy] = []
        copied_slots: dict[int, tuple[Block, int]] = {}
        for slot in message.slots:
            entry = state.slots.pop(slot, None)
            if entry is not None:
                copied_slots[slot] = entry
                block, page = entry
                copies.append(PageCopy(block.group, page, slot * self._channel.slot_bytes))
                state.size_bytes += self._copier.block_bytes(block.group)
        if message.failed:
            state.failed = True
            state.blocks.clear()
            self._give_back(message.failed, state.slots)
        if not copies:
            return
        handle = self._copier.submit_scatter(copies)
        state.copying += 1

        def copied() -> None:
            state.copying -= 1
            state.left -= len(copies)
            self._give_back(tuple(copied_slots), copied_slots)

        self._copying.append(_Copying(handle, copied))
        self._advance_copies()

    def _give_back(self, slots: Sequence[int], held: dict[int, tuple[Block, int]]) -> None:
        """Have slots zeroed; only those that ``held`` says a load has, whatever the daemon says."""
        mine = tuple(slot for slot in slots if held.pop(slot, None) is not None)
        if mine:
            generations = tuple(self._channel.generation(slot) for slot in mine)
            self._channel.send(Release(mine, generations))

    def _advance_copies(self) -> None:
        waiting: list[_Copying] = []
        for copying in self._copying:
            if self._copier.done(copying.handle):
                copying.then()
            else:
                waiting.append(copying)
        self._copying = waiting

    def _fail_all(self) -> None:
        self._wait_for_copies()
        for load in self._loads.values():
            load.failed = True
            load.blocks.clear()
        for store in self._stores:
            store.blocks.clear()
        self._advance_copies()
        for load in self._loads.values():
            load.slots.clear()
        self._left_behind.clear()
        replaced = self._channel.recover()
        if replaced is not None:
            self._copier.close()
            try:
                self._copier = self._make_copier(self._channel.region)
            except KvrunError as error:
                _log.warning("the daemon's staging memory cannot be used: %s", error.message)
                self._channel.lose()
            replaced.close()

    def _wait_for_copies(self) -> None:
        for copying in self._copying:
            self._copier.wait(copying.handle)
