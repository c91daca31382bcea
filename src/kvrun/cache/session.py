"""One session's blocks: its index over all tiers, and every way to reach a sealed block.

After :meth:`CacheSession.drop` the object is dead: look-ups miss, stores are refused and a
reservation that commits late leaves nothing behind.
"""

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvrun.cache.events import CacheEventKind, Tier
from kvrun.cache.fetching import Fetcher
from kvrun.cache.handles import DropReport, HeldByTier, Reservation, SealedView
from kvrun.cache.pins import SessionPins
from kvrun.cache.state import CacheState, cell_of, packed_of, place_of, slot_of

NAME_BYTES = 16


class CacheSession(SessionPins):
    """The blocks of one session; made by ``CacheStore.session``. Thread-safe."""

    def __init__(
        self,
        state: CacheState,
        tenant_ref: str,
        session_ref: str,
        epoch: int,
        *,
        fetcher: Fetcher | None,
        previous: "CacheSession | None",
        on_drop: Callable[["CacheSession"], None],
        on_dropped: Callable[["CacheSession"], None],
    ) -> None:
        super().__init__(state, tenant_ref, session_ref, fetcher)
        self.epoch = epoch
        self._previous = previous
        self._on_drop = on_drop
        self._on_dropped = on_dropped
        self._life_lock = threading.Lock()
        self._opened = False
        self._report: DropReport | None = None
        self._reserved: set[bytes] = set()

    def match(self, names: Sequence[bytes]) -> bytes:
        """One :class:`Tier` code a name, in order. Found blocks become the most recently used."""
        codes = bytearray(len(names))
        cells = array("i")
        slots = array("i")
        state, fetched = self._state, self._fetched
        reachable = state.objects is not None and state.objects.accepts()
        with state.lock:
            state.asked += 1
            index = self._index
            for position, name in enumerate(names):
                place = index.get(name, 0)
                cell, slot = cell_of(place), slot_of(place)
                if slot >= 0:
                    codes[position] = Tier.DISK
                    slots.append(slot)
                elif reachable and packed_of(place) >= 0:
                    codes[position] = Tier.OBJECT
                if cell >= 0:
                    codes[position] = Tier.OBJECT if name in fetched else Tier.MEMORY
                    cells.append(cell)
            # Last first: the head of a prefix is then used latest and evicted last.
            state.memory.order.touch_all(reversed(cells), self.tenant_ref)
            state.memory.order.note_use(self.tenant_ref, state.now())
        if slots and state.disk is not None and self._disk is not None:
            slots.reverse()
            state.disk.touch(self._disk, slots)
        return bytes(codes)

    def reserve(
        self, name: bytes, size: int, *, continues: bytes | None = None
    ) -> Reservation | None:
        """Room for a sealed block of ``size`` bytes, or None: stored already, no room, or dropped.

        ``continues`` names the block before it in the prompt, so that this one is evicted first.
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
            if name in self._reserved or self._is_stored_locked(name):
                state.counters.already_stored += 1
                return None
            before = cell_of(self._place_locked(continues))
            cell = state.allocate_locked(self.tenant_ref, continues=before)
            if cell is None:
                state.counters.no_room += 1
                return None
            self._reserved.add(name)
        return Reservation(
            name,
            memory.view(cell, size),
            lambda keep: self._end_reservation(name, cell, size, continues, keep=keep),
        )

    @contextmanager
    def read(self, name: bytes) -> Iterator[SealedView | None]:
        """The sealed bytes of a block while the context lasts, or None when it is nowhere.

        A block that is not in memory is kept there when there is room; one in Storage is waited
        for a bounded time, and handed out of the buffer that it came in. The view must not outlive
        the context: BufferError is raised where something still refers to it.
        """
        with self._state.lock:
            self._state.asked += 1
            place = self._index.get(name, 0)
        cell, slot = cell_of(place), slot_of(place)
        if cell < 0 <= slot:
            with self._read_disk(name, slot) as sealed:
                yield sealed
            return
        loose = None
        if cell < 0 <= packed_of(place) and self._fetcher is not None:
            loose = self._fetcher.wait(self, name).get(name)
        with self._read_memory(name, loose) as sealed:
            yield sealed

    def quarantine(self, name: bytes) -> bool:
        """Takes a block that did not open out of every tier; False when it was not listed."""
        state = self._state
        with state.lock:
            place = self._index.pop(name, 0)
            cell, slot = cell_of(place), slot_of(place)
            size = state.memory.size(cell) if cell >= 0 else 0
            free = [cell] if cell >= 0 and state.memory.delist(cell) else []
            packed = self._bury_locked(name, place)
        if not place:
            return False
        state.scrub(free)
        if slot >= 0 and state.disk is not None and self._disk is not None:
            size = size or state.disk.size(self._disk, name, slot) or 0
            state.disk.remove(self._disk, name, slot, keep=True)
        with state.lock:
            state.counters.quarantined += 1
        tier = Tier.MEMORY
        if slot >= 0 or packed:
            tier = Tier.DISK if slot >= 0 else Tier.OBJECT
        self._event(CacheEventKind.QUARANTINED, tier, 1, size)
        state.deliver()
        return True

    def measure(self) -> HeldByTier:
        """Blocks and sealed bytes by tier; in Storage those in packs that were found so far."""
        state = self._state
        with state.lock:
            in_memory = self.in_memory_locked()
            table = self.packs.table if self.packs is not None else None
            packed = (table.blocks, table.bytes) if table is not None else (0, 0)
        if state.disk is None:
            return HeldByTier(*in_memory, 0, 0, *packed)
        if self._disk is None:
            on_disk = state.disk.folder.held(self.tenant_ref, self.session_ref)
            return HeldByTier(*in_memory, *on_disk, *packed)
        return HeldByTier(*in_memory, *state.disk.held(self._disk), *packed)

    def drop(self) -> DropReport:
        """Removes every block of the session from every tier, and refuses all later stores.

        Returns once nothing is listed and the files are gone; calling it again returns the same
        report.
        """
        self._on_drop(self)
        with self._life_lock:
            if self._report is None:
                self.release()
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
                    self.tenant_ref, self.session_ref, self._deleted_from_disk, self.on_disk
                )
                with self._state.lock:
                    for name, slot in blocks:
                        packed = packed_of(self._index.get(name, 0))
                        self._index[name] = place_of(-1, slot, packed)
            self._opened = True

    def index_for_measuring(self, name: bytes, size: int, packed: int = -1) -> None:
        """Lists a block in every tier without content, to measure what the index takes."""
        state = self._state
        assert state.disk is not None
        assert self._disk is not None
        slot = state.disk.adopt(self._disk, name, size)
        with state.lock:
            cell = state.allocate_locked(self.tenant_ref)
            assert cell is not None
            state.memory.enlist(cell, self, name, size)
            self._index[name] = place_of(cell, slot, packed)
            if packed >= 0 and self.packs is not None:
                self.packs.table.revive(packed)

    def _is_stored_locked(self, name: bytes) -> bool:
        """Whether a block is where it can be read now: not in Storage while that is away."""
        place, objects = self._index.get(name, 0), self._state.objects
        if cell_of(place) >= 0 or slot_of(place) >= 0:
            return True
        return packed_of(place) >= 0 and objects is not None and objects.accepts()

    def _end_reservation(
        self, name: bytes, cell: int, size: int, continues: bytes | None, *, keep: bool
    ) -> bool:
        state = self._state
        with state.lock:
            self._reserved.discard(name)
            before = cell_of(self._place_locked(continues))
            keep = keep and not self.dropped
            if keep and state.make_room_locked(self.tenant_ref, continues=before):
                self._enlist_locked(name, cell, size, continues)
                return True
            if keep:
                state.counters.no_room += 1
            else:
                state.counters.aborted += 1
        state.scrub([cell])
        return False

    def _enlist_locked(self, name: bytes, cell: int, size: int, continues: bytes | None) -> None:
        state = self._state
        state.counters.stored += 1
        state.memory.enlist(
            cell,
            self,
            name,
            size,
            now=state.now(),
            stored_at=state.wall(),
            continues=cell_of(self._place_locked(continues)),
        )
        # It may have been found in a pack since its reservation.
        packed = packed_of(self._index.get(name, 0))
        self._index[name] = place_of(cell, -1, packed)
        if packed < 0:
            self._offer_new_locked(name, size)
        if state.disk is None or state.writer is None:
            return
        if not state.disk.accepts_writes():
            self._not_persisted(size, CacheEventKind.PERSIST_SKIPPED, "disk off")
        elif state.writer.offer_locked(self, name, cell, size, continues):
            state.memory.pin(cell)
        else:
            self._not_persisted(size, CacheEventKind.PERSIST_SKIPPED, "queue full")

    def _drop(self) -> DropReport:
        state = self._state
        memory = state.memory
        free: list[int] = []
        on_disk: list[tuple[bytes, int]] = []
        blocks = size = held = elsewhere = 0
        with state.lock:
            self.dropped = True
            # A waiting block's cell is still listed, unless quarantined: then it ends here.
            waiting = [b.cell for b in state.writer.discard_locked(self)] if state.writer else []
            if state.packer is not None:
                waiting += [b.cell for b in state.packer.discard_locked(self) if b.cell >= 0]
            free += [cell for cell in waiting if memory.unpin(cell)]
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
                        elsewhere += state.disk.size(self._disk, name, slot) or 0
                elif cell < 0 and self.packs is not None:
                    elsewhere += self.packs.table.size(packed_of(place))
            self._fetched.clear()
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
        packs = self.packs.drop() if self.packs is not None else None
        report = DropReport(
            blocks=files.blocks if files and unopened else distinct,
            bytes=files.bytes if files and unopened else size + elsewhere,
            memory_blocks=blocks,
            memory_bytes=size,
            disk_blocks=files.blocks if files else 0,
            disk_bytes=files.bytes if files else 0,
            held=held,
            failed=files.failed if files else 0,
            object_blocks=packs.blocks if packs else 0,
            object_bytes=packs.bytes if packs else 0,
            object_failed=packs.failed if packs else 0,
        )
        self._event(CacheEventKind.DROPPED, Tier.MEMORY, blocks, size)
        if files:
            self._event(CacheEventKind.DROPPED, Tier.DISK, files.blocks, files.bytes)
        if packs:
            self._event(CacheEventKind.DROPPED, Tier.OBJECT, packs.blocks, packs.bytes)
        return report
