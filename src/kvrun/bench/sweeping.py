"""How long a stricter policy takes to have misplaced blocks taken away, and what requests notice of
it: real files, small ones."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvrun.bench.paired import measure_pairs
from kvrun.cache.disk import DiskTier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.session import CacheSession
from kvrun.cache.store import CacheStore
from kvrun.instance.handles import Handle
from kvrun.instance.residency import Standing
from kvrun.instance.sweeping import Pacer, Sweep
from kvrun.policy.compile import BUILTIN_PLACEMENT, Placement, closed_table
from kvrun.policy.matching import InstanceFacts
from kvrun.seal import KEY_BYTES, SALT_BYTES, BlockSealer, sealed_size

OPENED_BLOCKS = 250
OPENED_BYTES = 128 << 10
MATCHED_NAMES = 512
_CELL_BYTES = 64
_SESSIONS = 100
REQUESTS = 3
_SETTLE_S = 0.5
"""Within this time a sweep that is to stand still does: files that go together are fewer."""
_LEAD_S = 0.05
"""So long a sweep goes on before a request comes: files are being removed by then."""
_ENOUGH_BLOCKS = 250_000
_ASKING = "a" * 32
_STRICT = closed_table(InstanceFacts(), {})
_DENIED = Placement(_STRICT.revision, _STRICT.default)


def seconds_to_sweep(blocks: int, rest: float) -> float:
    """Seconds in which one pass takes ``blocks`` blocks away, each in memory and on disk.

    Its waits, for ``rest`` of the time that it works, as the daemon's does, are included.
    """
    with _filled(blocks) as store:
        sweep = Sweep(_Instance(store), Pacer(rest))
        began = time.perf_counter()
        taken = sweep.run()
        took = time.perf_counter() - began
        assert taken == 2 * blocks
    return took


@dataclass(frozen=True, slots=True)
class Beside:
    """Pairs of milliseconds a request of another tenant takes, beside a sweep and without one, and
    the seconds in which the sweep takes a million blocks away where such requests come one after
    the other; of each of those the milliseconds too."""

    pairs: list[tuple[float, float]]
    million_s: float | None
    meanwhile_ms: list[float]


def requests_beside_a_sweep(blocks: int, rest: float, pairs: int) -> Beside:
    """Requests in pairs; fewer than asked for where the sweep was through before. What is left is
    swept while requests come."""
    with _filled(min(blocks, _ENOUGH_BLOCKS)) as store:
        session = store.session(_ASKING, "0" * 32, epoch=1)
        request = _Request(session)
        going, ended = threading.Event(), threading.Event()
        pace = Pacer(rest, asked=lambda: store.asked)

        def pause() -> None:
            pace()
            going.wait()

        sweep = Sweep(_Instance(store), pause)

        def work() -> None:
            sweep.run()
            ended.set()

        def beside() -> float:
            going.set()
            time.sleep(_LEAD_S)
            taken = request.milliseconds()
            going.clear()
            time.sleep(_SETTLE_S)
            if not ended.is_set():
                return taken
            raise _ThroughError

        measured: list[tuple[float, float]] = []
        thread = threading.Thread(target=work, name="kvrun-bench-sweep")
        thread.start()
        time.sleep(_SETTLE_S)
        try:
            for _ in range(pairs):
                measured += measure_pairs(beside, request.milliseconds, 1)
        except _ThroughError:
            pass
        left, meanwhile, began = store.levels().disk_blocks, [], time.perf_counter()
        going.set()
        while not ended.is_set():
            meanwhile.append(request.milliseconds())
        took = time.perf_counter() - began
        thread.join()
        return Beside(measured, took / left * 1e6 if meanwhile and left else None, meanwhile)


def unlink_us(files: int = 2000) -> float:
    """Microseconds to unlink a small file that was written back to the device, as blocks are that
    are on disk for long: what the file system takes to free it."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/{number}" for number in range(files)]
        for name in names:
            Path(name).write_bytes(bytes(_CELL_BYTES))
        os.sync()
        began = time.perf_counter()
        for name in names:
            os.unlink(name)  # noqa: PTH108 - as the disk tier does
        return (time.perf_counter() - began) / files * 1e6


class _ThroughError(Exception):
    """The sweep ended, so that nothing can be measured beside it."""


@dataclass
class _Request:
    """What a request of a warm session asks of the daemon: a look-up, and blocks opened."""

    session: CacheSession

    def __post_init__(self) -> None:
        self._names = [number.to_bytes(16, "big") for number in range(MATCHED_NAMES)]
        for name in self._names:
            _store(self.session, name)
        self._sealer = BlockSealer(bytearray(os.urandom(KEY_BYTES)), generation=1)
        self._sealed = bytearray(sealed_size(OPENED_BYTES))
        self._out = bytearray(OPENED_BYTES)
        salt = os.urandom(SALT_BYTES)
        self._sealer.seal_into(b"bench", bytes(OPENED_BYTES), self._sealed, salt=salt)

    def milliseconds(self) -> float:
        """Of one request; the mean of several in a row."""
        began = time.perf_counter()
        for _ in range(REQUESTS):
            self.session.match(self._names)
            for name in self._names[:OPENED_BLOCKS]:
                with self.session.read(name) as found:
                    assert found is not None
                    self._sealer.open_into(b"bench", self._sealed, self._out)
        return (time.perf_counter() - began) / REQUESTS * 1e3


@contextmanager
def _filled(blocks: int) -> Iterator[CacheStore]:
    """A store with so many blocks of tenants who may not have them, in memory and on disk."""
    with tempfile.TemporaryDirectory() as folder:
        room = (2 * blocks + 2 * MATCHED_NAMES) * _CELL_BYTES
        memory = MemoryTier[Any](max(4096, room), lock=False)
        disk = DiskTier(Path(folder) / "cache", max_bytes=2**50)
        store = CacheStore(memory=memory, disk=disk, on_event=lambda _: None, background=False)
        store.carve(_CELL_BYTES)
        for number in range(blocks):
            session = store.session(f"{number % _SESSIONS:032x}", "0" * 32, epoch=1)
            _store(session, number.to_bytes(16, "big"))
            if number % 1000 == 999:
                store.flush()
        store.flush()
        try:
            yield store
        finally:
            store.close()


def _store(session: CacheSession, name: bytes) -> None:
    reservation = session.reserve(name, _CELL_BYTES)
    assert reservation is not None
    reservation.commit()


class _Decisions:
    """A policy that has a place for nobody but the tenant who asks."""

    revision = _STRICT.revision
    standing = Standing.ACTIVE

    def placement(self, tenant_ref: str) -> Placement:
        return BUILTIN_PLACEMENT if tenant_ref == _ASKING else _DENIED


@dataclass(frozen=True)
class _Instance:
    """What a sweep needs of one; no request holds blocks while it goes on."""

    cache: CacheStore
    residency: _Decisions = field(default_factory=_Decisions)
    handles: tuple[Handle, ...] = ()


def longest_wait_ms(
    ask: Callable[[], object],
    work: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, int]:
    """The longest time in ms between two answers of ``ask`` while ``work`` runs beside it, and how
    many answers there were. ``clock`` in seconds."""
    done = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            done.set()

    thread = threading.Thread(target=run, name="kvrun-bench-activation")
    thread.start()
    longest, count, last = 0.0, 0, clock()
    while not done.is_set():
        ask()
        now = clock()
        longest, count, last = max(longest, now - last), count + 1, now
    thread.join()
    return longest * 1e3, count
