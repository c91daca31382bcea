"""The queue of committed blocks that wait to be written to disk, and its one quiet thread.

While stores follow each other an engine computes a prompt, and what writing costs a processor would
come on top of its first token. So writing waits until stores pause, but for no block longer than
``LATEST_S``, and not once a quarter of the queue is full.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvrun.cache.blockqueue import BlockQueue

LATEST_S = 30.0
_BATCH = 32
_FULL_ENOUGH = 4
_log = logging.getLogger(__name__)


class PersistTarget(Protocol):
    """The session that a waiting block belongs to; it asks, writes and unpins."""

    def persist(self, blocks: "Sequence[WaitingBlock]") -> None:
        """Write these blocks to disk and unpin their cells."""


@dataclass(frozen=True, slots=True)
class WaitingBlock:
    """One pinned cell that waits since ``since`` (seconds of the store's clock).

    ``continues`` names the block before it in the prompt, where that is known.
    """

    session: PersistTarget
    name: bytes
    cell: int
    size: int
    since: float
    continues: bytes | None = None


class WriteBehind(BlockQueue):
    """Bounded write-behind. Methods named *_locked need the index lock that ``changed`` wraps.

    ``delay_s`` is the pause between stores after which writing begins.
    """

    def __init__(
        self,
        changed: threading.Condition,
        *,
        limit_bytes: int,
        delay_s: float,
        now: Callable[[], float],
        after_batch: Callable[[], None],
    ) -> None:
        super().__init__(changed, name="kvrun-write-behind", limit_bytes=limit_bytes, now=now)
        self._delay_s = delay_s
        self._after_batch = after_batch
        self._last_offer = -math.inf
        self._waiting: deque[WaitingBlock] = deque()

    def offer_locked(
        self,
        session: PersistTarget,
        name: bytes,
        cell: int,
        size: int,
        continues: bytes | None = None,
    ) -> bool:
        """Queues a block whose cell the caller pinned; False when the queue is full."""
        if self.waiting_bytes + size > self._limit_bytes:
            return False
        self._last_offer = now = self._now()
        self._waiting.append(WaitingBlock(session, name, cell, size, now, continues))
        self.waiting_bytes += size
        if len(self._waiting) == 1 or self._is_full_enough:
            self._changed.notify_all()
        return True

    def discard_locked(self, session: PersistTarget) -> list[WaitingBlock]:
        """Takes a session's waiting blocks out; the caller unpins them."""
        found = [block for block in self._waiting if block.session is session]
        if found:
            self._waiting = deque(b for b in self._waiting if b.session is not session)
            self.waiting_bytes -= sum(block.size for block in found)
        return found

    def run_due(self) -> int:
        """Writes one batch of due blocks; returns how many it took from the queue."""
        with self._run_lock:
            with self._changed:
                batch = self._take_due_locked()
                self._in_flight += len(batch)
            if not batch:
                return 0
            try:
                by_session: dict[int, list[WaitingBlock]] = {}
                for block in batch:
                    by_session.setdefault(id(block.session), []).append(block)
                for blocks in by_session.values():
                    blocks[0].session.persist(blocks)
            finally:
                self._handled(len(batch), sum(block.size for block in batch))
            self._after_batch()
            return len(batch)

    def _anything_locked(self) -> bool:
        return bool(self._waiting)

    @property
    def _is_full_enough(self) -> bool:
        return self.waiting_bytes * _FULL_ENOUGH >= self._limit_bytes

    def _wait_s_locked(self) -> float:
        """Until the oldest block that waits is due; there is one."""
        if self._hurry or self._is_full_enough:
            return 0.0
        due = min(self._last_offer + self._delay_s, self._waiting[0].since + LATEST_S)
        return due - self._now()

    def _take_due_locked(self) -> list[WaitingBlock]:
        batch: list[WaitingBlock] = []
        while self._waiting and len(batch) < _BATCH and self._wait_s_locked() <= 0:
            batch.append(self._waiting.popleft())
        if not self._waiting:
            self._hurry = False
        return batch

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping:
                    wait_s = self._wait_s_locked() if self._waiting else None
                    if wait_s is not None and wait_s <= 0:
                        break
                    self._changed.wait(wait_s)
                if self._stopping:
                    return
            try:
                self.run_due()
            except Exception:
                _log.exception("a batch of sealed blocks was not persisted")
