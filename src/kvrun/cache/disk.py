"""The disk tier: sealed blocks in bounded space on a local disk.

A session's blocks are indexed when the session is opened, not at start; until then only the bytes
of its folder are known. An indexed block has a *slot*, a small number that the session's index
keeps beside the block's place in memory. A full or failing disk turns writing off for a while;
reading goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kvrun.cache.diskleaving import DiskLeaving
from kvrun.cache.diskspace import Deleted, DiskSession, Kept
from kvrun.cache.errors import DiskWriteError
from kvrun.cache.folder import BlockFolder, FolderDrop
from kvrun.cache.foldertree import checked_ref
from kvrun.cache.order import NONE, Sharing
from kvrun.cache.outgoing import Outgoing

__all__ = ["DiskSession", "DiskTier"]

_QUARANTINE_LIMIT = 64


class DiskTier(DiskLeaving):
    """Sealed blocks as files under ``root``, at most ``max_bytes`` of them together.

    ``now`` is a monotonic clock for retries, ``wall`` the time since 1970 that file times are
    compared with, both in seconds. After a failed write the tier is off for ``retry_s`` seconds.
    ``on_change`` is called with (available, reason) when that changes. With ``direct`` large
    blocks are read past the page cache. Raises CacheFolderError when the folder cannot be used.
    One process at a time may use a folder.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        retry_s: float = 30.0,
        sharing: Sharing | None = None,
        direct: bool = True,
    ) -> None:
        if max_bytes <= 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must be positive")
        super().__init__(
            BlockFolder(root, direct=direct), max_bytes, sharing or Sharing(), wall, self._turn_off
        )
        self.on_change: Callable[[bool, str], None] = lambda available, reason: None
        self._now = now
        self._retry_s = retry_s
        self._off_until: float | None = None

    @property
    def available(self) -> bool:
        """Whether the last write worked."""
        return self._off_until is None

    def accepts_writes(self) -> bool:
        """Whether a write is worth trying: the tier is on, or off for long enough."""
        return self._off_until is None or self._now() >= self._off_until

    def open_session(
        self,
        tenant_ref: str,
        session_ref: str,
        on_deleted: Deleted,
        kept: Kept = lambda names: (),
    ) -> tuple[DiskSession, Iterator[tuple[bytes, int]]]:
        """Lists a session's folder; answers the session and (name, slot) of each block.

        ``on_deleted`` is called, with no lock held, with (name, slot) of each block that the tier
        removed to stay within its bound. ``kept`` says which of the names that left were stored
        again. A session is opened once at a time.
        """
        key = (checked_ref(tenant_ref), checked_ref(session_ref))
        session = DiskSession(tenant_ref, session_ref, on_deleted, kept)
        with self._lock:
            self._opened[key] = session
            self._bytes -= self._unopened.pop(key)
        try:
            files = self.folder.blocks(tenant_ref, session_ref)
        except OSError:
            # One unreadable session is a session without persisted blocks, not a broken tier.
            files = []
        else:
            if key in self._outgoing.unmoved:  # nobody finds what is to go
                with self._lock:
                    session.left = [file.name for file in files]
                    self._outgoing.forget(key)
                    self._outgoing.add(key, Outgoing(len(files), sum(f.size for f in files)))
                files = []
        self.folder.mark_used(tenant_ref, session_ref)
        # Newest first: a head was stored before its tail, and is to be the later one to leave.
        found = [
            (file.name, self.adopt(session, file.name, file.size, stored_at=file.changed))
            for file in reversed(files)
        ]
        return session, reversed(found)

    def write(
        self,
        session: DiskSession,
        name: bytes,
        data: memoryview,
        *,
        stored_at: float | None = None,
        continues: int = NONE,
    ) -> int:
        """Writes one block and returns its slot. Raises DiskWriteError.

        ``stored_at`` is when it was sealed, seconds since 1970, None for now. ``continues`` is the
        slot of the block before it in the prompt, so that this one is removed first.
        """
        size = len(data)
        if size > self.max_bytes:
            raise DiskWriteError(f"a block of {size} bytes exceeds the tier's {self.max_bytes}")
        if not self.accepts_writes():
            raise DiskWriteError("the disk tier is off after a failed write")
        try:
            self.survey()
            self.make_room(session.tenant_ref, size)
            with session.io_lock:
                if session.dropped:
                    raise DiskWriteError("the session was dropped")
                self.folder.write(session.tenant_ref, session.session_ref, name, data)
                slot = self.adopt(session, name, size, stored_at=stored_at, continues=continues)
        except OSError as error:
            self._turn_off(error)
            raise DiskWriteError(f"cannot write a block: {error.strerror}") from error
        self._turn_on()
        return slot

    def read_into(self, session: DiskSession, name: bytes, out: memoryview) -> int:
        """Reads at most ``len(out)`` bytes of a block; returns how many. Raises OSError."""
        return self.folder.read_into(session.tenant_ref, session.session_ref, name, out)

    def touch(self, session: DiskSession, slots: Sequence[int]) -> None:
        """Makes blocks the most recently used ones, the last of ``slots`` the very last."""
        with self._lock:
            self._slots.touch(session, slots, self._wall())

    def hold(self, session: DiskSession, blocks: Iterable[tuple[bytes, int]]) -> None:
        """Keeps blocks, (name, slot), from being removed to make room."""
        with self._lock:
            for name, slot in blocks:
                if slot >= 0 and self._slots.is_of(slot, session, name):
                    self._slots.hold(slot)

    def let_go(self, session: DiskSession, blocks: Sequence[tuple[bytes, int]]) -> None:
        """Ends :meth:`hold`; the first of ``blocks`` becomes the most recently used one."""
        with self._lock:
            for name, slot in reversed(blocks):
                if slot >= 0 and self._slots.is_of(slot, session, name):
                    self._slots.let_go(slot)

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
                self._slots.remove_all(session, blocks)
                self._bytes -= session.bytes
                self._blocks -= session.blocks
                self._outgoing.forget(_key(session))
                session.blocks = session.bytes = 0
                session.left = []
                self._opened.pop(_key(session), None)
            return self.folder.drop(*_key(session))

    def drop_unopened(self, tenant_ref: str, session_ref: str) -> FolderDrop:
        """Removes the files of a session that is not open."""
        key = (checked_ref(tenant_ref), checked_ref(session_ref))
        with self._lock:
            self._bytes -= self._unopened.pop(key)
            self._outgoing.forget(key)
        return self.folder.drop(*key)

    def held(self, session: DiskSession) -> tuple[int, int]:
        """Blocks and bytes of a session, those that leave too until their files are removed."""
        with self._lock:
            leaves = self._outgoing.of(_key(session))
            return session.blocks + leaves.blocks, session.bytes + leaves.bytes

    def session_refs(self) -> list[tuple[str, str]]:
        """Every (tenant_ref, session_ref) with a folder, opened or not, or on its way out."""
        return self.folder.sessions() + self.folder.outgoing()

    def close(self) -> None:
        """Remembers which sessions were in use and gives the folder back."""
        with self._lock:
            opened = list(self._opened)
        for key in opened:
            self.folder.mark_used(*key)
        self.folder.close()

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
