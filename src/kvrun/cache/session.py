"""One session's blocks: its index over both tiers, and every way to reach a sealed block.

After :meth:`CacheSession.drop` the object is dead: look-ups miss, stores are refused and a
reservation that commits late leaves nothing behind.
"""

import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvrun.cache.disk import DiskSession, DiskTier
from kvrun.cache.errors import DiskWriteError
from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.handles import DropReport, Reservation, SealedView
from kvrun.cache.state import CacheState, cell_of, place_of, slot_of
from kvrun.cache.writebehind import WaitingBlock

NAME_BYTES = 16
_MAX_UNCARVED_READ = 64 * 2**20
_log = logging.getLogger(__name__)


class CacheSession:
    """The blocks of one session; made by ``CacheStore.session``. Thread-safe."""

    def __init__(
        self,
        state: CacheState,
        tenant_ref: str,
        session_ref: str,
        epoch: int,
        *,
        previous: "CacheSession | None",
        on_drop: Callable[["CacheSession"], None],
        on_dropped: Callable[["CacheSession"], None],
    ) -> None:
        self.tenant_ref = tenant_ref
        self.session_ref = session_ref
        self.epoch = epoch
        self.dropped = False
        self._state = state
        self._previous = previous
        self._on_drop = on_drop
        self._on_dropped = on_dropped
        self._life_lock = threading.Lock()
        self._opened = False
        self._report: DropReport | None = None
        self._disk: DiskSession | None = None
        self._index: dict[bytes, int] = {}
        self._reserved: set[bytes] = set()
        # A name's pinned cells, one entry a pin, -1 where there was nothing to pin.
        self._pins: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._index)

    def match(self, names: Sequence[bytes]) -> bytes:
        """One :class:`Tier` code a name, in order. Found blocks become the most recently used."""
        codes = bytearray(len(names))
        cells = array("i")
        slots = array("i")
        state = self._state
        with state.lock:
            index = self._index
            for position, name in enumerate(names):
                place = index.get(name, 0)
                cell, slot = cell_of(place), slot_of(place)
                if slot >= 0:
                    codes[position] = Tier.DISK
                    slots.append(slot)
                if cell >= 0:
                    codes[position] = Tier.MEMORY
                    cells.append(cell)
            # Last first: the head of a prefix is then used latest and evicted last.
            for cell in reversed(cells):
                state.memory.touch(cell)
        if slots and state.disk is not None and self._disk is not None:
            slots.reverse()
            state.disk.touch(self._disk, slots)
        return bytes(codes)

    def pin(self, names: Sequence[bytes]) -> None:
        """Keeps those of ``names`` that are in memory there, until :meth:`unpin` of the same."""
        state = self._state
        with state.lock:
            for name in names:
                cell = cell_of(self._index.get(name, 0))
                if cell >= 0:
                    state.memory.pin(cell)
                self._pins.setdefault(name, []).append(cell)

    def unpin(self, names: Sequence[bytes]) -> None:
        """Ends one :meth:`pin` of each name, whatever became of the block; others are ignored."""
        cells = []
        with self._state.lock:
            for name in reversed(names):
                pinned = self._pins.get(name)
                if pinned:
                    cells.append(pinned.pop())
                    if not pinned:
                        del self._pins[name]
        self._state.unpin(cell for cell in cells if cell >= 0)

    def reserve(self, name: bytes, size: int) -> Reservation | None:
        """Room for a sealed block of ``size`` bytes, or None: stored already, no room, or dropped.

        Raises ValueError for a name that is not 16 bytes or a size that no cell holds.
        """
        if len(name) != NAME_BYTES:
            raise ValueError(f"a block name has {NAME_BYTES} bytes, not {len(name)}")
        state = self._state
        with state.lock:
            memory = state.memory
            if self.dropped or not memory.cells:
                return None
            if not 0 < size <= memory.cell_bytes:
                raise ValueError(f"a block of {size} bytes; a cell holds 1..{memory.cell_bytes}")
            if name in self._index or name in self._reserved:
                state.counters.already_stored += 1
                return None
            cell = state.allocate_locked()
            if cell is None:
                state.counters.no_room += 1
                return None
            self._reserved.add(name)
        return Reservation(
            name,
            memory.view(cell, size),
            lambda keep: self._end_reservation(name, cell, size, keep=keep),
        )

    @contextmanager
    def read(self, name: bytes) -> Iterator[SealedView | None]:
        """The sealed bytes of a block while the context lasts, or None when it is nowhere.

        A block read from disk is kept in memory when there is room. The view must not outlive
        the context: BufferError is raised where something still refers to it.
        """
        state = self._state
        with state.lock:
            place = self._index.get(name, 0)
            cell, slot = cell_of(place), slot_of(place)
            if cell >= 0:
                state.memory.pin(cell)
                size = state.memory.size(cell)
        if cell >= 0:
            view = state.memory.view(cell, size).toreadonly()
            try:
                yield SealedView(view, Tier.MEMORY)
            finally:
                state.unpin([cell])
                view.release()
        elif slot >= 0:
            with self._read_disk(name, slot) as sealed:
                yield sealed
        else:
            yield None

    def quarantine(self, name: bytes) -> bool:
        """Takes a block that did not open out of every tier; False when it was not listed."""
        state = self._state
        with state.lock:
            place = self._index.pop(name, 0)
            cell, slot = cell_of(place), slot_of(place)
            size = state.memory.size(cell) if cell >= 0 else 0
            free = [cell] if cell >= 0 and state.memory.delist(cell) else []
        if not place:
            return False
        state.scrub(free)
        if slot >= 0 and state.disk is not None and self._disk is not None:
            size = size or state.disk.size(self._disk, name, slot) or 0
            state.disk.remove(self._disk, name, slot, keep=True)
        with state.lock:
            state.counters.quarantined += 1
        tier = Tier.DISK if slot >= 0 else Tier.MEMORY
        self._event(CacheEventKind.QUARANTINED, tier, 1, size)
        state.deliver()
        return True

    def drop(self) -> DropReport:
        """Removes every block of the session from every tier, and refuses all later stores.

        Returns once nothing is listed and the files are gone; calling it again returns the same
        report.
        """
        self._on_drop(self)
        with self._life_lock:
            if self._report is None:
                self._report = self._drop()
                self._on_dropped(self)
                self._state.deliver()
            return self._report

    def open(self) -> None:
        """Indexes what the disk holds for this session; the store calls it once."""
        with self._life_lock:
            if self._opened or self.dropped:
                return
            if self._previous is not None:
                self._previous.drop()
                self._previous = None
            disk = self._state.disk
            if disk is not None:
                self._disk, blocks = disk.open_session(
                    self.tenant_ref, self.session_ref, self._deleted_from_disk
                )
                with self._state.lock:
                    for name, slot in blocks:
                        self._index[name] = place_of(-1, slot)
            self._opened = True

    def persist(self, blocks: Sequence[WaitingBlock]) -> None:
        """Writes waiting blocks of this session to disk if policy and audit allow it."""
        try:
            allowed = self._state.may_persist(self.tenant_ref, self.session_ref)
        except Exception:
            allowed = False
        written = size = 0
        for block in blocks:
            try:
                if not allowed:
                    self._not_persisted(block.size, CacheEventKind.PERSIST_DENIED, "not allowed")
                elif self._persist_one(block):
                    written += 1
                    size += block.size
            finally:
                self._state.unpin([block.cell])
        if written:
            with self._state.lock:
                self._state.counters.persisted += written
            self._event(CacheEventKind.PERSISTED, Tier.DISK, written, size)

    def index_for_measuring(self, name: bytes, size: int) -> None:
        """Lists a block in both tiers without content, to measure what the index takes."""
        state = self._state
        assert state.disk is not None
        assert self._disk is not None
        slot = state.disk.adopt(self._disk, name, size)
        with state.lock:
            cell = state.allocate_locked()
            assert cell is not None
            state.memory.enlist(cell, self, name, size)
            self._index[name] = place_of(cell, slot)

    def forget_cell_locked(self, name: bytes) -> None:
        """The memory tier evicted the block; the index lock is held."""
        self._update_locked(name, cell=-1)

    def forget_all_cells_locked(self) -> None:
        """The memory tier was emptied; the index lock is held."""
        kept = {n: place_of(-1, slot_of(p)) for n, p in self._index.items() if slot_of(p) >= 0}
        self._index = kept

    def _end_reservation(self, name: bytes, cell: int, size: int, *, keep: bool) -> bool:
        state = self._state
        with state.lock:
            self._reserved.discard(name)
            if keep and not self.dropped:
                self._enlist_locked(name, cell, size)
                return True
            state.counters.aborted += 1
        state.scrub([cell])
        return False

    def _enlist_locked(self, name: bytes, cell: int, size: int) -> None:
        state = self._state
        state.counters.stored += 1
        state.memory.enlist(cell, self, name, size)
        self._index[name] = place_of(cell, -1)
        if state.disk is None or state.writer is None:
            return
        if not state.disk.accepts_writes():
            self._not_persisted(size, CacheEventKind.PERSIST_SKIPPED, "disk off")
        elif state.writer.offer_locked(self, name, cell, size):
            state.memory.pin(cell)
        else:
            self._not_persisted(size, CacheEventKind.PERSIST_SKIPPED, "queue full")

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
            cell = state.allocate_locked() if fits else None
        if cell is None:
            limit = state.memory.cell_bytes or _MAX_UNCARVED_READ
            room = memoryview(bytearray(min(size, limit)))
        else:
            room = state.memory.view(cell, size)
        listed = False
        view: memoryview | None = None
        try:
            view = self._fill(disk, session, name, slot, room)
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
        self, disk: DiskTier, session: DiskSession, name: bytes, slot: int, room: memoryview
    ) -> memoryview | None:
        """Reads a block's file into ``room``; its bytes, or None when it cannot be read."""
        try:
            done = disk.read_into(session, name, room)
        except OSError as error:
            self._lost(name, slot, error.strerror or str(error))
            return None
        with self._state.lock:
            self._state.counters.restored += 1
        self._event(CacheEventKind.RESTORED, Tier.DISK, 1, done)
        return room[:done].toreadonly()

    def _promote(self, disk: DiskTier, name: bytes, slot: int, cell: int, size: int) -> bool:
        """Lists a cell just read from disk, pinned once, unless the block moved meanwhile."""
        state = self._state
        shared = disk.name(slot)
        with state.lock:
            place = self._index.get(name, 0)
            if self.dropped or cell_of(place) >= 0 or slot_of(place) != slot:
                return False
            state.memory.enlist(cell, self, shared if shared == name else name, size, pins=1)
            self._index[name] = place_of(cell, slot)
            return True

    def _persist_one(self, block: WaitingBlock) -> bool:
        state = self._state
        disk, session = state.disk, self._disk
        if disk is None or session is None or not self._is_waiting(block):
            return False
        view = state.memory.view(block.cell, block.size).toreadonly()
        try:
            slot = disk.write(session, block.name, view)
        except Exception as error:
            # Whatever the disk did, the block stays in memory and the others go on.
            if not isinstance(error, DiskWriteError):
                _log.exception("a sealed block was not written")
            if not self.dropped:
                self._not_persisted(block.size, CacheEventKind.PERSIST_SKIPPED, "write failed")
            return False
        finally:
            view.release()
        with state.lock:
            if self._index.get(block.name, 0) == place_of(block.cell, -1):
                self._index[block.name] = place_of(block.cell, slot)
                return True
        # Quarantined or dropped while the file was written.
        disk.remove(session, block.name, slot)
        return False

    def _is_waiting(self, block: WaitingBlock) -> bool:
        with self._state.lock:
            return self._index.get(block.name, 0) == place_of(block.cell, -1)

    def _deleted_from_disk(self, blocks: Sequence[tuple[bytes, int, int]]) -> None:
        with self._state.lock:
            for name, slot, _ in blocks:
                self._forget_slot_locked(name, slot)
        self._event(
            CacheEventKind.EVICTED, Tier.DISK, len(blocks), sum(size for _, _, size in blocks)
        )

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
        self, name: bytes, *, cell: int | None = None, slot: int | None = None
    ) -> None:
        place = self._index[name]
        place = place_of(
            cell_of(place) if cell is None else cell, slot_of(place) if slot is None else slot
        )
        if place:
            self._index[name] = place
        else:
            del self._index[name]

    def _drop(self) -> DropReport:
        state = self._state
        memory = state.memory
        free: list[int] = []
        on_disk: list[tuple[bytes, int]] = []
        blocks = size = held = disk_only = 0
        with state.lock:
            self.dropped = True
            if state.writer is not None:
                for waiting in state.writer.discard_locked(self):
                    # Its cell is still listed, unless quarantined: then it ends here.
                    if memory.unpin(waiting.cell):
                        free.append(waiting.cell)
            for name, place in self._index.items():
                cell = cell_of(place)
                if cell >= 0:
                    blocks += 1
                    size += memory.size(cell)
                    if memory.delist(cell):
                        free.append(cell)
                    else:
                        held += 1
                slot = slot_of(place)
                if slot >= 0:
                    on_disk.append((name, slot))
                    if cell < 0 and state.disk is not None and self._disk is not None:
                        disk_only += state.disk.size(self._disk, name, slot) or 0
            distinct = len(self._index)
            self._index.clear()
            held += len(self._reserved)
        state.scrub(free)
        files = None
        if state.disk is not None:
            files = (
                state.disk.drop_session(self._disk, on_disk)
                if self._disk is not None
                else state.disk.drop_unopened(self.tenant_ref, self.session_ref)
            )
        unopened = files is not None and self._disk is None
        report = DropReport(
            blocks=files.blocks if files and unopened else distinct,
            bytes=files.bytes if files and unopened else size + disk_only,
            memory_blocks=blocks,
            memory_bytes=size,
            disk_blocks=files.blocks if files else 0,
            disk_bytes=files.bytes if files else 0,
            held=held,
            failed=files.failed if files else 0,
        )
        self._event(CacheEventKind.DROPPED, Tier.MEMORY, blocks, size)
        if files:
            self._event(CacheEventKind.DROPPED, Tier.DISK, files.blocks, files.bytes)
        return report

    def _not_persisted(self, size: int, kind: CacheEventKind, reason: str) -> None:
        if kind is CacheEventKind.PERSIST_DENIED:
            self._state.counters.persist_denied += 1
        else:
            self._state.counters.persist_skipped += 1
        self._event(kind, Tier.DISK, 1, size, reason)

    def _event(
        self, kind: CacheEventKind, tier: Tier, blocks: int, size: int, reason: str = ""
    ) -> None:
        self._state.events.add(
            kind,
            tier,
            self.tenant_ref,
            self.session_ref,
            blocks=blocks,
            size=size,
            reason=reason,
        )
