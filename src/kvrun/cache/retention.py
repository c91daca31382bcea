"""How long the blocks of all sessions are kept, and whose are kept for longer."""

from collections.abc import Callable, Collection, Iterable, Sequence

from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.expiry import expired_by, ttl_of
from kvrun.cache.memory import MemoryTier
from kvrun.cache.pins import KeptPrefix
from kvrun.cache.placement import FOREIGN, Basis
from kvrun.cache.served import until
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
    unopened = 0
    for tenant_ref, session_ref in state.disk.unopened() if state.disk is not None else ():
        limit_s = ttl_of(state.gate, state.ttl_s, tenant_ref, session_ref).disk_s
        if limit_s is not None:
            key, old = (tenant_ref, session_ref), until(wall - limit_s)
            basis = expired_by(state, *key, Tier.DISK)
            unopened += _remove_unopened(state, key, old, CacheEventKind.EXPIRED, basis)
    with state.lock:
        state.counters.expired += unopened
    return count + unopened


def collect_foreign(
    state: CacheState, sessions: Sequence[CacheSession], is_foreign: Callable[[float], bool]
) -> int:
    """Removes what was stored at times when another model was served, of these and of unopened
    sessions, from memory and disk; how many copies."""
    count = sum(session.collect(is_foreign) for session in sessions)
    unopened = sum(
        _remove_unopened(state, key, is_foreign, CacheEventKind.EVICTED, FOREIGN)
        for key in (state.disk.unopened() if state.disk is not None else ())
    )
    with state.lock:
        state.counters.evicted += unopened
    return count + unopened


def collect_foreign_packs(
    state: CacheState, opened: Collection[tuple[str, str]], is_foreign: Callable[[float], bool]
) -> bool:
    """The same in Storage, of sessions that are not opened; False where it has to be tried again.

    Sessions that are opened see by a pack's index what it is.
    """
    if state.objects is None:
        return True
    found = state.objects.collect(is_foreign, opened)
    for (tenant_ref, session_ref), (blocks, size) in found.removed.items():
        state.events.add(
            CacheEventKind.EVICTED,
            Tier.OBJECT,
            tenant_ref,
            session_ref,
            blocks=blocks,
            size=size,
            reason=FOREIGN.reason,
        )
    return found.complete


def _remove_unopened(
    state: CacheState,
    key: tuple[str, str],
    goes: Callable[[float], bool],
    kind: CacheEventKind,
    basis: Basis,
) -> int:
    assert state.disk is not None
    blocks, size = state.disk.remove_unopened(*key, goes)
    if blocks:
        state.events.add(
            kind, Tier.DISK, *key,
            blocks=blocks, size=size, reason=basis.reason, revision=basis.revision,
        )  # fmt: skip
    return blocks
