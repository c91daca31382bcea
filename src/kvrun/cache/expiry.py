"""Blocks that were kept long enough: taken out of every tier, and their files removed."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.placement import Gate, ttl_s
from kvrun.cache.sessionreads import SessionReads
from kvrun.cache.state import cell_of, packed_of, place_of, slot_of

_STEP = 4096


@dataclass(frozen=True, slots=True)
class Ttl:
    """Seconds that blocks may stay on a tier after they were stored; None: no limit.

    In Storage a pack stays or goes as a whole, from the time when it was written.
    """

    memory_s: float | None
    disk_s: float | None
    object_s: float | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing expires."""
        return self.memory_s is None and self.disk_s is None and self.object_s is None


def ttl_of(gate: Gate, setting_s: float | None, tenant_ref: str, session_ref: str) -> Ttl:
    """The shorter of the setting and the gate's, by tier."""

    def shorter(tier: Tier) -> float | None:
        limits = (setting_s, ttl_s(gate, tenant_ref, session_ref, tier))
        return min((limit for limit in limits if limit is not None), default=None)

    return Ttl(shorter(Tier.MEMORY), shorter(Tier.DISK), shorter(Tier.OBJECT))


class SessionExpiry(SessionReads):
    """A session's index that lets go of old blocks; a base of ``CacheSession``."""

    def expire(self, ttl: Ttl, wall: float) -> int:
        """Removes what is too old at ``wall`` (seconds since 1970); how many copies that were.

        A block that a request holds is unlisted at once, and zeroed when it is let go.
        """
        if ttl.unlimited:
            return 0
        with self._state.lock:
            names = list(self._index)
        count = sum(
            self._expire(names[start : start + _STEP], ttl, wall)
            for start in range(0, len(names), _STEP)
        )
        return count + self._expire_packs(ttl.object_s, wall)

    def _expire(self, names: Sequence[bytes], ttl: Ttl, wall: float) -> int:
        state = self._state
        memory, disk = state.memory, state.disk
        cells = cell_bytes = 0
        free: list[int] = []
        slots: list[tuple[bytes, int]] = []
        with state.lock:
            for name in names:
                place = self._index.get(name, 0)
                cell, slot = cell_of(place), slot_of(place)
                if cell >= 0 and _is_over(ttl.memory_s, memory.stored_at(cell), wall):
                    cells += 1
                    cell_bytes += memory.size(cell)
                    self._fetched.discard(name)
                    if memory.delist(cell):
                        free.append(cell)
                    cell = -1
                stored_at = disk.stored_at(slot) if slot >= 0 and disk is not None else wall
                if slot >= 0 and _is_over(ttl.disk_s, stored_at, wall):
                    slots.append((name, slot))
                    slot = -1
                self._set_place_locked(name, place_of(cell, slot, packed_of(place)))
            state.counters.expired += cells + len(slots)
        state.scrub(free)
        self._expired(Tier.MEMORY, cells, cell_bytes)
        if slots and disk is not None and self._disk is not None:
            sizes = [disk.size(self._disk, name, slot) or 0 for name, slot in slots]
            for name, slot in slots:
                disk.remove(self._disk, name, slot)
            self._expired(Tier.DISK, len(slots), sum(sizes))
        return cells + len(slots)

    def _expire_packs(self, ttl: float | None, wall: float) -> int:
        if ttl is None or self.packs is None:
            return 0
        blocks, size = self.packs.expire(wall - ttl)
        with self._state.lock:
            self._state.counters.expired += blocks
        self._expired(Tier.OBJECT, blocks, size)
        return blocks

    def _set_place_locked(self, name: bytes, place: int) -> None:
        if place:
            self._index[name] = place
        else:
            self._index.pop(name, None)

    def _expired(self, tier: Tier, blocks: int, size: int) -> None:
        if blocks:
            self._event(CacheEventKind.EXPIRED, tier, blocks, size, "ttl")


def _is_over(ttl: float | None, stored_at: float, wall: float) -> bool:
    return ttl is not None and stored_at + ttl <= wall
