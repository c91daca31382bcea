"""Taking blocks out of tiers, because they may not be there any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvrun.cache.errors import ObjectTierOffError
from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.object_tier import ObjectTier
from kvrun.cache.placement import Basis
from kvrun.cache.state import CELL_BITS, SLOT_BITS, CacheState, cell_of, slot_of

if TYPE_CHECKING:
    from kvrun.cache.sessionobjects import SessionObjects

AT_ONCE = 32
"""So many blocks leave while the index is held: a request's look-up waits no longer than that."""

Left = dict[Tier, tuple[int, int]]
"""Blocks and sealed bytes that left, by tier."""


def leave(session: SessionObjects, why: Mapping[Tier, Basis], pause: Callable[[], None]) -> Left:
    """What left the tiers that ``why`` names; what the session has elsewhere stays.

    Others use the index meanwhile: it is let go of every few blocks, and ``pause`` is called. A
    block that somebody holds goes when it is let go of; it is found by nobody from now on. What is
    on disk counts as having left when it is removed there.
    """
    state, key = session._state, (session.tenant_ref, session.session_ref)
    left: Left = dict.fromkeys(why, (0, 0))
    if Tier.MEMORY in why or Tier.DISK in why:
        # One session at a time: several would take the interpreter in turns, and requests wait.
        with state.leaving:
            in_memory = _leave_index(session, why, pause)
        if Tier.MEMORY in why:
            left[Tier.MEMORY] = in_memory
    if Tier.DISK in why and state.disk is not None and session._disk is not None:
        left[Tier.DISK] = state.disk.remove_left(session._disk, pause)
        _note(state, key, Tier.DISK, left[Tier.DISK], why[Tier.DISK])
    if Tier.OBJECT in why:
        left[Tier.OBJECT] = _leave_objects(session)
        _note(state, key, Tier.OBJECT, left[Tier.OBJECT], why[Tier.OBJECT])
    return left


def leave_unopened(
    state: CacheState,
    key: tuple[str, str],
    why: Mapping[Tier, Basis],
    pause: Callable[[], None],
) -> Left:
    """The same of a session that nobody opened since the start: it has nothing in memory."""
    left: Left = dict.fromkeys(why, (0, 0))
    if Tier.DISK in why and state.disk is not None:
        left[Tier.DISK] = state.disk.leave_unopened(*key, pause)
    if Tier.OBJECT in why and state.objects is not None:
        packs = state.objects.take_away(*key)
        left[Tier.OBJECT] = (packs.blocks, packs.bytes)
    for tier, found in left.items():
        _note(state, key, tier, found, why[tier])
    return left


def trim(
    state: CacheState, tenant_ref: str, tier: Tier, basis: Basis, pause: Callable[[], None]
) -> tuple[int, int]:
    """Blocks and bytes that left memory or disk so that a tenant holds there what it may."""
    blocks = size = 0
    if tier is Tier.MEMORY:
        while (left := state.trim(tenant_ref, basis, AT_ONCE))[0]:
            blocks, size = blocks + left[0], size + left[1]
            pause()
    elif tier is Tier.DISK and state.disk is not None:
        return state.disk.trim(tenant_ref, basis, pause)
    return blocks, size


def beyond_in_storage(objects: ObjectTier, tenant_ref: str) -> bool:
    """Whether a tenant has more in Storage than it may; no while that does not answer."""
    try:
        return objects.beyond_bytes(tenant_ref) > 0
    except ObjectTierOffError:
        return False


def _note(
    state: CacheState, key: tuple[str, str], tier: Tier, left: tuple[int, int], basis: Basis
) -> None:
    if left[0]:
        state.events.add(
            CacheEventKind.EVICTED,
            tier,
            *key,
            blocks=left[0],
            size=left[1],
            reason=basis.reason,
            revision=basis.revision,
        )


def _leave_objects(session: SessionObjects) -> tuple[int, int]:
    objects, packs = session._state.objects, session.packs
    if objects is None or packs is None:
        return 0, 0
    with session._state.lock:
        names = [pack.name for pack in packs.table.packs()]
    for name in names:
        packs.forget(name)
    # A pack that is being written asks once more when it is there, and goes by itself.
    dropped = objects.take_away(session.tenant_ref, session.session_ref, names)
    return dropped.blocks, dropped.bytes


def _leave_index(
    session: SessionObjects, why: Mapping[Tier, Basis], pause: Callable[[], None]
) -> tuple[int, int]:
    """All blocks leave memory, the index of the disk tier, or both; what left memory."""
    state, key = session._state, (session.tenant_ref, session.session_ref)
    with state.lock:
        names = list(session._index)
    blocks = size = 0
    for start in range(0, len(names), AT_ONCE):
        found = _leave_box(session, names[start : start + AT_ONCE], why)
        if found[0]:
            blocks, size = blocks + found[0], size + found[1]
            _note(state, key, Tier.MEMORY, found, why[Tier.MEMORY])
        pause()
    return blocks, size


def _leave_box(
    session: SessionObjects, names: Sequence[bytes], why: Mapping[Tier, Basis]
) -> tuple[int, int]:
    """The same of a few blocks."""
    state, index, of_session = session._state, session._index, session._disk
    disk = state.disk
    in_cell = CELL_BITS if Tier.MEMORY in why else 0
    in_slot = SLOT_BITS if Tier.DISK in why and disk is not None and of_session is not None else 0
    stays = ~(in_cell | in_slot)
    cells: list[int] = []
    slots: list[tuple[bytes, int]] = []
    with state.lock:
        for name in names:
            place = index.get(name, 0)
            if place & in_cell:
                cells.append(cell_of(place))
            if place & in_slot:
                slots.append((name, slot_of(place)))
            if place & stays:
                index[name] = place & stays
            elif place:
                del index[name]
        if in_cell:
            session._fetched.difference_update(names)
        free, size = state.memory.delist_all(cells)
    state.scrub(free)
    if slots and disk is not None and of_session is not None:
        disk.delist(of_session, slots)
    return len(cells), size
