"""``kvrun bench restore``: how fast a session comes back after a restart, from disk and Storage.

Sealed blocks are written by the tier, dropped from the system's cache, and read by a store that has
just been started: index, file or pack, memory tier and decryption, with as many threads as a daemon
has. From disk that is held against fio's sequential read of a file of the same size, from Storage
against obstore's range requests alone, of the same parts and as many at a time. Both take turns.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvrun.bench.disk_read import disk_reader, drop_from_cache
from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import (
    MIN_PAIRS,
    Comparison,
    Goal,
    Refusal,
    compare_pairs,
    measure_pairs,
)
from kvrun.bench.report import Report, Row, ratio_row
from kvrun.bench.restore_objects import ObjectRig
from kvrun.bench.sealed_session import SealedSession, memory_for
from kvrun.cache.disk import DiskTier
from kvrun.cache.store import CacheStore

_DISK_GOAL = Goal(0.7)
_OBJECT_GOAL = Goal(0.8)
_ALONE = 5


@dataclass(frozen=True, slots=True)
class RestoreBenchSettings:
    """``blocks`` blocks of ``block_bytes`` of one session, in ``folder`` (None: a temporary one).

    ``threads`` open blocks at the same time. Packs go to the Storage at ``objects``, with
    ``options``; None is a folder beside the blocks.
    """

    blocks: int = 256
    block_bytes: int = 4 << 20
    threads: int = 2
    pairs: int = 9
    folder: Path | None = None
    objects: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def run_restore_bench(
    settings: RestoreBenchSettings, say: Callable[[str], None] = lambda text: None
) -> Report:
    """Write, then restore and read in turns. Needs three times the blocks' size on disk."""
    rng = random.Random(0)  # noqa: S311 - draws bootstrap samples
    pairs = max(MIN_PAIRS, settings.pairs)
    sealed = SealedSession(settings.blocks, settings.block_bytes, settings.threads)
    with tempfile.TemporaryDirectory(prefix="kvrun-bench-", dir=settings.folder) as folder:
        say("writing sealed blocks")
        disk = _DiskRig(Path(folder), sealed)
        say("restoring from disk")
        fio = compare_pairs(measure_pairs(disk.restore, disk.read_raw, pairs), rng=rng)
        say("restoring through the system's cache")
        cached = compare_pairs(measure_pairs(disk.restore, disk.restore_cached, pairs), rng=rng)
        files = [disk.read_files() for _ in range(_ALONE)]
        opening = [sealed.open_alone() for _ in range(_ALONE)]
        disk.remove()
        say("writing packs")
        objects = ObjectRig(settings.objects or f"file://{folder}/bucket", settings.options, sealed)
        with objects.written():
            say("restoring from Storage")
            raw = compare_pairs(measure_pairs(objects.restore, objects.read_raw, pairs), rng=rng)
            kept = [objects.read_kept() for _ in range(_ALONE)]
    what = f"{settings.blocks} blocks of {settings.block_bytes / 2**20:g} MiB, "
    what += f"{settings.threads} threads"
    rows = [
        *_speeds("restored from the disk tier", disk.reader, fio, what),
        ratio_row(
            "restore after a restart, disk tier",
            fio,
            unit="x",
            against=f"{disk.reader}; neither from the system's cache",
            goal=_DISK_GOAL,
        ),
        ratio_row(
            "the same past the page cache",
            cached,
            unit="x",
            against="against the same through it",
        ),
        _speed("blocks' files read, not opened", statistics.median(files), what),
        _speed("blocks opened out of memory", statistics.median(opening), what),
        *_speeds("restored from Storage", f"obstore's get_range, {objects.where}", raw, what),
        _speed("the same, all parts kept in memory", statistics.median(kept), what),
        ratio_row(
            "restore after a restart, object tier",
            raw,
            unit="x",
            against=f"obstore's get_range of the same parts, {objects.readers} at a time, "
            f"{objects.where}",
            goal=_OBJECT_GOAL,
        ),
    ]
    return Report(
        bench="restore", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


class _DiskRig:
    """One session's sealed blocks in a folder, and a file beside it."""

    def __init__(self, folder: Path, sealed: SealedSession) -> None:
        self._root = folder / "cache"
        self._raw = folder / "raw"
        self._sealed = sealed
        self._read, self.reader = disk_reader(self._raw)
        room = memoryview(bytearray(sealed.sealed_bytes))
        disk = DiskTier(self._root, max_bytes=2**50)
        session, _ = disk.open_session("tenant", "session", lambda deleted: None)
        with self._raw.open("wb") as raw:
            for number, name in enumerate(sealed.names):
                sealed.seal_into(number, room)
                disk.write(session, name, room)
                raw.write(room)
        disk.close()

    def restore(self) -> float:
        """Bytes a second until every block of the session is open."""
        return self._restore(direct=True)

    def restore_cached(self) -> float:
        """The same with files read through the page cache."""
        return self._restore(direct=False)

    def read_raw(self) -> float:
        """Bytes a second of one sequential read."""
        self._forget()
        return self._read()

    def read_files(self) -> float:
        """Bytes a second of reading the blocks into the memory tier, as a restore does."""
        return self._restore(direct=True, opened=False)

    def remove(self) -> None:
        """Makes room on the disk."""
        self._raw.unlink()

    def _restore(self, *, direct: bool, opened: bool = True) -> float:
        self._forget()
        began = time.perf_counter()
        store = CacheStore(
            memory=memory_for(self._sealed),
            disk=DiskTier(self._root, max_bytes=2**50, direct=direct),
            on_event=lambda event: None,
            background=False,
        )
        store.carve(self._sealed.sealed_bytes)
        session = store.session("tenant", "session", epoch=1)
        if opened:
            self._sealed.open_all(session)
        else:
            self._sealed.read_all(session)
        taken = time.perf_counter() - began
        store.close()
        return self._sealed.total_bytes / taken

    def _forget(self) -> None:
        """What was written is durable and in no cache of this system."""
        drop_from_cache([self._raw, *self._root.rglob("*.kvs")])


def _speeds(metric: str, baseline: str, result: Comparison | Refusal, what: str) -> list[Row]:
    if isinstance(result, Refusal):
        return []
    return [_speed(metric, result.candidate, what), _speed(baseline, result.baseline, what)]


def _speed(metric: str, bytes_s: float, what: str) -> Row:
    return Row(metric=metric, value=bytes_s / 1e6, unit="MB/s", against=f"median; {what}")
