"""How one session's blocks come into packs in Storage, and back into memory."""

import logging
from collections.abc import Iterable, Sequence

from kvrun.cache.errors import ObjectTierOffError, TierBoundError
from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.fetching import Fetcher
from kvrun.cache.packqueue import PackedBlock
from kvrun.cache.packtable import number_of
from kvrun.cache.placement import FOREIGN, Basis, is_allowed
from kvrun.cache.sessionindex import SessionIndex
from kvrun.cache.sessionpacks import PackKeys, SessionPacks
from kvrun.cache.state import CacheState, cell_of, packed_of, place_of, slot_of
from kvrun.errors import KvrunError
from kvrun.seal import buffers

_AWAY = "Storage is away"
_STEP = 4096
_log = logging.getLogger(__name__)


class SessionObjects(SessionIndex):
    """The object tier's part of a session; ``fetcher`` is None where there is no such tier."""

    def __init__(
        self, state: CacheState, tenant_ref: str, session_ref: str, fetcher: Fetcher | None
    ) -> None:
        super().__init__(state, tenant_ref, session_ref)
        self._fetcher = fetcher
        # Blocks that were fetched ahead of their first use: they count as found in Storage.
        self._fetched: set[bytes] = set()
        # Blocks that were opened out of the buffer they came in, before a cell held them.
        self._taken: set[bytes] = set()
        self._followed = False
        self._requests: set[int] = set()
        self.idle_since: float | None = None
        self.packs: SessionPacks | None = None
        if state.objects is not None:
            self.packs = SessionPacks(
                self, state.objects, state.lock, now=state.now, wall=state.wall
            )
            # A daemon that was killed may have left blocks on disk that are in no pack.
            self.packs.behind = state.disk is not None

    def use_packs(self, keys: PackKeys, *, wait: bool) -> None:
        """Looks for the session's packs in the background; with ``wait`` for a moment's time."""
        packs = self.packs
        if packs is None or self._fetcher is None or self.dropped:
            return
        packs.keys = keys
        self._fetcher.open(packs)
        if wait and not packs.loaded and packs.tier.accepts():
            packs.ready.wait(packs.tier.settings.load_wait_s)
        if packs.behind and packs.loaded and packs.tier.accepts():
            self.offer_unpacked()

    def prefetch(self, names: Sequence[bytes]) -> None:
        """Begins to bring blocks from Storage into memory; the first time what follows them too."""
        if self._fetcher is None or self.dropped:
            return
        self._fetcher.prefetch(self, names)
        if not self._followed:
            self._followed = True
            self._fetcher.follow(self, names)

    def begin(self, request: int) -> None:
        """A request of the session begins; any number names it."""
        with self._state.lock:
            self._requests.add(request)
            self.idle_since = None

    def end(self, request: int) -> None:
        """It ended, if it was under way: with the last one what waits is soon packed."""
        state = self._state
        with state.lock:
            if request not in self._requests:
                return
            self._requests.remove(request)
            if not self._requests:
                self.idle_since = state.now()
                if state.packer is not None:
                    state.packer.look_again_locked()

    def offer_unpacked(self) -> None:
        """Queues every block that is in no pack: what came while the store was away."""
        state, packs = self._state, self.packs
        if packs is None or state.packer is None or not state.packer.has_room:
            return
        if not is_allowed(state.gate, self.tenant_ref, self.session_ref, Tier.OBJECT):
            return
        with state.lock:
            packs.behind = False
            for name, place in self._index.items():
                if packed_of(place) < 0 and not self._offer_locked(name, place):
                    packs.behind = True
                    return

    def pack(self, blocks: Sequence[PackedBlock]) -> None:
        """Stores waiting blocks as one pack if policy and audit allow it, and unpins them."""
        packs = self.packs
        assert packs is not None
        size = sum(block.size for block in blocks)
        try:
            if is_allowed(self._state.gate, self.tenant_ref, self.session_ref, Tier.OBJECT):
                self._pack(packs, blocks)
            else:
                packs.behind = True
                self._left_out(len(blocks), size, CacheEventKind.PERSIST_DENIED, "not allowed")
        except TierBoundError:
            self._left_out(len(blocks), size, CacheEventKind.PERSIST_DENIED, "beyond max_bytes")
        except KvrunError as error:
            packs.behind = True
            if not isinstance(error, ObjectTierOffError):
                _log.warning("blocks were not packed: %s", error.message)
            self._left_out(len(blocks), size, CacheEventKind.PERSIST_SKIPPED, _AWAY)
        finally:
            self._state.unpin(block.cell for block in blocks if block.cell >= 0)
        if not packs.behind and not self.dropped:
            self._merge(packs)

    def pack_settled_locked(self) -> Basis | None:
        """On what basis a pack that was just written may be where it is; None: it may not."""
        return None if self.dropped else self._settled(Tier.OBJECT)

    def foreign_pack_left(self, blocks: int, size: int) -> None:
        """A pack of another model was deleted."""
        self._event(CacheEventKind.EVICTED, Tier.OBJECT, blocks, size, *FOREIGN)

    def packed_locked(self, name: bytes) -> int:
        """Where a block is packed, -1 where it is not."""
        return packed_of(self._index.get(name, 0))

    def put_packed_locked(self, name: bytes, packed: int) -> None:
        """A block is packed there, or (-1) nowhere."""
        self._update_locked(name, packed=packed)

    def names_in_pack_locked(self, number: int) -> list[bytes]:
        """The blocks whose place is in a pack."""
        first, end = number << 15, (number + 1) << 15
        return [n for n, place in self._index.items() if first <= packed_of(place) < end]

    def packed_only_locked(self, names: Iterable[bytes]) -> list[tuple[bytes, int]]:
        """(name, place in packs) of those blocks that are nowhere but in packs."""
        found = []
        for name in names:
            place = self._index.get(name, 0)
            if packed_of(place) >= 0 and cell_of(place) < 0 and slot_of(place) < 0:
                found.append((name, packed_of(place)))
        return found

    def memory_is_ready(self) -> bool:
        """Whether the cell that a block would get has its memory already."""
        with self._state.lock:
            return self._state.memory.is_ready

    def keep_fetched(self, name: bytes, packed: int, data: memoryview) -> bool:
        """Put a block into memory; False where it found no room or is not wanted any more."""
        state, size = self._state, len(data)
        with state.lock:
            fits = 0 < size <= state.memory.cell_bytes and not self.dropped
            cell = state.allocate_locked(self.tenant_ref) if fits else None
        if cell is None:
            return False
        view = state.memory.view(cell, size)
        buffers.copy(view, data)
        view.release()
        with state.lock:
            place = self._index.get(name, 0)
            basis = None if self.dropped else self._settled(Tier.MEMORY)
            if basis is not None and not state.make_room_locked(self.tenant_ref):
                basis = None
            if basis is not None and cell_of(place) < 0 and packed_of(place) == packed:
                # One name for both: the index's own goes.
                del self._index[name]
                self._index[name] = place_of(cell, slot_of(place), packed)
                # As old as its pack, so that it does not live longer for having been away.
                found = self.packs.table.find(packed) if self.packs is not None else None
                written_at = found[0].created / 1e6 if found is not None else 0.0
                state.memory.enlist(cell, self, name, size, now=state.now(), stored_at=written_at)
                if name not in self._taken:
                    self._fetched.add(name)
                self._event(CacheEventKind.RESTORED, Tier.OBJECT, 1, size, *basis)
                return True
        state.scrub([cell])
        return False

    def note_fetched(self, blocks: int) -> None:
        """So many blocks came from Storage."""
        with self._state.lock:
            self._state.counters.restored += blocks

    def forget_taken(self, names: Iterable[bytes]) -> None:
        """These blocks are not handed out of the buffer that they came in any more."""
        with self._state.lock:
            self._taken.difference_update(names)

    def following(self, names: Sequence[bytes], limit_bytes: int) -> list[tuple[bytes, int]]:
        """(name, place) of the blocks that were packed after these and are nowhere else.

        At most ``limit_bytes`` of them, and half of what is free in memory: what nobody asked for
        yet displaces nothing.
        """
        state, packs = self._state, self.packs
        if packs is None:
            return []
        with state.lock:
            places = [packed_of(self._index.get(name, 0)) for name in names]
            last = max(places, key=packs.table.age, default=-1)
            ranks = packs.table.ranks_after(last)
            every = list(self._index)
            room = min(limit_bytes, state.memory.free_cells * state.memory.cell_bytes // 2)
        found: list[tuple[int, int, bytes]] = []
        asked = set(names)
        for start in range(0, len(every) if ranks else 0, _STEP):
            with state.lock:
                for name, packed in self.packed_only_locked(every[start : start + _STEP]):
                    rank = ranks.get(number_of(packed), -1)
                    if (rank > 0 or (rank == 0 and packed > last)) and name not in asked:
                        found.append((rank, packed, name))
        chosen: list[tuple[bytes, int]] = []
        with state.lock:
            for _, packed, name in sorted(found):
                room -= packs.table.size(packed)
                if room < 0:
                    break
                chosen.append((name, packed))
        return chosen

    def forget_cell_locked(self, name: bytes) -> None:
        """The memory tier evicted the block; the index lock is held."""
        self._fetched.discard(name)
        super().forget_cell_locked(name)

    def _bury_locked(self, name: bytes, place: int) -> bool:
        """A block was taken out of the index; whether it was in a pack."""
        self._fetched.discard(name)
        packed = packed_of(place)
        if packed >= 0 and self.packs is not None:
            self.packs.table.bury(packed)
        return packed >= 0

    def _offer_locked(self, name: bytes, place: int) -> bool:
        """Queues a block for packing; the index lock is held. False when the queue is full."""
        state, packs = self._state, self.packs
        assert state.packer is not None
        assert packs is not None
        cell, slot = cell_of(place), slot_of(place)
        if slot >= 0 and state.disk is not None and self._disk is not None:
            size = state.disk.size(self._disk, name, slot) or 0
            cell = -1
        elif cell >= 0:
            size = state.memory.size(cell)
        else:
            return True
        if not state.packer.offer_locked(self, PackedBlock(name, cell, size)):
            return False
        if cell >= 0:
            state.memory.pin(cell)
        return True

    def _offer_new_locked(self, name: bytes, size: int) -> None:
        """A block was just stored in memory: queue it, or leave it out for now."""
        state, packs = self._state, self.packs
        if packs is None or state.packer is None:
            return
        if not packs.tier.accepts():
            reason = _AWAY
        elif self._offer_locked(name, self._index[name]):
            return
        else:
            reason = "queue full"
        packs.behind = True
        self._not_persisted(size, CacheEventKind.PERSIST_SKIPPED, reason, Tier.OBJECT)

    def _pack(self, packs: SessionPacks, blocks: Sequence[PackedBlock]) -> None:
        packs.load()
        if not packs.loaded:
            raise ObjectTierOffError("the session's packs are not known yet")
        held = self._held(blocks)
        if not held or self.dropped:
            return
        basis = packs.write(held)
        if basis is not None:
            with self._state.lock:
                self._state.counters.persisted += len(held)
            size = sum(len(data) for _, data in held)
            self._event(CacheEventKind.PERSISTED, Tier.OBJECT, len(held), size, *basis)

    def _merge(self, packs: SessionPacks) -> None:
        try:
            packs.merge()
        except KvrunError as error:
            _log.info("packs were not merged: %s", error.message)

    def _held(self, blocks: Sequence[PackedBlock]) -> list[tuple[bytes, memoryview]]:
        """The sealed bytes of those blocks that are in no pack yet and still there."""
        state = self._state
        held: list[tuple[bytes, memoryview]] = []
        taken: set[bytes] = set()
        for block in blocks:
            with state.lock:
                place = self._index.get(block.name, 0)
            if not place or packed_of(place) >= 0 or block.name in taken:
                continue
            taken.add(block.name)
            if block.cell >= 0 and cell_of(place) == block.cell:
                held.append((block.name, state.memory.view(block.cell, block.size).toreadonly()))
            elif slot_of(place) >= 0 and (data := self._from_disk(block.name, slot_of(place))):
                held.append((block.name, data))
        return held

    def _from_disk(self, name: bytes, slot: int) -> memoryview | None:
        disk, session = self._state.disk, self._disk
        if disk is None or session is None:
            return None
        size = disk.size(session, name, slot)
        if not size:
            return None
        room = memoryview(bytearray(size))
        try:
            done = disk.read_into(session, name, room)
        except OSError:
            return None
        return room.toreadonly() if done == size else None

    def _left_out(self, blocks: int, size: int, kind: CacheEventKind, reason: str) -> None:
        with self._state.lock:
            if kind is CacheEventKind.PERSIST_DENIED:
                self._state.counters.persist_denied += blocks
            else:
                self._state.counters.persist_skipped += blocks
        self._event(kind, Tier.OBJECT, blocks, size, reason)
