"""What keeps a session's blocks from eviction: the pins of its requests, and an operator's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrun.cache.expiry import SessionExpiry, Ttl
from kvrun.cache.fetching import Fetcher
from kvrun.cache.state import CacheState, cell_of, slot_of


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """The first blocks of a session, kept on every tier that has them, and their sealed bytes."""

    blocks: int = 0
    bytes: int = 0


class SessionPins(SessionExpiry):
    """The pins of one session, by name; a base of ``CacheSession``."""

    def __init__(
        self, state: CacheState, tenant_ref: str, session_ref: str, fetcher: Fetcher | None
    ) -> None:
        super().__init__(state, tenant_ref, session_ref, fetcher)
        # A name's pinned cells, one entry a pin, -1 where there was nothing to pin.
        self._pins: dict[bytes, list[int]] = {}
        self._kept: list[tuple[bytes, int]] = []
        self.kept = KeptPrefix()

    def pin(self, names: Sequence[bytes]) -> None:
        """Keeps those of ``names`` that are in memory there, until :meth:`unpin` of the same."""
        state = self._state
        with state.lock:
            for name in names:
                cell = cell_of(self._index.get(name, 0))
                if cell >= 0:
                    state.memory.pin(cell)
                self._pins.setdefault(name, []).append(cell)

    def unpin(self, names: Sequence[bytes]) -> None:
        """Ends one :meth:`pin` of each name, whatever became of the block; others are ignored.

        Those in memory become the most recently used ones, the first of ``names`` the very last.
        """
        state = self._state
        doomed = []
        with state.lock:
            for name in reversed(names):
                pinned = self._pins.get(name)
                if not pinned:
                    continue
                cell = pinned.pop()
                if not pinned:
                    del self._pins[name]
                if cell >= 0 and state.memory.unpin(cell):
                    doomed.append(cell)
                elif (found := cell_of(self._index.get(name, 0))) >= 0:
                    state.memory.touch(found)
        state.scrub(doomed)

    def keep(self, limit_bytes: int) -> KeptPrefix:
        """Keeps what the session holds now, its first blocks up to ``limit_bytes``, from eviction.

        Blocks that come later are not kept until it is called again. Nothing keeps a block from
        its time to live, from an erasure or from the end of the daemon.
        """
        self.release()
        state = self._state
        disk, session = state.disk, self._disk
        kept: list[tuple[bytes, int]] = []
        size = 0
        with state.lock:
            # In the order in which they were stored: the head of a conversation first.
            for name, place in self._index.items():
                cell, slot = cell_of(place), slot_of(place)
                if cell >= 0:
                    each = state.memory.size(cell)
                elif slot >= 0 and disk is not None and session is not None:
                    each = disk.size(session, name, slot) or 0
                else:
                    continue
                if self.dropped or size + each > limit_bytes:
                    break
                kept.append((name, slot))
                size += each
        self.pin([name for name, _ in kept])
        if disk is not None and session is not None:
            disk.hold(session, kept)
        self._kept = kept
        self.kept = KeptPrefix(len(kept), size)
        return self.kept

    def release(self) -> None:
        """Lets the kept blocks be evicted again."""
        kept, self._kept = self._kept, []
        self.kept = KeptPrefix()
        self.unpin([name for name, _ in kept])
        if self._state.disk is not None and self._disk is not None:
            self._state.disk.let_go(self._disk, kept)

    def expire(self, ttl: Ttl, wall: float) -> int:
        """As for every session; kept blocks that are gone are held no longer."""
        return self._keep_less(super().expire(ttl, wall))

    def collect(self, is_foreign: Callable[[float], bool]) -> int:
        """As for every session; kept blocks that are gone are held no longer."""
        return self._keep_less(super().collect(is_foreign))

    def _keep_less(self, count: int) -> int:
        if count and self._kept:
            self.keep(self.kept.bytes)
        return count
