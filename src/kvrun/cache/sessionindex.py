"""A session's index over all tiers, and how its blocks come to be on disk."""

import logging
from collections.abc import Sequence

from kvrun.cache.disk import DiskSession
from kvrun.cache.errors import DiskWriteError
from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.placement import OTHER_SIZE, Basis, is_allowed, settled
from kvrun.cache.state import CacheState, cell_of, packed_of, place_of, slot_of
from kvrun.cache.writebehind import WaitingBlock

_log = logging.getLogger(__name__)


class SessionIndex:
    """Name to place for one session; the base of ``CacheSession``. Guarded by the index lock."""

    def __init__(self, state: CacheState, tenant_ref: str, session_ref: str) -> None:
        self.tenant_ref = tenant_ref
        self.session_ref = session_ref
        self.dropped = False
        self._state = state
        self._disk: DiskSession | None = None
        self._index: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def persist(self, blocks: Sequence[WaitingBlock]) -> None:
        """Writes waiting blocks of this session to disk if policy and audit allow it."""
        allowed = is_allowed(self._state.gate, self.tenant_ref, self.session_ref, Tier.DISK)
        for block in blocks:
            try:
                if allowed:
                    self._persist_one(block)
                else:
                    self._not_persisted(block.size, CacheEventKind.PERSIST_DENIED, "not allowed")
            finally:
                self._unpin_written(block)

    def forget_cell_locked(self, name: bytes) -> None:
        """The memory tier evicted the block; the index lock is held."""
        self._update_locked(name, cell=-1)

    def on_disk(self, names: Sequence[bytes]) -> set[bytes]:
        """Those of the blocks that can be read from disk."""
        with self._state.lock:
            return {name for name in names if slot_of(self._index.get(name, 0)) >= 0}

    def in_memory_locked(self) -> tuple[int, int]:
        """Blocks of the session in memory and their sealed bytes; the index lock is held."""
        cells = [cell for place in self._index.values() if (cell := cell_of(place)) >= 0]
        return len(cells), sum(map(self._state.memory.size, cells))

    def forget_all_cells_locked(self, blocks: int, size: int) -> None:
        """The memory tier was emptied, of so much of this session; the index lock is held."""
        if blocks:
            self._event(CacheEventKind.EVICTED, Tier.MEMORY, blocks, size, *OTHER_SIZE)
        places = ((n, place_of(-1, slot_of(p), packed_of(p))) for n, p in self._index.items())
        self._index = {name: place for name, place in places if place}

    def _persist_one(self, block: WaitingBlock) -> None:
        state = self._state
        disk, session = state.disk, self._disk
        if disk is None or session is None or not self._is_waiting(block):
            return
        view = state.memory.view(block.cell, block.size).toreadonly()
        with state.lock:
            continues = slot_of(self._place_locked(block.continues))
            stored_at = state.memory.stored_at(block.cell)
        try:
            slot = disk.write(session, block.name, view, stored_at=stored_at, continues=continues)
        except Exception as error:
            # Whatever the disk did, the block stays in memory and the others go on.
            if not isinstance(error, DiskWriteError):
                _log.exception("a sealed block was not written")
            if not self.dropped:
                self._not_persisted(block.size, CacheEventKind.PERSIST_SKIPPED, "write failed")
            return
        finally:
            view.release()
        with state.lock:
            basis = self._settled(Tier.DISK) if self._is_waiting_locked(block) else None
            if basis is not None:
                self._update_locked(block.name, slot=slot)
                state.counters.persisted += 1
                self._event(CacheEventKind.PERSISTED, Tier.DISK, 1, block.size, *basis)
                return
        # Quarantined or dropped while the file was written, or another policy came.
        disk.remove(session, block.name, slot)

    def _settled(self, tier: Tier) -> Basis | None:
        """On what basis blocks that were just put on a tier may be there; None: they may not."""
        return settled(self._state.gate, self.tenant_ref, self.session_ref, tier)

    def _unpin_written(self, block: WaitingBlock) -> None:
        state = self._state
        with state.lock:
            continues = cell_of(self._place_locked(block.continues))
            doomed = state.memory.unpin(block.cell, continues=continues)
        if doomed:
            state.scrub([block.cell])

    def _place_locked(self, name: bytes | None) -> int:
        """Where a block is, 0 for nowhere."""
        return 0 if name is None else self._index.get(name, 0)

    def _is_waiting(self, block: WaitingBlock) -> bool:
        with self._state.lock:
            return self._is_waiting_locked(block)

    def _is_waiting_locked(self, block: WaitingBlock) -> bool:
        place = self._index.get(block.name, 0)
        return cell_of(place) == block.cell and slot_of(place) < 0

    def _deleted_from_disk(self, blocks: Sequence[tuple[bytes, int]]) -> None:
        with self._state.lock:
            for name, slot in blocks:
                self._forget_slot_locked(name, slot)

    def _lost(self, name: bytes, slot: int, reason: str) -> None:
        state = self._state
        with state.lock:
            found = self._forget_slot_locked(name, slot)
        if found and state.disk is not None and self._disk is not None:
            state.disk.remove(self._disk, name, slot)
            with state.lock:
                state.counters.lost += 1
            self._event(CacheEventKind.LOST, Tier.DISK, 1, 0, reason)

    def _forget_slot_locked(self, name: bytes, slot: int) -> bool:
        if slot_of(self._index.get(name, 0)) != slot:
            return False
        self._update_locked(name, slot=-1)
        return True

    def _update_locked(
        self,
        name: bytes,
        *,
        cell: int | None = None,
        slot: int | None = None,
        packed: int | None = None,
    ) -> None:
        place = self._index.get(name, 0)
        place = place_of(
            cell_of(place) if cell is None else cell,
            slot_of(place) if slot is None else slot,
            packed_of(place) if packed is None else packed,
        )
        if place:
            self._index[name] = place
        else:
            self._index.pop(name, None)

    def _not_persisted(
        self, size: int, kind: CacheEventKind, reason: str, tier: Tier = Tier.DISK
    ) -> None:
        if kind is CacheEventKind.PERSIST_DENIED:
            self._state.counters.persist_denied += 1
        else:
            self._state.counters.persist_skipped += 1
        self._event(kind, tier, 1, size, reason)

    def _event(
        self,
        kind: CacheEventKind,
        tier: Tier,
        blocks: int,
        size: int,
        reason: str = "",
        revision: str = "",
    ) -> None:
        self._state.events.add(
            kind,
            tier,
            self.tenant_ref,
            self.session_ref,
            blocks=blocks,
            size=size,
            reason=reason,
            revision=revision,
        )
