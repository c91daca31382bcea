"""How long the blocks of all sessions are kept, and whose are kept for longer."""

from collections.abc import Iterable

from kvrun.cache.disk import DiskTier
from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.expiry import ttl_of
from kvrun.cache.memory import MemoryTier
from kvrun.cache.pins import KeptPrefix
from kvrun.cache.session import CacheSession
from kvrun.cache.state import BlockOwner, CacheState


def keep_prefix(
    memory: MemoryTier[BlockOwner], session: CacheSession, sessions: Iterable[CacheSession]
) -> KeptPrefix:
    """Keeps a session's prefix within what its tenant may keep over all its ``sessions``."""
    others = sum(
        other.kept.bytes
        for other in sessions
        if other.tenant_ref == session.tenant_ref and other is not session
    )
    limit = memory.sharing.quota_bytes or memory.slab_bytes // 4
    return session.keep(max(0, limit - others))


def expire_blocks(state: CacheState, sessions: Iterable[CacheSession]) -> int:
    """Removes what was kept long enough, of these and of unopened sessions; how many copies."""
    wall = state.wall()
    count = 0
    for session in sessions:
        ttl = ttl_of(state.gate, state.ttl_s, session.tenant_ref, session.session_ref)
        count += session.expire(ttl, wall)
    if state.disk is not None:
        count += _expire_unopened(state, state.disk, wall)
    return count


def _expire_unopened(state: CacheState, disk: DiskTier, wall: float) -> int:
    total = 0
    for tenant_ref, session_ref in disk.unopened():
        ttl = ttl_of(state.gate, state.ttl_s, tenant_ref, session_ref).disk_s
        if ttl is None:
            continue
        blocks, size = disk.expire_unopened(tenant_ref, session_ref, wall - ttl)
        if blocks:
            total += blocks
            state.events.add(
                CacheEventKind.EXPIRED,
                Tier.DISK,
                tenant_ref,
                session_ref,
                blocks=blocks,
                size=size,
                reason="ttl",
            )
    with state.lock:
        state.counters.expired += total
    return total
