"""Blocks that wait to be packed, by session, and the one quiet thread that packs them.

What finds no room is left out. A session is packed when enough of it waits, its first block waited
for long enough, or it has had no request for a moment. What is on disk already waits without a
cell.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvrun.cache.blockqueue import BlockQueue
from kvrun.cache.pack import MAX_ENTRIES

_IDLE_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """A block to pack; ``cell`` is pinned, -1 for a block that is read from disk."""

    name: bytes
    cell: int
    size: int


class PackTarget(Protocol):
    """The session that waiting blocks belong to; it asks, packs and unpins."""

    @property
    def idle_since(self) -> float | None:
        """When its last request ended, by the store's clock; None while one is under way."""

    def pack(self, blocks: Sequence[PackedBlock]) -> None:
        """Store these blocks as one pack and unpin their cells."""


@dataclass(slots=True)
class _Waiting:
    """What waits of one session: first ``since``, last ``until``, by the store's clock."""

    since: float
    until: float
    blocks: list[PackedBlock] = field(default_factory=list)
    bytes: int = 0


class PackQueue(BlockQueue):
    """Bounded queue of blocks to pack. Methods named *_locked need the index lock."""

    def __init__(
        self,
        changed: threading.Condition,
        *,
        pack_bytes: int,
        age_s: float,
        idle_s: float,
        limit_bytes: int,
        now: Callable[[], float],
        idle: Callable[[], None],
    ) -> None:
        super().__init__(changed, name="kvrun-pack", limit_bytes=limit_bytes, now=now)
        self._pack_bytes = pack_bytes
        self._age_s = age_s
        self._idle_s = idle_s
        self._idle = idle
        self._waiting: dict[PackTarget, _Waiting] = {}

    @property
    def has_room(self) -> bool:
        """Whether it is worth offering what was left out before."""
        return 2 * self.waiting_bytes <= self._limit_bytes

    def offer_locked(self, session: PackTarget, block: PackedBlock) -> bool:
        """Queues a block whose cell, if any, the caller pinned; False when the queue is full."""
        pinned = block.size if block.cell >= 0 else 0
        if self.waiting_bytes + pinned > self._limit_bytes:
            return False
        waiting = self._waiting.get(session)
        now = self._now()
        if waiting is None:
            waiting = self._waiting[session] = _Waiting(now, now)
        waiting.until = now
        waiting.blocks.append(block)
        waiting.bytes += block.size
        self.waiting_bytes += pinned
        if len(waiting.blocks) == 1 or waiting.bytes >= self._pack_bytes:
            self._changed.notify_all()
        return True

    def look_again_locked(self) -> None:
        """A session has no request any more."""
        if self._waiting:
            self._changed.notify_all()

    def discard_locked(self, session: PackTarget) -> list[PackedBlock]:
        """Takes a session's waiting blocks out; the caller unpins them."""
        waiting = self._waiting.pop(session, None)
        if waiting is None:
            return []
        self.waiting_bytes -= _pinned(waiting.blocks)
        return waiting.blocks

    def run_due(self) -> int:
        """Packs what is due of one session; returns how many blocks it took from the queue."""
        with self._run_lock:
            with self._changed:
                session, blocks = self._take_due_locked()
                self._in_flight += len(blocks)
            if session is None:
                return 0
            try:
                session.pack(blocks)
            finally:
                self._handled(len(blocks), _pinned(blocks))
            return len(blocks)

    def _anything_locked(self) -> bool:
        return bool(self._waiting)

    def _take_due_locked(self) -> tuple[PackTarget | None, list[PackedBlock]]:
        session = self._due_locked()
        if session is None:
            self._hurry = False
            return None, []
        waiting = self._waiting.pop(session)
        taken: list[PackedBlock] = []
        room = self._pack_bytes
        for block in waiting.blocks[:MAX_ENTRIES]:
            if taken and block.size > room:
                break
            taken.append(block)
            room -= block.size
        rest = waiting.blocks[len(taken) :]
        if rest:
            size = sum(block.size for block in rest)
            self._waiting[session] = _Waiting(waiting.since, waiting.until, rest, size)
        return session, taken

    def _due_locked(self) -> PackTarget | None:
        now = self._now()
        for session, waiting in self._waiting.items():
            old = now >= self._due_at(session, waiting)
            if self._hurry or old or waiting.bytes >= self._pack_bytes:
                return session
        return None

    def _due_at(self, session: PackTarget, waiting: _Waiting) -> float:
        due = waiting.since + self._age_s
        if session.idle_since is None:
            return due
        # Blocks are still sealed for a moment after the request that computed them ended.
        return min(due, max(session.idle_since, waiting.until) + self._idle_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and self._due_locked() is None:
                    now = self._now()
                    waits = [self._due_at(s, w) - now for s, w in self._waiting.items()]
                    if not self._changed.wait(max(0.01, min([_IDLE_S, *waits]))):
                        break
                if self._stopping:
                    return
            try:
                if not self.run_due():
                    self._idle()
            except Exception:
                _log.exception("sealed blocks were not packed")


def _pinned(blocks: Sequence[PackedBlock]) -> int:
    return sum(block.size for block in blocks if block.cell >= 0)
