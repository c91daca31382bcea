"""Bringing blocks from Storage into memory: ahead of their use, neighbours in one request.

A few threads read; whoever needs a block waits for it for a bounded time, and past that it is a
miss. What came is copied at once into a cell that has its memory. Else it is opened out of the
buffer that it came in until a cell holds it: one thread copies it there, when nothing is being read
and nobody asked for a moment, or much waits, because memory that was never used before takes more
time than the copy. A store that brought nothing meanwhile is left alone for a while.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from kvrun.cache.object_tier import ObjectTier
from kvrun.cache.sessionpacks import SessionPacks
from kvrun.errors import KvrunError

SPAN_BYTES = 8 * 2**20
"""Neighbouring blocks come in one request up to this."""
_OPENERS = 4
_PAUSE_S = 0.02
_log = logging.getLogger(__name__)
_Loose = dict[bytes, memoryview]


class FetchTarget(Protocol):
    """The session that blocks are fetched for."""

    @property
    def packs(self) -> SessionPacks | None:
        """Its packs."""

    def packed_only_locked(self, names: Iterable[bytes]) -> list[tuple[bytes, int]]:
        """(name, place in packs) of those blocks that are nowhere but in packs."""

    def memory_is_ready(self) -> bool:
        """Whether a copy into memory takes no longer than a copy."""

    def keep_fetched(self, name: bytes, packed: int, data: memoryview) -> bool:
        """Put a block into memory; False where it found no room or is not wanted any more."""

    def note_fetched(self, blocks: int) -> None:
        """So many blocks came from Storage."""

    def forget_taken(self, names: Iterable[bytes]) -> None:
        """These blocks are not handed out of the buffer that they came in any more."""

    def following(self, names: Sequence[bytes], limit_bytes: int) -> list[tuple[bytes, int]]:
        """(name, place in packs) of what was packed after these, as much as is worth fetching."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Neighbouring blocks of one pack: (name, place, size) each, and where the first begins."""

    pack: str
    start: int
    blocks: tuple[tuple[bytes, int, int], ...]

    @property
    def size(self) -> int:
        return sum(block[2] for block in self.blocks)


class Fetcher:
    """Fetches for all sessions of a store. ``lock`` is the index lock. Thread-safe."""

    def __init__(
        self, tier: ObjectTier, lock: threading.Lock, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._tier = tier
        self._index_lock = lock
        self._now = now
        self._openers = ThreadPoolExecutor(_OPENERS, thread_name_prefix="kvrun-object-open")
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="kvrun-object-keep")
        self._lock = threading.Lock()
        self._may_keep = threading.Condition(self._lock)
        self._reading = 0
        self._copying = 0
        # How often somebody asked for a block, and how often when nobody did for a moment.
        self._asked = 0
        self._paused_at = 0
        self._closed = False
        self._opening: set[SessionPacks] = set()
        self._under_way: dict[tuple[int, bytes], Future[_Loose]] = {}
        self._bytes = 0
        self._progress_at = 0.0

    def open(self, packs: SessionPacks) -> None:
        """Looks for a session's packs in the background, where that is due."""
        if not packs.due():
            return
        with self._lock:
            if packs in self._opening:
                return
            self._opening.add(packs)
        try:
            self._openers.submit(self._load, packs)
        except RuntimeError:  # the store is being closed
            self._opening.discard(packs)

    def prefetch(self, session: FetchTarget, names: Sequence[bytes]) -> None:
        """Begins to bring blocks into memory, as many as ``fetch_bytes`` allow at a time."""
        packs = session.packs
        if packs is None or not self._tier.accepts():
            return
        for span in self._wanted(session, packs, names):
            self._begin(session, packs, span, ahead=True)

    def follow(self, session: FetchTarget, names: Sequence[bytes]) -> None:
        """Begins to bring what was packed after these blocks, within ``ahead_bytes``."""
        with contextlib.suppress(RuntimeError):  # the store is being closed
            self._openers.submit(self._follow, session, names)

    def wait(self, session: FetchTarget, name: bytes) -> _Loose:
        """Waits until a block came; the answer has its bytes, which a cell may not hold yet."""
        packs = session.packs
        if packs is None or not self._tier.accepts():
            return {}
        for span in self._wanted(session, packs, [name]):
            self._begin(session, packs, span, ahead=False)
        future = self._under_way.get((id(session), name))
        if future is None:
            return {}
        with self._lock:
            self._asked += 1
        began = self._now()
        try:
            return future.result(self._tier.settings.fetch_wait_s)
        except TimeoutError:
            if self._progress_at < began:
                self._tier.turn_off("a block did not come in time")
            return {}

    def close(self) -> None:
        """Ends the threads; what is under way is left. Nothing is copied into memory any more."""
        with self._lock:
            self._closed = True
            self._may_keep.notify_all()
            while self._copying:
                self._may_keep.wait()
        self._openers.shutdown(wait=False, cancel_futures=True)
        self._keeper.shutdown(wait=True, cancel_futures=True)
        self._tier.close()

    def _load(self, packs: SessionPacks) -> None:
        try:
            packs.load()
        except KvrunError as error:
            _log.info("a session's packs are not known yet: %s", error.message)
        except Exception:
            _log.exception("a session's packs are not known")
        finally:
            with self._lock:
                self._opening.discard(packs)

    def _follow(self, session: FetchTarget, names: Sequence[bytes]) -> None:
        try:
            after = session.following(names, self._tier.settings.ahead_bytes)
            self.prefetch(session, [name for name, _ in after])
        except Exception:
            _log.exception("what follows some blocks was not fetched")

    def _wanted(
        self, session: FetchTarget, packs: SessionPacks, names: Sequence[bytes]
    ) -> list[_Span]:
        under_way = self._under_way
        with self._index_lock:
            found = [
                item
                for item in session.packed_only_locked(names)
                if (id(session), item[0]) not in under_way
            ]
            return list(_spans(packs, found))

    def _begin(
        self, session: FetchTarget, packs: SessionPacks, span: _Span, *, ahead: bool
    ) -> None:
        future: Future[_Loose] = Future()
        limit = self._tier.settings.fetch_bytes if ahead else float("inf")
        with self._lock:
            twice = any((id(session), block[0]) in self._under_way for block in span.blocks)
            if twice or (self._bytes and self._bytes + span.size > limit):
                return
            self._bytes += span.size
            self._reading += 1
            self._under_way |= {(id(session), block[0]): future for block in span.blocks}
        try:
            self._tier.readers.submit(self._fetch, session, packs, span, future)
        except RuntimeError:  # the store is being closed
            self._came()
            self._end(session, span, future)

    def _fetch(
        self, session: FetchTarget, packs: SessionPacks, span: _Span, future: Future[_Loose]
    ) -> None:
        came: _Loose = {}
        try:
            data, at = packs.read(span.pack, span.start, span.size), 0
            self._progress_at = self._now()
            session.note_fetched(len(span.blocks))
            for name, packed, size in span.blocks:
                block = data[at : at + size]
                at += size
                if not (session.memory_is_ready() and self._copy(session, name, packed, block)):
                    came[name] = block
            future.set_result(came)
        except KvrunError as error:
            _log.info("blocks were not fetched: %s", error.message)
        except Exception:
            _log.exception("blocks were not fetched")
        self._came()
        if came and future.done():
            with contextlib.suppress(RuntimeError):  # the store is being closed
                self._keeper.submit(self._keep, session, span, future)
                return
        self._end(session, span, future)

    def _copy(self, session: FetchTarget, name: bytes, packed: int, data: memoryview) -> bool:
        """Put a block into memory, which stays until that is done; False once this is closed."""
        with self._lock:
            if self._closed:
                return False
            self._copying += 1
        try:
            return session.keep_fetched(name, packed, data)
        finally:
            with self._lock:
                self._copying -= 1
                self._may_keep.notify_all()

    def _came(self) -> None:
        with self._lock:
            self._reading -= 1
            self._may_keep.notify_all()

    def _keep(self, session: FetchTarget, span: _Span, future: Future[_Loose]) -> None:
        """Copies what is in no cell yet into cells, for those who come later."""
        came = future.result()
        self._wait_for_a_pause()
        try:
            if not self._closed:
                for name, packed, _ in span.blocks:
                    if name in came:
                        session.keep_fetched(name, packed, came[name])
                session.forget_taken(came)
        except Exception:
            _log.exception("blocks that were fetched were not kept")
        finally:
            self._end(session, span, future)

    def _wait_for_a_pause(self) -> None:
        much = self._tier.settings.fetch_bytes // 2
        with self._may_keep:
            while self._bytes <= much and not self._closed:
                if not self._reading and self._asked == self._paused_at:
                    return
                asked = self._asked
                changed = self._may_keep.wait(None if self._reading else _PAUSE_S)
                if not changed and not self._reading and asked == self._asked:
                    self._paused_at = asked

    def _end(self, session: FetchTarget, span: _Span, future: Future[_Loose]) -> None:
        with self._lock:
            self._bytes -= span.size
            for name, _, _ in span.blocks:
                self._under_way.pop((id(session), name), None)
        if not future.done():
            future.set_result({})


def _spans(packs: SessionPacks, found: list[tuple[bytes, int]]) -> Iterator[_Span]:
    """Neighbours together, in the order of the packs. The index lock is held."""
    blocks: list[tuple[bytes, int, int]] = []
    size = 0
    for name, packed in sorted(found, key=lambda item: item[1]):
        block = (name, packed, packs.table.size(packed))
        follows = blocks and packed == blocks[-1][1] + 1
        if blocks and (not follows or size + block[2] > SPAN_BYTES):
            yield from _span(packs, blocks)
            blocks, size = [], 0
        blocks.append(block)
        size += block[2]
    if blocks:
        yield from _span(packs, blocks)


def _span(packs: SessionPacks, blocks: list[tuple[bytes, int, int]]) -> Iterator[_Span]:
    place = packs.table.find(blocks[0][1])
    if place is not None:
        pack, entry = place
        yield _Span(pack.name, pack.span(entry)[0], tuple(blocks))
