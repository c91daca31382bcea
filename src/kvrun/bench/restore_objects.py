"""A session's packs in Storage, read by a store that has just been started or by obstore alone."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kvrun.bench.disk_read import drop_from_cache
from kvrun.bench.sealed_session import SealedSession, memory_for
from kvrun.cache.fetching import SPAN_BYTES
from kvrun.cache.memory import MemoryTier
from kvrun.cache.object_tier import ObjectSettings, ObjectTier
from kvrun.cache.state import BlockOwner
from kvrun.cache.store import CacheStore
from kvrun.storage import Storage, open_storage

_PATIENCE_S = 60.0


class ObjectRig:
    """Packs of one session below a name of their own at ``url``."""

    def __init__(self, url: str, options: Mapping[str, str], sealed: SealedSession) -> None:
        self._storage = open_storage(url, options)
        self._folder = Path(url.removeprefix("file://")) if url.startswith("file:///") else None
        self._prefix = f"kvrun-bench-{secrets.token_hex(8)}"
        self._sealed = sealed
        self._settings = ObjectSettings(
            load_wait_s=_PATIENCE_S,
            fetch_wait_s=_PATIENCE_S,
            queue_bytes=2 * sealed.total_bytes,
            fetch_bytes=2 * sealed.total_bytes,
        )
        self._parts: list[tuple[str, int, int]] = []
        self.readers = self._settings.threads
        self.where = f"Storage at {'a local folder' if self._folder else url}"

    @contextmanager
    def written(self) -> Iterator[None]:
        """The packs are there for as long as the context lasts."""
        sealed, store = self._sealed, self._store(self._memory())
        try:
            session = store.session("tenant", "session", epoch=1, packs=sealed)
            for number, name in enumerate(sealed.names):
                reservation = session.reserve(name, sealed.sealed_bytes)
                assert reservation is not None
                sealed.seal_into(number, reservation.view)
                reservation.commit()
                store.work()
            store.close()
            packs = list(self._storage.list(self._prefix))
            self._parts = [part for pack in packs for part in self._parts_of(pack.name)]
            yield
        finally:
            for item in list(self._storage.list(self._prefix)):
                self._storage.delete(item.name)

    def restore(self) -> float:
        """Bytes a second until every block of the session is open.

        The memory tier is ready, as a daemon's is a few seconds after its start.
        """
        self._forget()
        memory = self._memory()
        while memory.make_ready():
            pass
        began = time.perf_counter()
        store = self._store(memory)
        session = store.session("tenant", "session", epoch=1, packs=self._sealed)
        session.prefetch(self._sealed.names)
        self._sealed.open_all(session)
        taken = time.perf_counter() - began
        store.close()
        return self._sealed.total_bytes / taken

    def read_raw(self) -> float:
        """Bytes a second of obstore's range requests of the same parts, as many at a time."""
        self._forget()
        began = time.perf_counter()
        with ThreadPoolExecutor(self.readers) as pool:
            done = sum(pool.map(self._get_range, self._parts))
        return done / (time.perf_counter() - began)

    def read_kept(self) -> float:
        """The same with every part kept until the last is there, as a restore has to."""
        self._forget()
        began = time.perf_counter()
        with ThreadPoolExecutor(self.readers) as pool:
            kept = list(pool.map(self._get_part, self._parts))
        return sum(map(len, kept)) / (time.perf_counter() - began)

    def _get_range(self, part: tuple[str, int, int]) -> int:
        return len(self._get_part(part))

    def _get_part(self, part: tuple[str, int, int]) -> memoryview:
        # Not a folder's own way.
        return Storage.get_part(self._storage, *part)

    def _memory(self) -> MemoryTier[BlockOwner]:
        """Four times the blocks: a quarter may wait for Storage, and a quarter is ready."""
        return memory_for(self._sealed, 4)

    def _store(self, memory: MemoryTier[BlockOwner]) -> CacheStore:
        store = CacheStore(
            memory=memory,
            disk=None,
            objects=ObjectTier(self._storage, self._storage, self._prefix, settings=self._settings),
            on_event=lambda event: None,
            background=False,
        )
        store.carve(self._sealed.sealed_bytes)
        return store

    def _parts_of(self, pack: str) -> Iterator[tuple[str, int, int]]:
        """Where blocks are in a pack, as many together as the tier asks for in one request."""
        size, blocks = self._sealed.sealed_bytes, int(pack.rpartition("-")[2].split(".")[0])
        together = max(1, SPAN_BYTES // size)
        for first in itertools.count(0, together):
            count = min(together, blocks - first)
            if count <= 0:
                return
            yield pack, first * size, count * size

    def _forget(self) -> None:
        if self._folder is not None:
            drop_from_cache(path for path in self._folder.rglob("*.kvp") if path.is_file())
