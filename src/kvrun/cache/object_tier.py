"""The object tier's way to Storage: packs by session, a switch for bad times, deletions that last.

Every call may take as long as the store's own deadlines allow, so none is made with a lock held or
on a request's way. A store that fails or is slow turns the tier off for a while: what it holds is a
miss, what would be written is not, and one call after that finds out whether it is back.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvrun.cache.errors import ObjectTierOffError, PackFormatError, TierBoundError
from kvrun.cache.folder import FolderDrop
from kvrun.cache.foldertree import checked_ref, is_ref
from kvrun.cache.pack import blocks_in
from kvrun.cache.packtable import PackTotals
from kvrun.cache.undeleted import UndeletedSessions
from kvrun.errors import KvrunError
from kvrun.storage import ObjectExistsError, ObjectMissingError, Storage, StorageError

_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 60.0
_WRITE_TRIES = 4
_FIRST_PAUSE_S = 0.2
_OFF = "the object tier is off after a failure"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObjectSettings:
    """Sizes in bytes, times in seconds.

    A pack is written at ``pack_bytes``, or when its first block waited ``pack_age_s``. A look-up
    waits ``load_wait_s`` for a session's indexes and ``fetch_wait_s`` for a block, then it is a
    miss. A write is tried again for ``write_s``; packs that came from elsewhere are looked for
    every ``relist_s``; packs of another model are deleted after ``foreign_s``. What follows the
    first blocks that a session asks for is fetched ahead up to ``ahead_bytes``, and what waits of
    a session without a request is packed after ``pack_idle_s``.
    """

    pack_bytes: int = 32 * 2**20
    pack_age_s: float = 10.0
    pack_idle_s: float = 2.0
    queue_bytes: int = 256 * 2**20
    fetch_bytes: int = 256 * 2**20
    ahead_bytes: int = 64 * 2**20
    load_wait_s: float = 0.05
    fetch_wait_s: float = 2.0
    write_s: float = 20.0
    drop_s: float = 10.0
    relist_s: float = 30.0
    foreign_s: float = 24 * 3600.0
    threads: int = 8


@dataclass(frozen=True, slots=True)
class StoredPack:
    """A pack as a listing shows it."""

    name: str
    blocks: int
    size_bytes: int


@dataclass(slots=True)
class ObjectCounters:
    """Totals since the start."""

    packs_written: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    failures: int = 0
    compactions: int = 0
    refused_packs: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """Blocks and bytes that were deleted by session, and whether that was all there was to do."""

    removed: dict[tuple[str, str], tuple[int, int]]
    complete: bool


class ObjectTier:
    """Packs below ``prefix``/kv in Storage. Thread-safe.

    ``reader`` and ``writer`` are the same place with deadlines of their own. What could not be
    deleted is remembered in ``undeleted`` over restarts. ``cap_of`` says how many bytes a tenant
    may have there, None without a limit. ``now`` is a monotonic clock in seconds.
    ``on_change`` is called with (available, reason) when that changes.
    """

    def __init__(
        self,
        reader: Storage,
        writer: Storage,
        prefix: str,
        *,
        undeleted: Path | None = None,
        settings: ObjectSettings | None = None,
        cap_of: Callable[[str], int | None] = lambda tenant_ref: None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings or ObjectSettings()
        self.counters = ObjectCounters()
        self.totals = PackTotals()
        self.on_change: Callable[[bool, str], None] = lambda available, reason: None
        self.readers = ThreadPoolExecutor(
            self.settings.threads, thread_name_prefix="kvrun-object-read"
        )
        self._reader = reader
        self._writer = writer
        self._kv = f"{prefix}/kv"
        self._cap_of = cap_of
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        self._lock = threading.Lock()
        self._off_until: float | None = None
        self._retry_s = _FIRST_RETRY_S
        self._undeleted = UndeletedSessions(undeleted)

    @property
    def available(self) -> bool:
        """Whether the last call worked."""
        return self._off_until is None

    @property
    def undeleted(self) -> int:
        """Sessions whose packs are still to be deleted."""
        return len(self._undeleted)

    def accepts(self) -> bool:
        """Whether a call is worth trying: the tier is on, or off for long enough."""
        return self._off_until is None or self._now() >= self._off_until

    def packs(self, tenant_ref: str, session_ref: str) -> list[StoredPack]:
        """The packs of one session, in no order. Raises ObjectTierOffError."""
        with self._asking():
            return list(_packs(self._reader, self._folder(tenant_ref, session_ref)))

    def read(
        self, tenant_ref: str, session_ref: str, name: str, start: int, size: int
    ) -> memoryview:
        """A part of a pack. Raises ObjectTierOffError, ObjectMissingError, PackFormatError."""
        with self._asking():
            path = f"{self._folder(tenant_ref, session_ref)}/{name}"
            data = self._reader.get_part(path, start, size)
        if len(data) != size:
            raise PackFormatError(f"Storage gave {len(data)} of {size} bytes of a pack")
        with self._lock:
            self.counters.bytes_read += size
        return data

    def write(self, tenant_ref: str, session_ref: str, name: str, data: bytearray) -> None:
        """Stores a new pack whole; tried again for a while. Raises ObjectTierOffError."""
        path = f"{self._folder(tenant_ref, session_ref)}/{name}"
        if not self.accepts():
            raise ObjectTierOffError(_OFF)
        deadline = self._now() + self.settings.write_s
        pause = _FIRST_PAUSE_S
        for tries in range(_WRITE_TRIES):
            try:
                self._put(path, data, first=not tries)
                return
            except StorageError as error:
                wait = pause * (0.5 + self._jitter())
                if tries + 1 == _WRITE_TRIES or self._now() + wait >= deadline:
                    self._turn_off(error.message)
                    raise ObjectTierOffError(error.message) from error
            self._sleep(wait)
            pause *= 2

    def beyond_bytes(self, tenant_ref: str, size: int = 0) -> int:
        """By how many bytes a tenant's packs, and ``size`` more, go beyond what it may have.

        The store is asked only where there is a bound. Raises ObjectTierOffError.
        """
        cap = self._cap_of(tenant_ref)
        if cap is None:
            return 0
        with self._asking():
            packs = self._reader.list(f"{self._kv}/{checked_ref(tenant_ref)}")
            return max(0, sum(pack.size_bytes for pack in packs) + size - cap)

    def check_room(self, tenant_ref: str, size: int) -> None:
        """Raises TierBoundError where ``size`` bytes more are too many, or ObjectTierOffError."""
        if beyond := self.beyond_bytes(tenant_ref, size):
            raise TierBoundError(f"{beyond} bytes more than a tenant may have in Storage")

    def delete(self, tenant_ref: str, session_ref: str, name: str) -> bool:
        """Deletes one pack; False when that did not work (it is tried again at the next start)."""
        try:
            with self._asking():
                self._writer.delete(f"{self._folder(tenant_ref, session_ref)}/{name}")
        except KvrunError as error:
            _log.warning("a pack was not deleted: %s", error.message)
            return False
        return True

    def drop(self, tenant_ref: str, session_ref: str, *, busy: bool = False) -> FolderDrop:
        """Deletes all of a session, for as long as ``drop_s`` allows; the rest later.

        ``busy``: a write is under way, so it is looked at once more. ``failed`` counts packs that
        are left, at least one where nobody knows.
        """
        dropped, _ = self._drop(tenant_ref, session_ref)
        self._undeleted.note(tenant_ref, session_ref, left=bool(dropped.failed) or busy)
        return dropped

    def take_away(
        self, tenant_ref: str, session_ref: str, known: Collection[str] = ()
    ) -> FolderDrop:
        """The same of a session that lives: later only packs go that are there now.

        ``known``: their names, as far as somebody knows them while the store does not answer.
        """
        dropped, left = self._drop(tenant_ref, session_ref)
        self.delete_later(tenant_ref, session_ref, known if left is None else left)
        return dropped

    def delete_later(self, tenant_ref: str, session_ref: str, names: Collection[str]) -> None:
        """Remembers packs of a session that lives until they are deleted."""
        self._undeleted.note_packs(tenant_ref, session_ref, names, left=True)

    def retry_deletions(self) -> int:
        """Deletes what could not be deleted before; how many sessions are left."""
        for refs, names in self._undeleted.all():
            if not self.accepts():
                break
            if not names:
                self.drop(*refs)
            else:
                done = [name for name in sorted(names) if self.delete(*refs, name)]
                self._undeleted.note_packs(*refs, done, left=False)
        return len(self._undeleted)

    def collect(
        self, is_foreign: Callable[[float], bool], opened: Collection[tuple[str, str]]
    ) -> Collected:
        """Deletes the packs of all sessions but ``opened`` whose time ``is_foreign``.

        Lists everything once. Takes as long as that does; what it did not come to is left.
        """
        removed: dict[tuple[str, str], tuple[int, int]] = {}
        try:
            with self._asking():
                found = [
                    item for item in self._reader.list(self._kv) if is_foreign(item.modified_s)
                ]
        except KvrunError:
            return Collected(removed, complete=False)
        for item in found:
            place = _place_of(item.name.removeprefix(f"{self._kv}/"))
            if place is None or place[:2] in opened:
                continue
            tenant_ref, session_ref, name, blocks = place
            if not self.accepts() or not self.delete(tenant_ref, session_ref, name):
                return Collected(removed, complete=False)
            had_blocks, had_bytes = removed.get((tenant_ref, session_ref), (0, 0))
            removed[tenant_ref, session_ref] = (had_blocks + blocks, had_bytes + item.size_bytes)
        return Collected(removed, complete=True)

    def session_refs(self, tenant_ref: str = "") -> list[tuple[str, str]]:
        """Every (tenant_ref, session_ref) with packs, or those of one tenant; none where the
        store does not answer."""
        found: list[tuple[str, str]] = []
        with contextlib.suppress(KvrunError), self._asking():
            tenants = [tenant_ref] if tenant_ref else _folders(self._reader, self._kv)
            for tenant in tenants:
                below = _folders(self._reader, f"{self._kv}/{checked_ref(tenant)}")
                found += [(tenant, session) for session in below]
        return found

    def probe(self) -> bool:
        """Asks the store whether it is there, where the tier is off; whether it is on now."""
        if self._off_until is not None and self.accepts():
            with contextlib.suppress(KvrunError), self._asking():
                self._reader.find(f"{self._kv}/probe")
        return self.available

    def note(self, *, merged: int = 0, refused: int = 0) -> None:
        """Counts packs that were merged into others, and such that could not be used."""
        with self._lock:
            self.counters.compactions += merged
            self.counters.refused_packs += refused

    def turn_off(self, reason: str) -> None:
        """Stops using the store for a while: it was too slow for a request."""
        self._turn_off(reason)

    def close(self) -> None:
        """Ends the threads; what they wait for is left."""
        self.readers.shutdown(wait=False, cancel_futures=True)

    def _drop(self, tenant_ref: str, session_ref: str) -> tuple[FolderDrop, list[str] | None]:
        """What was deleted, and the names of what is left; None where nobody knows."""
        deadline = self._now() + self.settings.drop_s
        folder = self._folder(tenant_ref, session_ref)
        try:
            with self._asking():
                found = list(_packs(self._reader, folder, every=True))
        except KvrunError:
            return FolderDrop(0, 0, 1), None
        blocks = size = 0
        left: list[str] = []
        for pack in found:
            if self._now() >= deadline or not self.delete(tenant_ref, session_ref, pack.name):
                left.append(pack.name)
                continue
            blocks += pack.blocks
            size += pack.size_bytes
        return FolderDrop(blocks, size, len(left)), left

    def _put(self, path: str, data: bytearray, *, first: bool) -> None:
        try:
            self._writer.create(path, memoryview(data))
        except ObjectExistsError:
            # Only a try that seemed to fail can have stored it: the name is random.
            if first:
                raise
        with self._lock:
            self.counters.packs_written += 1
            self.counters.bytes_written += len(data)
        self._turn_on()

    def _folder(self, tenant_ref: str, session_ref: str) -> str:
        return f"{self._kv}/{checked_ref(tenant_ref)}/{checked_ref(session_ref)}"

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        if not self.accepts():
            raise ObjectTierOffError(_OFF)
        try:
            yield
        except ObjectMissingError:
            self._turn_on()
            raise
        except StorageError as error:
            self._turn_off(error.message)
            raise ObjectTierOffError(error.message) from error
        self._turn_on()

    def _turn_off(self, reason: str) -> None:
        with self._lock:
            was_on = self._off_until is None
            self.counters.failures += 1
            self._off_until = self._now() + self._retry_s * (0.5 + self._jitter())
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        if was_on:
            _log.warning("the object tier is off: %s", reason)
            self.on_change(False, reason)

    def _turn_on(self) -> None:
        if self._off_until is None:
            return
        with self._lock:
            was_off, self._off_until = self._off_until is not None, None
            self._retry_s = _FIRST_RETRY_S
        if was_off:
            _log.info("the object tier is on again")
            self.on_change(True, "")


def _place_of(path: str) -> tuple[str, str, str, int] | None:
    """(tenant_ref, session_ref, name, blocks) of a pack; None for what else lies below kv."""
    parts = path.split("/")
    blocks = blocks_in(parts[-1])
    if len(parts) != 3 or blocks is None or not all(map(is_ref, parts[:2])):
        return None
    return parts[0], parts[1], parts[2], blocks


def _packs(storage: Storage, folder: str, *, every: bool = False) -> Iterator[StoredPack]:
    """The packs in a folder; with ``every`` also what has another name."""
    for item in storage.list(folder):
        name = item.name.rpartition("/")[2]
        blocks = blocks_in(name)
        if blocks is not None or every:
            yield StoredPack(name, blocks or 0, item.size_bytes)


def _folders(storage: Storage, folder: str) -> list[str]:
    """The references that name folders there; nothing of ours is in others."""
    found, _ = storage.entries(folder)
    return [name for path in found if is_ref(name := path.rstrip("/").rpartition("/")[2])]
