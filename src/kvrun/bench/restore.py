"""``kvrun bench restore``: how fast a session comes back after a restart.

Sealed blocks are written by the disk tier, dropped from the system's cache, and read by a store
that has just been started: index, file, memory tier and decryption, with as many threads as a
daemon has. The baseline reads a file of the same size from the same disk in one go, as fio's
sequential read does. Both take turns.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import MIN_PAIRS, Comparison, Goal, compare_pairs, measure_pairs
from kvrun.bench.report import Report, Row, ratio_row
from kvrun.cache.disk import DiskTier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.session import NAME_BYTES
from kvrun.cache.state import BlockOwner
from kvrun.cache.store import CacheStore
from kvrun.seal import (
    KEY_BYTES,
    SALT_BYTES,
    BlockIdentity,
    BlockSealer,
    ContextEncoder,
    SessionContext,
    sealed_size,
)

_DISK_GOAL = Goal(0.7)
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RestoreBenchSettings:
    """``blocks`` blocks of ``block_bytes`` of one session, in ``folder`` (None: a temporary one).

    ``threads`` open blocks at the same time.
    """

    blocks: int = 256
    block_bytes: int = 4 << 20
    threads: int = 2
    pairs: int = 9
    folder: Path | None = None


def run_restore_bench(
    settings: RestoreBenchSettings, say: Callable[[str], None] = lambda text: None
) -> Report:
    """Write, then restore and read in turns. Needs twice the blocks' size on disk."""
    rng = random.Random(0)  # noqa: S311 - draws bootstrap samples
    with tempfile.TemporaryDirectory(prefix="kvrun-bench-", dir=settings.folder) as folder:
        say("writing sealed blocks")
        rig = _Rig(Path(folder), settings)
        rows = []
        with rig.written():
            say("restoring")
            pairs = measure_pairs(rig.restore, rig.read_raw, max(MIN_PAIRS, settings.pairs))
        result = compare_pairs(pairs, rng=rng)
        if isinstance(result, Comparison):
            rows.append(_speed_row("restored from the disk tier", result.candidate, settings))
            rows.append(_speed_row("sequential read of the same disk", result.baseline, settings))
        rows.append(
            ratio_row(
                "restore after a restart, disk tier",
                result,
                unit="x",
                against="a sequential read of the same disk, neither from the system's cache",
                goal=_DISK_GOAL,
            )
        )
    return Report(
        bench="restore", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


class _Rig:
    """One session's sealed blocks in a folder, and a file beside it."""

    def __init__(self, folder: Path, settings: RestoreBenchSettings) -> None:
        self._root = folder / "cache"
        self._raw = folder / "raw"
        self._settings = settings
        self._sealer = BlockSealer(bytearray(os.urandom(KEY_BYTES)), generation=1)
        session = SessionContext("bench", "bench", "tenant", "session", bytes(32), 1)
        self._encoder = ContextEncoder(session)
        self._names = [n.to_bytes(NAME_BYTES, "big") for n in range(settings.blocks)]
        self._out = [bytearray(settings.block_bytes) for _ in range(settings.threads)]

    @contextmanager
    def written(self) -> Iterator[None]:
        size = sealed_size(self._settings.block_bytes)
        plain = os.urandom(self._settings.block_bytes)
        sealed = memoryview(bytearray(size))
        disk = DiskTier(self._root, max_bytes=2**50)
        session, _ = disk.open_session("tenant", "session", lambda deleted: None)
        with self._raw.open("wb") as raw:
            for number, name in enumerate(self._names):
                salt = os.urandom(SALT_BYTES)
                self._sealer.seal_into(self._context(number), plain, sealed, salt=salt)
                disk.write(session, name, sealed)
                raw.write(sealed)
        disk.close()
        yield

    def restore(self) -> float:
        """Bytes a second until every block of the session is open."""
        self._forget()
        size = sealed_size(self._settings.block_bytes)
        began = time.perf_counter()
        memory = MemoryTier[BlockOwner]((size + 64) * self._settings.blocks, lock=False)
        store = CacheStore(
            memory=memory,
            disk=DiskTier(self._root, max_bytes=2**50),
            on_event=lambda event: None,
            background=False,
        )
        store.carve(size)
        session = store.session("tenant", "session", epoch=1)

        def open_share(thread: int) -> None:
            for number in range(thread, self._settings.blocks, self._settings.threads):
                with session.read(self._names[number]) as block:
                    assert block is not None
                    context = self._context(number)
                    self._sealer.open_into(context, block.view, self._out[thread])

        with ThreadPoolExecutor(self._settings.threads) as pool:
            list(pool.map(open_share, range(self._settings.threads)))
        taken = time.perf_counter() - began
        store.close()
        return self._settings.blocks * size / taken

    def read_raw(self) -> float:
        """Bytes a second of one sequential read."""
        self._forget()
        buffer = bytearray(_READ_BYTES)
        began = time.perf_counter()
        done = 0
        with self._raw.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                done += count
        return done / (time.perf_counter() - began)

    def _context(self, number: int) -> bytes:
        return self._encoder.encode(
            BlockIdentity(number.to_bytes(32, "big"), 0, 0, 1, "0-27", number * 256, 256)
        )

    def _forget(self) -> None:
        """What was written is durable and in no cache of this system."""
        _drop_from_cache([self._raw, *self._root.rglob("*.kvs")])


def _drop_from_cache(files: Sequence[Path]) -> None:
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _speed_row(metric: str, bytes_s: float, settings: RestoreBenchSettings) -> Row:
    what = f"{settings.blocks} blocks of {settings.block_bytes / 2**20:g} MiB"
    return Row(
        metric=metric,
        value=bytes_s / 1e6,
        unit="MB/s",
        against=f"median; {what}, {settings.threads} threads",
    )
