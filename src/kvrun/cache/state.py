"""What all sessions of a store share: the index lock, the tiers, counters and the write-behind."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kvrun.audit.decisions import AT_BOUND
from kvrun.cache.disk import DiskTier
from kvrun.cache.events import CacheEvent, CacheEventKind, EventCounter, Tier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.object_tier import ObjectTier
from kvrun.cache.order import NONE
from kvrun.cache.packqueue import PackQueue
from kvrun.cache.placement import CAPACITY, Basis, Gate, basis_of
from kvrun.cache.writebehind import WriteBehind

_log = logging.getLogger(__name__)

# A place is one int: cell + 1 in the low 30 bits, disk slot + 1 in the next 30, and the place in
# the session's packs + 1 above; 0 is nowhere. An int below 2**60 takes 32 bytes whatever it holds,
# one below 2**90 takes 48, so the second tier costs the index nothing and the third 16 bytes.
_BITS = 30
_MASK = (1 << _BITS) - 1
CELL_BITS, SLOT_BITS = _MASK, _MASK << _BITS
"""The bits of a place that are set where a block is in memory, and on disk."""


def place_of(cell: int, slot: int, packed: int = -1) -> int:
    """Packs a cell, a disk slot and a place in the session's packs (-1 for none) into one int."""
    return (cell + 1) | (slot + 1) << _BITS | (packed + 1) << 2 * _BITS


def cell_of(place: int) -> int:
    """The cell of a place, -1 when the block is not in memory."""
    return (place & _MASK) - 1


def slot_of(place: int) -> int:
    """The disk slot of a place, -1 when the block is not on disk."""
    return (place >> _BITS & _MASK) - 1


def packed_of(place: int) -> int:
    """Where a block is in its session's packs, -1 when it is in none."""
    return (place >> 2 * _BITS) - 1


class BlockOwner(Protocol):
    """A session, as the shared state sees it."""

    @property
    def tenant_ref(self) -> str:
        """The pseudonym of the tenant."""

    @property
    def session_ref(self) -> str:
        """The pseudonym of the session."""

    def forget_cell_locked(self, name: bytes) -> None:
        """A cell of this session was taken away; the index lock is held."""


@dataclass(slots=True)
class CacheCounters:
    """Totals since start; blocks unless named otherwise."""

    stored: int = 0
    already_stored: int = 0
    no_room: int = 0
    aborted: int = 0
    evicted: int = 0
    expired: int = 0
    persisted: int = 0
    persist_denied: int = 0
    persist_skipped: int = 0
    restored: int = 0
    quarantined: int = 0
    lost: int = 0
    events_failed: int = 0


class CacheState:
    """Shared by a store and its sessions. Methods named *_locked need ``lock`` held."""

    def __init__(
        self,
        *,
        memory: MemoryTier[BlockOwner],
        disk: DiskTier | None,
        objects: ObjectTier | None,
        on_event: Callable[[CacheEvent], None],
        gate: Gate,
        now: Callable[[], float],
        wall: Callable[[], float],
        ttl_s: float | None,
        write_delay_s: float,
        queue_bytes: int,
    ) -> None:
        self.lock = threading.Lock()
        self.leaving = threading.Lock()
        self.ttl_s = ttl_s
        self.memory = memory
        self.disk = disk
        self.objects = objects
        self.gate = gate
        self.now = now
        self.wall = wall
        self.counters = CacheCounters()
        self.asked = 0
        self.events = EventCounter()
        self.on_objects_back: Callable[[], None] = lambda: None
        self._on_event = on_event
        self.writer: WriteBehind | None = None
        if disk is not None:
            disk.on_change = self._disk_changed
            disk.on_evicted = self._evicted_from_disk
            disk.bound = lambda tenant_ref: self._bound(tenant_ref, Tier.DISK)
            self.writer = WriteBehind(
                threading.Condition(self.lock),
                limit_bytes=min(queue_bytes, memory.slab_bytes // 2),
                delay_s=write_delay_s,
                now=now,
                after_batch=self.deliver,
            )
        self.packer: PackQueue | None = None
        if objects is not None:
            objects.on_change = self._objects_changed
            settings = objects.settings
            self.packer = PackQueue(
                threading.Condition(self.lock),
                pack_bytes=settings.pack_bytes,
                age_s=settings.pack_age_s,
                idle_s=settings.pack_idle_s,
                limit_bytes=min(settings.queue_bytes, memory.slab_bytes // 4),
                now=now,
                idle=self.look_after_objects,
            )

    def allocate_locked(self, tenant_ref: str, *, continues: int = NONE) -> int | None:
        """A detached cell for a block of a tenant, or None.

        Where the tier is full, or the tenant's quota is, the block that leaves first is evicted,
        but not the one in the cell ``continues``, without which the new one would be worthless.
        """
        memory = self.memory
        beyond = memory.is_beyond_quota(tenant_ref)
        cell = None if beyond else memory.allocate()
        if cell is None:
            victim = memory.victim(tenant_ref, self.now())
            if victim not in (NONE, continues):
                self._evict_locked(victim, self._bound(tenant_ref) if beyond else CAPACITY)
                return victim
            if self.writer is not None:
                self.writer.hurry_locked()
            if self.packer is not None:
                self.packer.hurry_locked()
        return cell

    def make_room_locked(self, tenant_ref: str, *, continues: int = NONE) -> bool:
        """Whether one more block may be listed for a tenant within what it may hold.

        Its own oldest blocks leave for it. Asked where a block is listed: others of the tenant may
        have been, since the cell was allocated.
        """
        memory = self.memory
        while memory.is_beyond_quota(tenant_ref):
            victim = memory.order.oldest_of(tenant_ref)
            if victim in (NONE, continues):
                return False
            self._evict_locked(victim, self._bound(tenant_ref))
            memory.scrub([victim])
            memory.release([victim])
        return True

    def trim(self, tenant_ref: str, basis: Basis, at_most: int) -> tuple[int, int]:
        """Evicts so many blocks of what a tenant holds in memory beyond what it may: how many, and
        their sealed bytes. What is held goes when the next block comes."""
        memory, size = self.memory, 0
        victims: list[int] = []
        with self.lock:
            while len(victims) < at_most and memory.order.is_beyond_quota(tenant_ref, 0):
                victim = memory.order.oldest_of(tenant_ref)
                if victim == NONE:
                    break
                size += memory.size(victim)
                victims.append(victim)
                self._evict_locked(victim, basis)
        self.scrub(victims)
        return len(victims), size

    def unpin(self, cells: Iterable[int]) -> None:
        """Takes one pin off each cell; scrubs and frees those that were only waiting for that."""
        with self.lock:
            doomed = [cell for cell in cells if self.memory.unpin(cell)]
        self.scrub(doomed)

    def scrub(self, cells: Iterable[int]) -> None:
        """Zeroes detached cells outside the lock, then frees them."""
        cells = list(cells)
        if cells:
            self.memory.scrub(cells)
            with self.lock:
                self.memory.release(cells)

    def deliver(self) -> None:
        """Hands gathered events to the daemon; no lock is held meanwhile."""
        for event in self.events.drain():
            try:
                self._on_event(event)
            except Exception:
                self.counters.events_failed += 1
                _log.exception("a cache event was not recorded: %s", event.kind)

    def look_after_objects(self) -> None:
        """Finds out whether Storage is back, and deletes there what is still to be deleted."""
        if self.objects is not None:
            self.objects.probe()
            self.objects.retry_deletions()
        self.deliver()

    def _objects_changed(self, available: bool, reason: str) -> None:
        kind = CacheEventKind.OBJECTS_AVAILABLE if available else CacheEventKind.OBJECTS_UNAVAILABLE
        self.events.add(kind, Tier.OBJECT, reason=reason)
        if available:
            self.on_objects_back()

    def _bound(self, tenant_ref: str, tier: Tier = Tier.MEMORY) -> Basis:
        """What the bound rests on that makes a tenant's own blocks leave a tier."""
        order = self.memory.order if tier is Tier.MEMORY or self.disk is None else self.disk.order
        capped = order.sharing.is_capped(tenant_ref)
        return basis_of(self.gate, tenant_ref, tier, AT_BOUND) if capped else CAPACITY

    def _evict_locked(self, victim: int, basis: Basis) -> None:
        owner = self.memory.owner(victim)
        name, size = self.memory.name(victim), self.memory.size(victim)
        self.memory.delist(victim)
        owner.forget_cell_locked(name)
        self.counters.evicted += 1
        self.events.add(
            CacheEventKind.EVICTED,
            Tier.MEMORY,
            owner.tenant_ref,
            owner.session_ref,
            blocks=1,
            size=size,
            reason=basis.reason,
            revision=basis.revision,
        )

    def _evicted_from_disk(
        self, key: tuple[str, str], blocks: int, size: int, basis: Basis
    ) -> None:
        self.events.add(
            CacheEventKind.EVICTED, Tier.DISK, *key,
            blocks=blocks, size=size, reason=basis.reason, revision=basis.revision,
        )  # fmt: skip

    def _disk_changed(self, available: bool, reason: str) -> None:
        kind = CacheEventKind.DISK_AVAILABLE if available else CacheEventKind.DISK_UNAVAILABLE
        self.events.add(kind, Tier.DISK, reason=reason)
        self.deliver()
