"""How full the tiers are, by tenant and over all."""

import heapq
from dataclasses import dataclass, replace

from kvrun.cache.memory import TenantUsage
from kvrun.cache.packtable import PackTotals
from kvrun.cache.state import CacheCounters, CacheState


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot: cells and bytes in use, what waits for disk, totals since start."""

    cell_bytes: int
    cells: int
    free_cells: int
    busy_cells: int
    memory_locked: bool
    disk_bytes: int
    disk_available: bool
    waiting_bytes: int
    sessions: int
    tenants: dict[str, TenantUsage]
    counters: CacheCounters
    has_objects: bool = False
    object_bytes: int = 0
    object_available: bool = False


@dataclass(frozen=True, slots=True)
class CacheLevels:
    """How full the tiers are, without what takes time to add up. Blocks on disk and in Storage are
    those of sessions that were opened since the start; a capacity of 0 means that there is no such
    tier. ``undeleted`` counts sessions whose packs are still to be deleted, ``outgoing`` those that
    left the disk but for files, which count there until they are removed."""

    memory_blocks: int
    memory_bytes: int
    memory_capacity_bytes: int
    disk_blocks: int
    disk_bytes: int
    disk_capacity_bytes: int
    disk_available: bool
    waiting_bytes: int
    has_objects: bool = False
    object_blocks: int = 0
    object_bytes: int = 0
    object_available: bool = False
    object_waiting_bytes: int = 0
    undeleted: int = 0
    outgoing: int = 0


def stats_of(state: CacheState, sessions: int) -> CacheStats:
    """A snapshot of a store with so many sessions."""
    with state.lock:
        memory, disk, objects = state.memory, state.disk, state.objects
        return CacheStats(
            cell_bytes=memory.cell_bytes,
            cells=memory.cells,
            free_cells=memory.free_cells,
            busy_cells=memory.busy_cells,
            memory_locked=memory.locked,
            disk_bytes=disk.used_bytes if disk is not None else 0,
            disk_available=disk is not None and disk.available,
            waiting_bytes=state.writer.waiting_bytes if state.writer is not None else 0,
            sessions=sessions,
            tenants=memory.usage(),
            counters=replace(state.counters),
            has_objects=objects is not None,
            object_bytes=objects.totals.bytes if objects is not None else 0,
            object_available=objects is not None and objects.available,
        )


def levels_of(state: CacheState) -> CacheLevels:
    """How full the tiers are; takes a moment."""
    memory, disk, objects = state.memory, state.disk, state.objects
    packed = objects.totals if objects is not None else PackTotals()
    with state.lock:
        return CacheLevels(
            memory_blocks=memory.listed_blocks,
            memory_bytes=memory.listed_bytes,
            memory_capacity_bytes=memory.slab_bytes,
            disk_blocks=disk.known_blocks if disk is not None else 0,
            disk_bytes=disk.used_bytes if disk is not None else 0,
            disk_capacity_bytes=disk.max_bytes if disk is not None else 0,
            disk_available=disk is not None and disk.available,
            waiting_bytes=state.writer.waiting_bytes if state.writer is not None else 0,
            has_objects=objects is not None,
            object_blocks=packed.blocks,
            object_bytes=packed.bytes,
            object_available=objects is not None and objects.available,
            object_waiting_bytes=state.packer.waiting_bytes if state.packer is not None else 0,
            undeleted=objects.undeleted if objects is not None else 0,
            outgoing=disk.outgoing if disk is not None else 0,
        )


def top_tenants_of(state: CacheState, count: int) -> dict[str, TenantUsage]:
    """Those ``count`` tenants that hold most in memory, and all others together as ``other``."""
    with state.lock:
        usage = state.memory.usage()
        top = heapq.nlargest(count, usage, key=lambda tenant: usage[tenant].bytes)
        found = {tenant: usage[tenant] for tenant in top}
        blocks, size = state.memory.listed_blocks, state.memory.listed_bytes
    found["other"] = TenantUsage(
        blocks - sum(used.blocks for used in found.values()),
        size - sum(used.bytes for used in found.values()),
    )
    return found
