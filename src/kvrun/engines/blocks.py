"""Opening and sealing blocks in calls that wait, for engines that do it outside their steps.

Each call has a deadline: what takes longer is a miss or is not stored. Thread-safe, one call at a
time. Plaintext lies in the daemon's staging memory only while a call, or an opened block, holds it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kvrun.engines.channel import WorkerChannel
from kvrun.engines.transfer import BlockRef
from kvrun.instance.protocol import BlockAt, Load, Loaded, Release, Released, Store

_LOAD_RESERVE = 4
_READ_AT_ONCE = 64
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block whose plaintext is in a slot; ``connection`` counts the daemons that there were."""

    slot: int
    group: int
    connection: int


@dataclass(slots=True)
class _Late:
    """A load that ran out of time; its slots come back with the daemon's answer."""

    slots: set[int]


class BlockIO:
    """Blocks of one worker. ``block_bytes`` by KV cache group; ``clock`` counts seconds."""

    def __init__(
        self,
        channel: WorkerChannel,
        block_bytes: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._block_bytes = tuple(block_bytes)
        self._clock = clock
        self._lock = threading.RLock()
        self._jobs = itertools.count(1)
        self._late: dict[int, _Late] = {}
        self._silent = False
        self._connection = 0

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next."""
        return self._channel.slot_bytes

    @property
    def staging(self) -> memoryview:
        """The whole staging memory; another one after the daemon came back."""
        return self._channel.region.view

    @property
    def connection(self) -> int:
        """A number that grows when another daemon's staging memory takes this one's place."""
        return self._connection

    def view(self, slot: int, group: int) -> memoryview:
        """The bytes of one block in its slot."""
        return self._channel.region.slot(slot, self._block_bytes[group])

    def address(self, slot: int) -> int:
        """Where the slot begins in this process's memory."""
        return self._channel.region.address + slot * self._channel.slot_bytes

    def open(
        self, handle: int, refs: Sequence[BlockRef], deadline_s: float | None = None
    ) -> list[OpenBlock | None]:
        """Open blocks and keep their slots until ``close``; None where one did not open.

        ``deadline_s`` is for all of them; without it the daemon's own holds for each answer.
        """
        with self._ready() as ready:
            if not ready or not handle or not refs:
                return [None] * len(refs)
            return self._open(handle, refs, deadline_s)

    def close(self, blocks: Iterable[OpenBlock]) -> None:
        """Have the slots of opened blocks zeroed."""
        with self._lock:
            self._give_back([b.slot for b in blocks if b.connection == self._connection])

    def holds(self, block: OpenBlock) -> bool:
        """Whether a block that was opened still is what the daemon opened."""
        with self._lock:
            return block.connection == self._connection and not self._channel.hung_up

    def read(
        self, handle: int, refs: Sequence[BlockRef], copy: Callable[[int, int], None]
    ) -> list[bool]:
        """Open blocks in order and hand each to ``copy(position, slot)``.

        Reading ends at the first block that does not open. What was copied of a block that is
        reported as False must not be used.
        """
        done = [False] * len(refs)
        for start in range(0, len(refs), _READ_AT_ONCE):
            part = refs[start : start + _READ_AT_ONCE]
            with self._ready() as ready:
                if not ready or not handle:
                    return done
                opened = self._open(handle, part, None)
                good = list(itertools.takewhile(lambda block: block is not None, opened))
                for position, block in enumerate(good):
                    assert block is not None
                    copy(start + position, block.slot)
                # A daemon that zeroes slots under a worker that stood still hangs up before.
                whole = not self._channel.hung_up
                self._give_back([block.slot for block in opened if block is not None])
            if not whole:
                return done
            done[start : start + len(good)] = [True] * len(good)
            if len(good) < len(part):
                return done
        return done

    def seal(
        self, handle: int, refs: Sequence[BlockRef], fill: Callable[[int, int], None]
    ) -> list[bool]:
        """Hand blocks to the daemon: ``fill(position, slot)`` writes each into its slot."""
        sent = [False] * len(refs)
        position = 0
        deadline = self._clock() + self._channel.transfer_deadline_s
        while position < len(refs):
            with self._ready() as ready:
                if not ready or not handle:
                    return sent
                placed: list[BlockAt] = []
                while position + len(placed) < len(refs):
                    if self._channel.free_slots <= self._reserve:
                        break
                    taken = self._channel.take()
                    if taken is None:
                        break
                    slot, generation = taken
                    ref = refs[position + len(placed)]
                    fill(position + len(placed), slot)
                    placed.append(BlockAt(ref.block_hash, ref.group, ref.index, slot, generation))
                if placed:
                    if not self._channel.send(Store(handle, tuple(placed))):
                        return sent
                    sent[position : position + len(placed)] = [True] * len(placed)
                    position += len(placed)
                elif self._clock() >= deadline:
                    return sent
                else:
                    self._take_in(_POLL_S)
        return sent

    def idle(self) -> None:
        """Take in what the daemon sent, and notice its end; waits for nobody."""
        if self._lock.acquire(blocking=False):
            try:
                self._recover()
                self._take_in(0.0)
            finally:
                self._lock.release()

    def shut(self) -> None:
        """Close the channel."""
        with self._lock:
            self._channel.close()

    @property
    def _reserve(self) -> int:
        return min(_LOAD_RESERVE, self._channel.slots // 4)

    @contextmanager
    def _ready(self) -> Iterator[bool]:
        with self._lock:
            self._recover()
            self._take_in(0.0)
            yield self._channel.connected and not self._silent

    def _recover(self) -> None:
        if not self._channel.connected:
            replaced = self._channel.recover()
            self._late.clear()
            if replaced is not None or self._channel.connected:
                self._connection += 1
                self._silent = False
            if replaced is not None:
                replaced.close()

    def _open(
        self, handle: int, refs: Sequence[BlockRef], deadline_s: float | None
    ) -> list[OpenBlock | None]:
        channel = self._channel
        job = next(self._jobs)
        opened: list[OpenBlock | None] = [None] * len(refs)
        waiting: dict[int, int] = {}
        placed: list[BlockAt] = []
        for position, ref in enumerate(refs):
            taken = channel.take()
            if taken is None:
                break
            slot, generation = taken
            waiting[slot] = position
            placed.append(BlockAt(ref.block_hash, ref.group, ref.index, slot, generation))
        if not placed or not channel.send(Load(job, handle, tuple(placed))):
            return opened
        patience_s = channel.transfer_deadline_s if deadline_s is None else deadline_s
        deadline = self._clock() + patience_s
        while waiting and channel.connected:
            left = deadline - self._clock()
            if left <= 0:
                self._late[job] = _Late(set(waiting))
                self._silent = True
                break
            for answer in self._take_in(min(left, _POLL_S)):
                if answer.job != job:
                    self._late_answer(answer)
                    continue
                for slot in answer.slots:
                    place = waiting.pop(slot, None)
                    if place is not None:
                        opened[place] = OpenBlock(slot, refs[place].group, self._connection)
                failed = [s for s in answer.failed if waiting.pop(s, None) is not None]
                self._give_back(failed)
                if deadline_s is None:
                    deadline = self._clock() + patience_s
        if not channel.connected:
            return [None] * len(refs)
        return opened

    def _take_in(self, wait_s: float) -> list[Loaded]:
        """What the daemon answered to loads; released slots are taken in here."""
        answers: list[Loaded] = []
        for message in self._channel.poll(wait_s):
            self._silent = False
            if isinstance(message, Released):
                self._channel.released(message)
            elif isinstance(message, Loaded):
                if message.job in self._late:
                    self._late_answer(message)
                else:
                    answers.append(message)
        return answers

    def _late_answer(self, answer: Loaded) -> None:
        late = self._late.get(answer.job)
        if late is None:
            return
        mine = [slot for slot in answer.slots + answer.failed if slot in late.slots]
        late.slots.difference_update(mine)
        if not late.slots:
            del self._late[answer.job]
        self._give_back(mine)

    def _give_back(self, slots: Sequence[int]) -> None:
        if slots and self._channel.connected:
            generations = tuple(self._channel.generation(slot) for slot in slots)
            self._channel.send(Release(tuple(slots), generations))
