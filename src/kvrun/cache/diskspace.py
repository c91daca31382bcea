"""What the disk tier holds, how that is bounded, and what is removed to make room."""

import threading
from collections.abc import Callable, Iterable, Sequence

from kvrun.cache.errors import DiskWriteError
from kvrun.cache.folder import BlockFolder
from kvrun.cache.order import NONE, Sharing
from kvrun.cache.slots import Slots
from kvrun.cache.unopened import UnopenedSessions

_LOW_WATER = 0.95
_MAX_FILE_SIZE = 2**32 - 1

Deleted = Callable[[Sequence[tuple[bytes, int, int]]], None]


class DiskSession:
    """One opened session of the disk tier; made by :meth:`DiskTier.open_session`."""

    __slots__ = ("blocks", "bytes", "dropped", "io_lock", "on_deleted", "session_ref", "tenant_ref")

    def __init__(self, tenant_ref: str, session_ref: str, on_deleted: Deleted) -> None:
        self.tenant_ref = tenant_ref
        self.session_ref = session_ref
        self.on_deleted = on_deleted
        self.io_lock = threading.Lock()
        self.dropped = False
        self.blocks = 0
        self.bytes = 0


class DiskSpace:
    """The blocks below a folder, at most ``max_bytes`` of them together; a base of ``DiskTier``.

    ``wall`` is the time since 1970 in seconds. ``on_error`` is told of what could not be removed.
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
        self._opened: dict[tuple[str, str], DiskSession] = {}
        self._slots = Slots[DiskSession](max_bytes, sharing)

    @property
    def used_bytes(self) -> int:
        """Sealed bytes known to be on disk; complete after :meth:`survey`."""
        return self._bytes

    @property
    def known_blocks(self) -> int:
        """Blocks of the sessions that were opened since the start."""
        return self._blocks

    def survey(self) -> None:
        """Adds up what the folder holds (once) and removes what interrupted writes left.

        Takes time in proportion to the number of files; the first write waits for it, since the
        bound means nothing before.
        """
        with self._survey_lock:
            if self._surveyed:
                return
            self._quarantined = self.folder.quarantined()
            for key in self.folder.sessions():
                self.folder.remove_temporaries(*key)
                with self._lock:
                    known = key in self._opened
                if not known:
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
                tenant_ref, size, lambda: not self._is_beyond_quota(tenant_ref, size)
            )
        if self._bytes + size > self.max_bytes:
            target = max(0, min(int(self.max_bytes * _LOW_WATER), self.max_bytes - size))
            self._remove_until(tenant_ref, size, lambda: self._bytes <= target)
        if self._is_beyond_quota(tenant_ref, size):
            raise DiskWriteError(f"a block of {size} bytes exceeds the tenant's quota")

    def unopened(self) -> list[tuple[str, str]]:
        """The sessions on disk that nobody opened since the start; complete after the survey."""
        self.survey()
        with self._lock:
            return self._unopened.keys()

    def expire_unopened(self, tenant_ref: str, session_ref: str, before: float) -> tuple[int, int]:
        """Removes files of an unopened session stored at ``before`` or earlier: blocks, bytes."""
        key = (tenant_ref, session_ref)
        blocks = size = 0
        try:
            for file in self.folder.blocks(*key):
                if file.changed > before:
                    break
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

    def _survey_session(self, key: tuple[str, str]) -> None:
        try:
            files = self.folder.blocks(*key)
        except OSError:
            return
        total = sum(file.size for file in files)
        used = max((file.changed for file in files), default=0.0)
        with self._lock:
            if files and key not in self._opened:
                self._unopened.add(key, total, used)
                self._bytes += total

    def _is_beyond_quota(self, tenant_ref: str, size: int) -> bool:
        unopened = self._unopened.bytes_of(tenant_ref)
        return self._slots.order.is_beyond_quota(tenant_ref, size + unopened)

    def _remove_until(self, tenant_ref: str, size: int, enough: Callable[[], bool]) -> None:
        victims: list[tuple[DiskSession, bytes, int, int]] = []
        while not enough():
            with self._lock:
                slot, key = self._next_to_go_locked(tenant_ref, size)
                if slot != NONE:
                    victims.append(self._forget_slot_locked(slot))
            if key is not None:
                self._trim_unopened(key, enough)
            elif slot == NONE:
                break
        self._remove_all(victims)

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

    def _trim_unopened(self, key: tuple[str, str], enough: Callable[[], bool]) -> None:
        try:
            files = self.folder.blocks(*key)
        except OSError:
            files = []
        # The last stored first, so that what stays of a conversation can be reused.
        for file in reversed(files):
            if enough():
                return
            with self._lock:
                if not self._unopened.shrink(key, file.size, file.changed):
                    return
                self._bytes -= file.size
            self.folder.remove(*key, file.name)
        self.folder.remove_empty(*key)
        with self._lock:
            self._bytes -= self._unopened.pop(key)

    def _remove_all(self, victims: Iterable[tuple[DiskSession, bytes, int, int]]) -> None:
        deleted: dict[DiskSession, list[tuple[bytes, int, int]]] = {}
        for session, name, slot, size in victims:
            deleted.setdefault(session, []).append((name, slot, size))
            try:
                self.folder.remove(session.tenant_ref, session.session_ref, name)
            except OSError as error:
                self._on_error(error)
        for session, blocks in deleted.items():
            session.on_deleted(blocks)

    def _forget_slot_locked(self, slot: int) -> tuple[DiskSession, bytes, int, int]:
        session, name = self._slots.owner[slot], self._slots.name[slot]
        assert session is not None
        assert name is not None
        size = self._slots.size[slot]
        self._slots.remove(slot)
        session.blocks -= 1
        session.bytes -= size
        self._blocks -= 1
        self._bytes -= size
        return session, name, slot, size
