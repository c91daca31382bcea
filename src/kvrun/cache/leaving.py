"""Taking a session's blocks out of one tier, because they may not be there any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.state import cell_of, slot_of

if TYPE_CHECKING:
    from kvrun.cache.sessionobjects import SessionObjects

_AT_ONCE = 512


def leave(session: SessionObjects, tier: Tier, reason: str) -> tuple[int, int]:
    """Blocks and sealed bytes that left ``tier``; what the session has elsewhere stays.

    Others use the index meanwhile: it is let go of every few hundred blocks. A block that somebody
    holds goes when it is let go of; it is found by nobody from now on.
    """
    if tier is Tier.OBJECT:
        return _leave_objects(session, reason)
    with session._state.lock:
        names = list(session._index)
    blocks = size = 0
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        left = _leave_memory(session, some) if tier is Tier.MEMORY else _leave_disk(session, some)
        blocks, size = blocks + left[0], size + left[1]
    if blocks:
        session._event(CacheEventKind.EVICTED, tier, blocks, size, reason)
    return blocks, size


def _leave_objects(session: SessionObjects, reason: str) -> tuple[int, int]:
    objects, packs = session._state.objects, session.packs
    if objects is None or packs is None:
        return 0, 0
    with session._state.lock:
        names = [pack.name for pack in packs.table.packs()]
    for name in names:
        packs.forget(name)
    dropped = objects.drop(session.tenant_ref, session.session_ref, busy=packs.writing)
    if dropped.blocks:
        session._event(CacheEventKind.EVICTED, Tier.OBJECT, dropped.blocks, dropped.bytes, reason)
    return dropped.blocks, dropped.bytes


def _leave_memory(session: SessionObjects, names: list[bytes]) -> tuple[int, int]:
    state, free, size, blocks = session._state, [], 0, 0
    with state.lock:
        for name in names:
            cell = cell_of(session._index.get(name, 0))
            if cell < 0:
                continue
            blocks += 1
            size += state.memory.size(cell)
            session.forget_cell_locked(name)
            if state.memory.delist(cell):
                free.append(cell)
    state.scrub(free)
    return blocks, size


def _leave_disk(session: SessionObjects, names: list[bytes]) -> tuple[int, int]:
    state, disk, of_session = session._state, session._state.disk, session._disk
    if disk is None or of_session is None:
        return 0, 0
    found = []
    with state.lock:
        for name in names:
            slot = slot_of(session._index.get(name, 0))
            if slot >= 0:
                session._forget_slot_locked(name, slot)
                found.append((name, slot))
    size = 0
    for name, slot in found:
        size += disk.size(of_session, name, slot) or 0
        disk.remove(of_session, name, slot)
    return len(found), size
