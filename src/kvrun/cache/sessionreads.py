"""Reading one session's blocks where they are: in memory, or on disk and from there to memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvrun.cache.disk import DiskSession, DiskTier
from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.handles import SealedView
from kvrun.cache.sessionobjects import SessionObjects
from kvrun.cache.state import cell_of, packed_of, place_of, slot_of

_MAX_UNCARVED_READ = 64 * 2**20


class SessionReads(SessionObjects):
    """How a session hands out a block for as long as somebody reads it."""

    @contextmanager
    def _read_memory(
        self, name: bytes, loose: memoryview | None = None
    ) -> Iterator[SealedView | None]:
        """The block in its cell; else ``loose``, as it came from Storage."""
        state = self._state
        with state.lock:
            cell = cell_of(self._index.get(name, 0))
            if cell >= 0:
                state.memory.pin(cell)
                size = state.memory.size(cell)
                tier = Tier.OBJECT if name in self._fetched else Tier.MEMORY
                self._fetched.discard(name)
            elif loose is not None and self.dropped:
                loose = None
            elif loose is not None:
                self._taken.add(name)
        if cell < 0:
            yield SealedView(loose.toreadonly(), Tier.OBJECT) if loose is not None else None
            return
        view = state.memory.view(cell, size).toreadonly()
        try:
            yield SealedView(view, tier)
        finally:
            state.unpin([cell])
            view.release()

    @contextmanager
    def _read_disk(self, name: bytes, slot: int) -> Iterator[SealedView | None]:
        state = self._state
        disk, session = state.disk, self._disk
        assert disk is not None
        assert session is not None
        size = disk.size(session, name, slot)
        if size is None:
            self._lost(name, slot, "removed")
            yield None
            return
        with state.lock:
            fits = 0 < size <= state.memory.cell_bytes and not self.dropped
            cell = state.allocate_locked(self.tenant_ref) if fits else None
        if cell is None:
            limit = state.memory.cell_bytes or _MAX_UNCARVED_READ
            room = memoryview(bytearray(min(size, limit)))
        else:
            room = state.memory.room(cell)
        listed = False
        view: memoryview | None = None
        try:
            view = self._fill(disk, session, name, slot, room, size)
            if view is not None and cell is not None and len(view) == size:
                listed = self._promote(disk, name, slot, cell, size)
            yield SealedView(view, Tier.DISK) if view is not None else None
        finally:
            if cell is not None:
                if listed:
                    state.unpin([cell])
                else:
                    state.scrub([cell])
            if view is not None:
                view.release()
            room.release()

    def _fill(
        self,
        disk: DiskTier,
        session: DiskSession,
        name: bytes,
        slot: int,
        room: memoryview,
        size: int,
    ) -> memoryview | None:
        """Reads a block's file into ``room``, which may be larger than the block's ``size``.

        Its bytes, or None when it cannot be read.
        """
        try:
            done = min(size, disk.read_into(session, name, room))
        except OSError as error:
            self._lost(name, slot, error.strerror or str(error))
            return None
        with self._state.lock:
            self._state.counters.restored += 1
        return room[:done].toreadonly()

    def _promote(self, disk: DiskTier, name: bytes, slot: int, cell: int, size: int) -> bool:
        """Lists a cell just read from disk, pinned once, unless the block moved meanwhile."""
        state = self._state
        shared, stored_at = disk.name(slot), disk.stored_at(slot)
        with state.lock:
            place = self._index.get(name, 0)
            if self.dropped or cell_of(place) >= 0 or slot_of(place) != slot:
                return False
            basis = self._settled(Tier.MEMORY)
            if basis is None or not state.make_room_locked(self.tenant_ref):
                return False  # the disk may hold it, memory may not
            state.memory.enlist(
                cell,
                self,
                shared if shared == name else name,
                size,
                now=state.now(),
                stored_at=stored_at,
                pins=1,
            )
            self._index[name] = place_of(cell, slot, packed_of(place))
            self._event(CacheEventKind.RESTORED, Tier.DISK, 1, size, *basis)
            return True
