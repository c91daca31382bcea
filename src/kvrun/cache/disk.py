"""The disk tier: sealed blocks in bounded space on a local disk, least recently used first out.

A session's blocks are indexed when the session is opened, not at start; until then only the bytes
of its folder are known. An indexed block has a *slot*, a small number that the session's index
keeps beside the block's place in memory. A full or failing disk turns writing off for a while;
reading goes on.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrun.cache.errors import DiskWriteError
from kvrun.cache.folder import BlockFolder, FolderDrop, checked_ref
from kvrun.cache.slots import NONE, Slots

_LOW_WATER = 0.95
_QUARANTINE_LIMIT = 64
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


@dataclass(slots=True)
class _Unopened:
    """A session's folder that nobody asked for yet: bytes and last use, seconds since 1970."""

    bytes: int
    used: float


class DiskTier:
    """Sealed blocks as files under ``root``, at most ``max_bytes`` of them together.

    ``now`` is a monotonic clock for retries, ``wall`` the time since 1970 that file times are
    compared with, both in seconds. After a failed write the tier is off for ``retry_s`` seconds.
    ``on_change`` is called with (available, reason) when that changes. Raises CacheFolderError
    when the folder cannot be used. One process at a time may use a folder.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        retry_s: float = 30.0,
    ) -> None:
        if max_bytes <= 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must be positive")
        self.folder = BlockFolder(root)
        self.max_bytes = max_bytes
        self.on_change: Callable[[bool, str], None] = lambda available, reason: None
        self._now = now
        self._wall = wall
        self._retry_s = retry_s
        self._off_until: float | None = None
        self._lock = threading.Lock()
        self._survey_lock = threading.Lock()
        self._surveyed = False
        self._quarantined = 0
        self._bytes = 0
        self._blocks = 0
        self._unopened: dict[tuple[str, str], _Unopened] = {}
        self._opened: dict[tuple[str, str], DiskSession] = {}
        self._slots = Slots[DiskSession]()

    @property
    def available(self) -> bool:
        """Whether the last write worked."""
        return self._off_until is None

    @property
    def used_bytes(self) -> int:
        """Sealed bytes known to be on disk; complete after :meth:`survey`."""
        return self._bytes

    @property
    def known_blocks(self) -> int:
        """Blocks of the sessions that were opened since the start."""
        return self._blocks

    def accepts_writes(self) -> bool:
        """Whether a write is worth trying: the tier is on, or off for long enough."""
        return self._off_until is None or self._now() >= self._off_until

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

    def open_session(
        self, tenant_ref: str, session_ref: str, on_deleted: Deleted
    ) -> tuple[DiskSession, Iterator[tuple[bytes, int]]]:
        """Lists a session's folder; answers the session and (name, slot) of each block.

        ``on_deleted`` is called, with no lock held, with (name, slot, bytes) of each block
        that the tier removed to stay within its bound. A session is opened once at a time.
        """
        key = (checked_ref(tenant_ref), checked_ref(session_ref))
        session = DiskSession(tenant_ref, session_ref, on_deleted)
        with self._lock:
            self._opened[key] = session
            before = self._unopened.pop(key, None)
            self._bytes -= before.bytes if before else 0
        try:
            files = self.folder.blocks(tenant_ref, session_ref)
        except OSError:
            # One unreadable session is a session without persisted blocks, not a broken tier.
            files = []
        self.folder.mark_used(tenant_ref, session_ref)
        return session, iter([(f.name, self.adopt(session, f.name, f.size)) for f in files])

    def adopt(self, session: DiskSession, name: bytes, size: int) -> int:
        """Indexes a block that stands on disk already; returns its slot."""
        size = min(size, _MAX_FILE_SIZE)
        with self._lock:
            self._bytes += size
            session.bytes += size
            session.blocks += 1
            self._blocks += 1
            return self._slots.add(session, name, size, self._wall())

    def write(self, session: DiskSession, name: bytes, data: memoryview) -> int:
        """Writes one block and returns its slot. Raises DiskWriteError."""
        size = len(data)
        if size > self.max_bytes:
            raise DiskWriteError(f"a block of {size} bytes exceeds the tier's {self.max_bytes}")
        if not self.accepts_writes():
            raise DiskWriteError("the disk tier is off after a failed write")
        try:
            self.survey()
            self._make_room(size)
            with session.io_lock:
                if session.dropped:
                    raise DiskWriteError("the session was dropped")
                self.folder.write(session.tenant_ref, session.session_ref, name, data)
                slot = self.adopt(session, name, size)
        except OSError as error:
            self._turn_off(error)
            raise DiskWriteError(f"cannot write a block: {error.strerror}") from error
        self._turn_on()
        return slot

    def size(self, session: DiskSession, name: bytes, slot: int) -> int | None:
        """The bytes of an indexed block's file, None when the slot is not this block's any more."""
        with self._lock:
            return self._slots.size[slot] if self._slots.is_of(slot, session, name) else None

    def name(self, slot: int) -> bytes | None:
        """The name kept with a slot; sharing that object keeps the index small."""
        with self._lock:
            return self._slots.name[slot]

    def read_into(self, session: DiskSession, name: bytes, out: memoryview) -> int:
        """Reads at most ``len(out)`` bytes of a block; returns how many. Raises OSError."""
        return self.folder.read_into(session.tenant_ref, session.session_ref, name, out)

    def touch(self, session: DiskSession, slots: Sequence[int]) -> None:
        """Makes blocks the most recently used ones, the last of ``slots`` the very last."""
        with self._lock:
            wall = self._wall()
            for slot in slots:
                if self._slots.owner[slot] is session:
                    self._slots.touch(slot, wall)

    def remove(self, session: DiskSession, name: bytes, slot: int, *, keep: bool = False) -> None:
        """Takes one block out; with ``keep`` its file goes to quarantine while there is room."""
        if not self._forget(session, name, slot):
            return
        refs = (session.tenant_ref, session.session_ref)
        try:
            if keep and self._quarantined < _QUARANTINE_LIMIT:
                with session.io_lock:
                    moved = not session.dropped and self.folder.quarantine(*refs, name)
                if moved:
                    self._quarantined += 1
                    return
            self.folder.remove(*refs, name)
        except OSError as error:
            self._turn_off(error)

    def drop_session(self, session: DiskSession, blocks: Iterable[tuple[bytes, int]]) -> FolderDrop:
        """Removes an opened session's files for good; later writes to it are refused.

        ``blocks`` are the (name, slot) pairs that the session's index holds.
        """
        with session.io_lock:
            session.dropped = True
            with self._lock:
                for name, slot in blocks:
                    if self._slots.is_of(slot, session, name):
                        self._slots.remove(slot)
                self._bytes -= session.bytes
                self._blocks -= session.blocks
                session.blocks = session.bytes = 0
                self._opened.pop(_key(session), None)
            return self.folder.drop(*_key(session))

    def drop_unopened(self, tenant_ref: str, session_ref: str) -> FolderDrop:
        """Removes the files of a session that is not open."""
        with self._lock:
            before = self._unopened.pop((checked_ref(tenant_ref), checked_ref(session_ref)), None)
            self._bytes -= before.bytes if before else 0
        return self.folder.drop(tenant_ref, session_ref)

    def session_refs(self) -> list[tuple[str, str]]:
        """Every (tenant_ref, session_ref) with a folder, opened or not."""
        return self.folder.sessions()

    def close(self) -> None:
        """Remembers which sessions were in use and gives the folder back."""
        with self._lock:
            opened = list(self._opened)
        for key in opened:
            self.folder.mark_used(*key)
        self.folder.close()

    def _survey_session(self, key: tuple[str, str]) -> None:
        try:
            files = self.folder.blocks(*key)
        except OSError:
            return
        total = sum(file.size for file in files)
        used = max((file.changed for file in files), default=0.0)
        with self._lock:
            if files and key not in self._opened:
                self._unopened[key] = _Unopened(total, used)
                self._bytes += total

    def _forget(self, session: DiskSession, name: bytes, slot: int) -> bool:
        with self._lock:
            if not self._slots.is_of(slot, session, name):
                return False
            size = self._slots.size[slot]
            self._slots.remove(slot)
            session.blocks -= 1
            session.bytes -= size
            self._blocks -= 1
            self._bytes -= size
            return True

    def _make_room(self, size: int) -> None:
        """Removes least recently used blocks, a few more than needed, unless ``size`` fits."""
        if self._bytes + size <= self.max_bytes:
            return
        target = max(0, min(int(self.max_bytes * _LOW_WATER), self.max_bytes - size))
        while self._bytes > target:
            with self._lock:
                oldest = self._slots.oldest
                key = min(self._unopened, key=lambda k: self._unopened[k].used, default=None)
                if key is not None and (
                    oldest == NONE or self._unopened[key].used < self._slots.used[oldest]
                ):
                    victims: list[tuple[DiskSession, bytes, int]] = []
                else:
                    key = None
                    victims = self._slots.oldest_until(self._bytes - target)
            if key is not None:
                self._trim_unopened(key, target)
            elif victims:
                self._remove_all(victims)
            else:
                return

    def _trim_unopened(self, key: tuple[str, str], target: int) -> None:
        try:
            files = self.folder.blocks(*key)
        except OSError:
            files = []
        for file in files:
            if self._bytes <= target:
                return
            with self._lock:
                entry = self._unopened.get(key)
                if entry is None:
                    return
                entry.bytes -= file.size
                entry.used = max(entry.used, file.changed)
                self._bytes -= file.size
            self.folder.remove(*key, file.name)
        self.folder.remove_empty(*key)
        with self._lock:
            rest = self._unopened.pop(key, None)
            self._bytes -= rest.bytes if rest else 0

    def _remove_all(self, victims: list[tuple[DiskSession, bytes, int]]) -> None:
        deleted: dict[DiskSession, list[tuple[bytes, int, int]]] = {}
        for session, name, slot in victims:
            size = self.size(session, name, slot)
            if size is not None:
                deleted.setdefault(session, []).append((name, slot, size))
                self.remove(session, name, slot)
        for session, blocks in deleted.items():
            session.on_deleted(blocks)

    def _turn_off(self, error: OSError) -> None:
        was_available = self._off_until is None
        self._off_until = self._now() + self._retry_s
        if was_available:
            self.on_change(False, error.strerror or str(error))

    def _turn_on(self) -> None:
        if self._off_until is not None:
            self._off_until = None
            self.on_change(True, "")


def _key(session: DiskSession) -> tuple[str, str]:
    return session.tenant_ref, session.session_ref
