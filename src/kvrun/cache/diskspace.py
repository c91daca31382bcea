"""What the disk tier holds, how that is bounded, and what is removed to make room."""

import threading
from collections.abc import Callable, Collection, Sequence

from kvrun.cache.errors import DiskWriteError
from kvrun.cache.folder import BlockFolder
from kvrun.cache.order import NONE, Sharing, UseOrder
from kvrun.cache.outgoing import Key, Outgoing, OutgoingSessions
from kvrun.cache.placement import CAPACITY, Basis
from kvrun.cache.slots import Slots
from kvrun.cache.unopened import UnopenedSessions

_LOW_WATER = 0.95
_MAX_FILE_SIZE = 2**32 - 1
_AT_ONCE = 128

Deleted = Callable[[Sequence[tuple[bytes, int]]], None]
Kept = Callable[[Sequence[bytes]], Collection[bytes]]
Evicted = Callable[[tuple[str, str], int, int, Basis], None]


class DiskSession:
    """One opened session of the disk tier; made by :meth:`DiskTier.open_session`."""

    __slots__ = (
        "blocks", "bytes", "dropped", "io_lock", "kept", "left", "on_deleted", "session_ref",
        "tenant_ref",
    )  # fmt: skip

    def __init__(
        self, tenant_ref: str, session_ref: str, on_deleted: Deleted, kept: Kept = lambda names: ()
    ) -> None:
        self.tenant_ref = tenant_ref
        self.session_ref = session_ref
        self.on_deleted = on_deleted
        self.kept = kept
        self.io_lock = threading.Lock()
        self.dropped = False
        self.blocks = 0
        self.bytes = 0
        self.left: list[bytes] = []


class DiskSpace:
    """The blocks below a folder, at most ``max_bytes`` of them together; a base of ``DiskTier``.

    ``wall`` is the time since 1970 in seconds. ``on_error`` is told of what could not be removed.
    ``on_evicted`` is called, with no lock held, with the session (tenant_ref, session_ref), blocks
    and bytes that were removed to stay within a bound, and what that rests on; ``bound`` answers
    that for a tenant at its bound.
    """

    def __init__(
        self,
        folder: BlockFolder,
        max_bytes: int,
        sharing: Sharing,
        wall: Callable[[], float],
        on_error: Callable[[OSError], None],
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._wall = wall
        self._on_error = on_error
        self._lock = threading.Lock()
        self._survey_lock = threading.Lock()
        self._surveyed = False
        self._quarantined = 0
        self._bytes = 0
        self._blocks = 0
        self._unopened = UnopenedSessions()
        self._outgoing = OutgoingSessions()
        self._opened: dict[tuple[str, str], DiskSession] = {}
        self._slots = Slots[DiskSession](max_bytes, sharing)
        self.on_evicted: Evicted = lambda key, blocks, size, basis: None
        self.bound: Callable[[str], Basis] = lambda tenant_ref: CAPACITY

    @property
    def used_bytes(self) -> int:
        """Sealed bytes known to be on disk; complete after :meth:`survey`.

        What leaves counts until its files are removed.
        """
        return self._bytes + self._outgoing.bytes

    @property
    def order(self) -> UseOrder:
        """The order of use of indexed blocks."""
        return self._slots.order

    @property
    def known_blocks(self) -> int:
        """Blocks of the sessions that were opened since the start, and those that leave."""
        return self._blocks + self._outgoing.blocks

    @property
    def outgoing(self) -> int:
        """Sessions with blocks that nobody finds any more and whose files are not removed yet."""
        return len(self._outgoing)

    def survey(self) -> None:
        """Adds up what the folder holds (once) and removes what interrupted writes left.

        Takes time in proportion to the number of files; the first write waits for it, since the
        bound means nothing before.
        """
        with self._survey_lock:
            if self._surveyed:
                return
            for key in self.folder.outgoing():
                if not self._outgoing.of(key).blocks:  # else it leaves just now
                    self._count(key)
            self._quarantined = self.folder.quarantined()
            for key in self.folder.sessions():
                self._survey_session(key)
            self._surveyed = True

    def adopt(
        self,
        session: DiskSession,
        name: bytes,
        size: int,
        *,
        stored_at: float | None = None,
        continues: int = NONE,
    ) -> int:
        """Indexes a block that stands on disk already; returns its slot.

        ``stored_at`` is in seconds since 1970, now where it is None.
        """
        size = min(size, _MAX_FILE_SIZE)
        with self._lock:
            self._bytes += size
            session.bytes += size
            session.blocks += 1
            self._blocks += 1
            wall = self._wall()
            return self._slots.add(
                session,
                name,
                size,
                wall,
                stored_at=wall if stored_at is None else stored_at,
                continues=continues,
            )

    def size(self, session: DiskSession, name: bytes, slot: int) -> int | None:
        """The bytes of an indexed block's file, None when the slot is not this block's any more."""
        with self._lock:
            return self._slots.size[slot] if self._slots.is_of(slot, session, name) else None

    def name(self, slot: int) -> bytes | None:
        """The name kept with a slot; sharing that object keeps the index small."""
        with self._lock:
            return self._slots.name[slot]

    def stored_at(self, slot: int) -> int:
        """When the block of a slot was stored, seconds since 1970."""
        with self._lock:
            return self._slots.stored_at[slot]

    def make_room(self, tenant_ref: str, size: int) -> None:
        """Removes what leaves first unless ``size`` more bytes of a tenant fit.

        A full tier is emptied a little further than needed. Raises DiskWriteError.
        """
        if self._is_beyond_quota(tenant_ref, size):
            self._remove_until(
                tenant_ref,
                size,
                lambda: not self._is_beyond_quota(tenant_ref, size),
                self.bound(tenant_ref),
            )
        if self.used_bytes + size > self.max_bytes:
            target = max(0, min(int(self.max_bytes * _LOW_WATER), self.max_bytes - size))
            self._remove_until(tenant_ref, size, lambda: self.used_bytes <= target)
        if self._is_beyond_quota(tenant_ref, size):
            raise DiskWriteError(f"a block of {size} bytes exceeds the tenant's quota")

    def trim(self, tenant_ref: str, basis: Basis, pause: Callable[[], None]) -> tuple[int, int]:
        """Removes what a tenant holds beyond what it may: blocks and bytes.

        ``pause`` is called every few blocks, with no lock held.
        """
        self.survey()
        return self._remove_until(
            tenant_ref, 0, lambda: not self._is_beyond_quota(tenant_ref, 0), basis, pause
        )

    def unopened(self) -> list[tuple[str, str]]:
        """The sessions on disk that nobody opened since the start; complete after the survey."""
        self.survey()
        with self._lock:
            return self._unopened.keys()

    def remove_unopened(
        self, tenant_ref: str, session_ref: str, goes: Callable[[float], bool]
    ) -> tuple[int, int]:
        """Removes files of an unopened session by when they were stored: blocks, bytes."""
        key = (tenant_ref, session_ref)
        blocks = size = 0
        try:
            for file in self.folder.blocks(*key):
                if not goes(file.changed):
                    continue
                with self._lock:
                    if not self._unopened.shrink(key, file.size, file.changed):
                        break
                    self._bytes -= file.size
                self.folder.remove(*key, file.name)
                blocks += 1
                size += file.size
        except OSError as error:
            self._on_error(error)
        return blocks, size

    def _forget(self, session: DiskSession, name: bytes, slot: int) -> bool:
        with self._lock:
            if not self._slots.is_of(slot, session, name):
                return False
            self._forget_slot_locked(slot)
            return True

    def _count(self, key: Key, pause: Callable[[], None] = lambda: None) -> Outgoing:
        """Counts what is left of a session's folder that was moved aside, or could not be."""
        found = self.folder.measure_outgoing(*key, pause)
        left = Outgoing(found.blocks, found.bytes)
        if self._goes_in_place(key):
            found = self.folder.survey(*key, pause)
            left = Outgoing(left.blocks + found.blocks, left.bytes + found.bytes)
        with self._lock:
            self._outgoing.set(key, left)
        return left

    def _goes_in_place(self, key: tuple[str, str]) -> bool:
        """Whether the folder of a session that is not open is to go and could not be moved."""
        return key in self._outgoing.unmoved and key not in self._opened

    def _survey_session(self, key: tuple[str, str]) -> None:
        try:
            found = self.folder.survey(*key)
        except OSError:
            return
        with self._lock:
            if found.blocks and key not in self._opened and key not in self._outgoing.unmoved:
                self._unopened.add(key, found.bytes, found.changed)
                self._bytes += found.bytes

    def _is_beyond_quota(self, tenant_ref: str, size: int) -> bool:
        size += self._unopened.bytes_of(tenant_ref) + self._outgoing.bytes_of(tenant_ref)
        return self._slots.order.is_beyond_quota(tenant_ref, size)

    def _remove_until(
        self,
        tenant_ref: str,
        size: int,
        enough: Callable[[], bool],
        basis: Basis = CAPACITY,
        pause: Callable[[], None] = lambda: None,
    ) -> tuple[int, int]:
        blocks = gone = 0
        while not enough():
            victims: list[tuple[DiskSession, bytes, int, int]] = []
            unopened: tuple[str, str] | None = None
            while len(victims) < _AT_ONCE and unopened is None and not enough():
                with self._lock:
                    slot, unopened = self._next_to_go_locked(tenant_ref, size)
                    if slot == NONE:
                        break
                    victims.append(self._forget_slot_locked(slot))
            if unopened is None and not victims:
                break
            left = self._remove_all(victims, basis)
            blocks, gone = blocks + left[0], gone + left[1]
            if unopened is not None:
                left = self._trim_unopened(unopened, enough, basis, pause)
                blocks, gone = blocks + left[0], gone + left[1]
            pause()
        return blocks, gone

    def _next_to_go_locked(self, tenant_ref: str, size: int) -> tuple[int, tuple[str, str] | None]:
        """A slot or an unopened session; (NONE, None) when nothing may go."""
        order = self._slots.order
        if self._is_beyond_quota(tenant_ref, size):
            key = self._unopened.oldest_of(tenant_ref)
            return (NONE, key) if key is not None else (order.oldest_of(tenant_ref), None)
        # What nobody asked for since the start was used before all that somebody did ask for.
        unopened = self._unopened.oldest()
        if unopened is not None:
            return NONE, unopened
        return order.victim(tenant_ref, size, self._wall()), None

    def _trim_unopened(
        self,
        key: tuple[str, str],
        enough: Callable[[], bool],
        basis: Basis,
        pause: Callable[[], None],
    ) -> tuple[int, int]:
        """Removes files of an unopened session, the last stored first, so that what stays of a
        conversation can be reused."""
        try:
            files = self.folder.blocks(*key)[::-1]
        except OSError:
            files = []
        blocks = gone = 0
        for start in range(0, len(files), _AT_ONCE):
            names, size, some = [], 0, files[start : start + _AT_ONCE]
            with self._lock:
                for file in some:
                    if enough() or not self._unopened.shrink(key, file.size, file.changed):
                        break
                    self._bytes -= file.size
                    names.append(file.name)
                    size += file.size
            self._unlink(key, names)
            if names:
                self.on_evicted(key, len(names), size, basis)
            blocks, gone = blocks + len(names), gone + size
            if len(names) < len(some):
                return blocks, gone
            pause()
        self.folder.remove_empty(*key)
        with self._lock:
            self._bytes -= self._unopened.pop(key)
        return blocks, gone

    def _remove_all(
        self, victims: Sequence[tuple[DiskSession, bytes, int, int]], basis: Basis
    ) -> tuple[int, int]:
        gone: dict[DiskSession, list[tuple[bytes, int, int]]] = {}
        for session, name, slot, size in victims:
            gone.setdefault(session, []).append((name, slot, size))
        for session, blocks in gone.items():
            key = (session.tenant_ref, session.session_ref)
            self._unlink(key, [name for name, _, _ in blocks])
            session.on_deleted([(name, slot) for name, slot, _ in blocks])
            self.on_evicted(key, len(blocks), sum(size for _, _, size in blocks), basis)
        return len(victims), sum(size for _, _, _, size in victims)

    def _unlink(self, key: tuple[str, str], names: Sequence[bytes]) -> None:
        try:
            self.folder.remove_all(*key, names)
        except OSError as error:
            self._on_error(error)

    def _forget_slot_locked(self, slot: int) -> tuple[DiskSession, bytes, int, int]:
        session, name = self._slots.owner[slot], self._slots.name[slot]
        assert session is not None
        assert name is not None
        size = self._slots.size[slot]
        self._slots.remove(slot)
        if not session.dropped:  # else its erasure counts all that it had
            session.blocks -= 1
            session.bytes -= size
            self._blocks -= 1
            self._bytes -= size
        return session, name, slot, size
