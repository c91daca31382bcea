"""Taking blocks out of the tiers that were kept long enough, or that are another model's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.placement import FOREIGN, Basis, Gate, basis_of, ttl_s
from kvrun.cache.sessionreads import SessionReads
from kvrun.cache.state import CacheState, cell_of, packed_of, place_of, slot_of

_STEP = 4096
_TTL = "ttl"


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


def expired_by(state: CacheState, tenant_ref: str, session_ref: str, tier: Tier) -> Basis:
    """What the time that ended on a tier rests on: the setting, or the gate if that is shorter."""
    limit_s = ttl_s(state.gate, tenant_ref, session_ref, tier)
    if limit_s is not None and (state.ttl_s is None or limit_s < state.ttl_s):
        found = basis_of(state.gate, tenant_ref, tier, _TTL)
        return found if found.reason else Basis(_TTL, found.revision)
    return Basis(_TTL)


class SessionExpiry(SessionReads):
    """A session's index that lets go of old blocks; a base of ``CacheSession``."""

    def expire(self, ttl: Ttl, wall: float) -> int:
        """Removes what is too old at ``wall`` (seconds since 1970); how many copies that were.

        A block that a request holds is unlisted at once, and zeroed when it is let go.
        """
        if ttl.unlimited:
            return 0
        limits = {Tier.MEMORY: ttl.memory_s, Tier.DISK: ttl.disk_s}
        count = self._remove(
            lambda tier, stored_at: _is_over(limits[tier], stored_at, wall), CacheEventKind.EXPIRED
        )
        return count + self._expire_packs(ttl.object_s, wall)

    def collect(self, is_foreign: Callable[[float], bool]) -> int:
        """Removes from memory and disk what was stored at times when another model was served.

        Answers how many copies. Its packs are told by their indexes, when they are looked at.
        """
        return self._remove(lambda tier, at: is_foreign(at), CacheEventKind.EVICTED)

    def _remove(self, goes: Callable[[Tier, float], bool], kind: CacheEventKind) -> int:
        with self._state.lock:
            names = list(self._index)
        return sum(
            self._remove_some(names[start : start + _STEP], goes, kind)
            for start in range(0, len(names), _STEP)
        )

    def _remove_some(
        self, names: Sequence[bytes], goes: Callable[[Tier, float], bool], kind: CacheEventKind
    ) -> int:
        state = self._state
        memory, disk = state.memory, state.disk
        cells = cell_bytes = 0
        free: list[int] = []
        slots: list[tuple[bytes, int]] = []
        with state.lock:
            for name in names:
                place = self._index.get(name, 0)
                cell, slot = cell_of(place), slot_of(place)
                if cell >= 0 and goes(Tier.MEMORY, memory.stored_at(cell)):
                    cells += 1
                    cell_bytes += memory.size(cell)
                    self._fetched.discard(name)
                    if memory.delist(cell):
                        free.append(cell)
                    cell = -1
                if slot >= 0 and disk is not None and goes(Tier.DISK, disk.stored_at(slot)):
                    slots.append((name, slot))
                    slot = -1
                self._set_place_locked(name, place_of(cell, slot, packed_of(place)))
            if kind is CacheEventKind.EXPIRED:
                state.counters.expired += cells + len(slots)
            else:
                state.counters.evicted += cells + len(slots)
        state.scrub(free)
        self._removed(kind, Tier.MEMORY, cells, cell_bytes)
        if slots and disk is not None and self._disk is not None:
            sizes = [disk.size(self._disk, name, slot) or 0 for name, slot in slots]
            for name, slot in slots:
                disk.remove(self._disk, name, slot)
            self._removed(kind, Tier.DISK, len(slots), sum(sizes))
        return cells + len(slots)

    def _expire_packs(self, ttl: float | None, wall: float) -> int:
        if ttl is None or self.packs is None:
            return 0
        blocks, size = self.packs.expire(wall - ttl)
        with self._state.lock:
            self._state.counters.expired += blocks
        self._removed(CacheEventKind.EXPIRED, Tier.OBJECT, blocks, size)
        return blocks

    def _set_place_locked(self, name: bytes, place: int) -> None:
        if place:
            self._index[name] = place
        else:
            self._index.pop(name, None)

    def _removed(self, kind: CacheEventKind, tier: Tier, blocks: int, size: int) -> None:
        if not blocks:
            return
        basis = FOREIGN
        if kind is CacheEventKind.EXPIRED:
            basis = expired_by(self._state, self.tenant_ref, self.session_ref, tier)
        self._event(kind, tier, blocks, size, *basis)


def _is_over(ttl: float | None, stored_at: float, wall: float) -> bool:
    return ttl is not None and stored_at + ttl <= wall
