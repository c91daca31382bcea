"""How what a session has leaves the disk tier as a whole.

Its blocks are taken out of the index, then its folder out of sight in one step, and only then its
files are removed. Until that is done they count for the tier's bounds, and as what is on disk.
"""

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress

from kvrun.cache.diskspace import DiskSession, DiskSpace
from kvrun.cache.foldertree import checked_ref
from kvrun.cache.outgoing import Key, Outgoing
from kvrun.cache.placement import INTERRUPTED

_AT_ONCE = 32


class DiskLeaving(DiskSpace):
    """A base of ``DiskTier``."""

    def delist(self, session: DiskSession, blocks: Iterable[tuple[bytes, int]]) -> None:
        """Takes blocks, (name, slot), out of the index: nobody finds them from now on.

        :meth:`remove_left` removes their files.
        """
        key = (session.tenant_ref, session.session_ref)
        with self._lock:
            names, size = self._slots.remove_all(session, blocks)
            if session.dropped:
                return  # its erasure counts them all, and removes their files
            session.blocks -= len(names)
            session.bytes -= size
            session.left += names
            self._blocks -= len(names)
            self._bytes -= size
            self._outgoing.add(key, Outgoing(len(names), size))

    def remove_left(self, session: DiskSession, pause: Callable[[], None]) -> Outgoing:
        """Removes the files of blocks that left the index; what is gone from the disk.

        All at once where the session stored nothing since and stores nothing now, with whatever
        else is in its folders, such as half a block. Else one by one but for those that were stored
        again; ``pause`` is then called every few files. What could not be removed counts on.
        """
        key = (session.tenant_ref, session.session_ref)
        try:
            self._clear_left(session, pause)
            self.folder.empty_quarantine(*key)
            gone = self._empty(key)
        except OSError as error:
            self._on_error(error)
            return Outgoing()
        if any(self._outgoing.of(key)):
            self._on_error(OSError(errno.EIO, "files that left could not be removed"))
        return gone

    def leave_unopened(
        self, tenant_ref: str, session_ref: str, pause: Callable[[], None]
    ) -> Outgoing:
        """Removes what a session has that is not open; what is gone from the disk.

        ``pause`` is called every few files. What could not be removed counts on.
        """
        key = (checked_ref(tenant_ref), checked_ref(session_ref))
        with self._lock:
            size = self._unopened.pop(key)
            self._bytes -= size
            self._outgoing.add(key, Outgoing(0, size))
            self._outgoing.unmoved.add(key)
        return self._remove(key, pause)

    def remove_outgoing(self, pause: Callable[[], None]) -> None:
        """Removes what could not be, or was cut short; not while sessions leave.

        ``pause`` is called for every session and every few files.
        """
        with self._lock:
            keys = self._outgoing.keys() | set(self.folder.outgoing())
        for key in keys:
            gone = self._remove(key, pause)
            if gone.blocks:
                self.on_evicted(key, *gone, INTERRUPTED)
            pause()

    def _remove(self, key: Key, pause: Callable[[], None]) -> Outgoing:
        """Of what is not open nothing else tells how much it is. One session that cannot be removed
        is not a broken tier."""
        with suppress(OSError):
            session, moved = self._opened.get(key), True
            if session is None:
                if key in self._outgoing.unmoved and self.folder.set_aside(*key):
                    self._outgoing.unmoved.discard(key)
            elif session.left:
                moved = self._clear_left(session, pause)
            if moved:  # else they count since they left the index
                self._count(key, pause)
            self.folder.empty_quarantine(*key)
            return self._empty(key)
        return Outgoing()

    def _clear_left(self, session: DiskSession, pause: Callable[[], None]) -> bool:
        """Takes the files of what left out of the session's folder; whether that was moved.

        Raises OSError, and what ``pause`` does; they are still to be taken out then.
        """
        with self._lock:
            names, session.left = session.left, []
        try:
            if self._set_aside_opened(session):
                return True
            for start in range(0, len(names), _AT_ONCE):
                some = names[start : start + _AT_ONCE]
                goes = set(some).difference(session.kept(some))
                self.folder.remove_all(session.tenant_ref, session.session_ref, goes)
                pause()
        except BaseException:
            with self._lock:
                session.left += names
            raise
        return False

    def _set_aside_opened(self, session: DiskSession) -> bool:
        key = (session.tenant_ref, session.session_ref)
        # A write holds the lock until its block is counted, so none is in the folder without that.
        if not session.io_lock.acquire(blocking=False):
            return False
        try:
            return not session.dropped and not session.blocks and self.folder.set_aside(*key)
        finally:
            session.io_lock.release()

    def _empty(self, key: Key) -> Outgoing:
        failed = self.folder.empty_outgoing(*key)
        in_place = self._goes_in_place(key)
        if in_place:
            failed += self.folder.empty_in_place(*key)
        with self._lock:
            had = self._outgoing.of(key)
            if not failed:
                self._outgoing.set(key, Outgoing())
                if in_place:
                    self._outgoing.unmoved.discard(key)
                return had
        rest = self._count(key)
        return Outgoing(max(0, had.blocks - rest.blocks), max(0, had.bytes - rest.bytes))
