"""``kvrun bench index``: what the index of sealed blocks costs in memory and time.

Every size is built in a process of its own, in every tier, without content. Look-ups are batches of
one prompt's names in sessions picked at random, as a request makes them, in the thread's CPU time.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal
from kvrun.bench.report import Report, Row
from kvrun.cache.disk import DiskTier
from kvrun.cache.folder import BlockFolder
from kvrun.cache.measure import filled_store, measure_index_bytes
from kvrun.cache.memory import MemoryTier
from kvrun.cache.session import NAME_BYTES
from kvrun.cache.state import BlockOwner
from kvrun.cache.store import CacheStore

_BYTES_GOAL = Goal(250, at_most=True)
_TOTAL_GOAL = Goal(2.5, at_most=True)
_RATE_GOAL = Goal(200_000)
_FLAT_GOAL = Goal(2, at_most=True)
_USABLE_GOAL = Goal(10, at_most=True)
_GOAL_BLOCKS = 10_000_000
_GOAL_FILES = 1_000_000
_TRACED_BLOCKS = 100_000
_PROMPT_BLOCKS = 64
_BATCHES = 1000
_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class IndexBenchSettings:
    """``blocks``: sizes of the index, smallest first. ``files``: blocks in a folder; 0: none."""

    blocks: tuple[int, ...] = (10_000, 100_000, 1_000_000, _GOAL_BLOCKS)
    files: int = _GOAL_FILES
    blocks_per_session: int = 1000


@dataclass(frozen=True, slots=True)
class _Measured:
    """Growth of the process in bytes, and seconds a look-up of one block."""

    grown_bytes: int
    lookup_s: float


def run_index_bench(
    settings: IndexBenchSettings, say: Callable[[str], None] = lambda text: None
) -> Report:
    """Measure every size, then a folder."""
    traced = min(settings.blocks[-1], _TRACED_BLOCKS)
    say(f"tracing {traced:,} blocks")
    value = measure_index_bytes(traced)
    rows = [
        Row(
            metric="index",
            value=value,
            unit="bytes a block",
            against=f"{traced:,} blocks, each in memory, on disk and in a pack",
            goal=str(_BYTES_GOAL),
            met=_BYTES_GOAL.holds(value),
        )
    ]
    measured = []
    for blocks in settings.blocks:
        say(f"indexing {blocks:,} blocks")
        measured.append(_in_own_process(blocks, settings.blocks_per_session))
        rows.append(_rate_row(blocks, measured[-1]))
    rows.append(_flat_row(settings.blocks, measured))
    rows.append(_total_row(settings.blocks[-1], measured[-1]))
    if settings.files:
        say(f"making {settings.files:,} files")
        rows += _folder_rows(settings)
    return Report(
        bench="index", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


def _in_own_process(blocks: int, blocks_per_session: int) -> _Measured:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_measure, (blocks, blocks_per_session))


def _measure(blocks: int, blocks_per_session: int) -> _Measured:
    sessions = max(1, blocks // blocks_per_session)
    each = blocks // sessions
    before = _resident_bytes()
    with filled_store(sessions, each) as store:
        grown = _resident_bytes() - before
        rng = random.Random(0)  # noqa: S311 - which sessions are asked
        best = float("inf")
        for _ in range(_ROUNDS):
            asked = []
            for _ in range(_BATCHES):
                session = store.session("tenant", f"s{rng.randrange(sessions)}", epoch=1)
                start = rng.randrange(max(1, each - _PROMPT_BLOCKS))
                # New objects, as a request brings them.
                names = [
                    number.to_bytes(NAME_BYTES, "big")
                    for number in range(start, start + min(each, _PROMPT_BLOCKS))
                ]
                asked.append((session, names))
            began = time.thread_time()
            for session, names in asked:
                session.match(names)
            taken = time.thread_time() - began
            best = min(best, taken / sum(len(names) for _, names in asked))
    return _Measured(grown, best)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _rate_row(blocks: int, measured: _Measured) -> Row:
    rate = 1 / measured.lookup_s
    return Row(
        metric=f"look-ups among {blocks:,} blocks",
        value=rate,
        unit="a second",
        against=f"{_PROMPT_BLOCKS} names of a random session at a time, found in every tier and "
        f"made the last used; best of {_ROUNDS} rounds, time of one processor",
        goal=str(_RATE_GOAL),
        met=_RATE_GOAL.holds(rate),
    )


def _flat_row(blocks: Sequence[int], measured: Sequence[_Measured]) -> Row:
    ratio = measured[-1].lookup_s / measured[0].lookup_s
    return Row(
        metric="cost of a look-up, largest against smallest index",
        value=ratio,
        unit="x",
        against=f"{blocks[-1]:,} against {blocks[0]:,} blocks; what is left is the CPU's caches",
        goal=str(_FLAT_GOAL),
        met=_FLAT_GOAL.holds(ratio),
    )


def _total_row(blocks: int, measured: _Measured) -> Row:
    value = measured.grown_bytes / 1e9
    asked = blocks >= _GOAL_BLOCKS
    return Row(
        metric=f"memory for an index of {blocks:,} blocks",
        value=value,
        unit="GB",
        against="growth of the resident set",
        goal=str(_TOTAL_GOAL) if asked else None,
        met=_TOTAL_GOAL.holds(value) if asked else None,
    )


def _folder_rows(settings: IndexBenchSettings) -> list[Row]:
    sessions = max(1, settings.files // settings.blocks_per_session)
    each = settings.files // sessions
    with tempfile.TemporaryDirectory(prefix="kvrun-bench-") as folder:
        root = Path(folder) / "cache"
        _fill(root, sessions, each)
        began = time.perf_counter()
        disk = DiskTier(root, max_bytes=2**50)
        memory = MemoryTier[BlockOwner](1 << 20, lock=False)
        store = CacheStore(memory=memory, disk=disk, on_event=lambda event: None, background=False)
        session = store.session("tenant", "s0", epoch=1)
        found = session.match([bytes(NAME_BYTES)])
        first_s = time.perf_counter() - began
        assert found != b"\0"
        disk.survey()
        usable_s = time.perf_counter() - began
        store.close()
    asked = sessions * each >= _GOAL_FILES
    what = f"a folder of {sessions * each:,} blocks in {sessions:,} sessions, names in the cache"
    return [
        Row(metric="start to first answer", value=first_s, unit="s", against=what),
        Row(
            metric="start to first write",
            value=usable_s,
            unit="s",
            against=f"{what}; every file was counted",
            goal=str(_USABLE_GOAL) if asked else None,
            met=_USABLE_GOAL.holds(usable_s) if asked else None,
        ),
    ]


def _fill(root: Path, sessions: int, each: int) -> None:
    """Files of 4 KiB that take no space: their content is never read."""
    BlockFolder(root).close()
    for number in range(sessions):
        folder = root / "kv" / "tenant" / f"s{number}"
        folder.mkdir(parents=True, mode=0o700)
        for block in range(each):
            with (folder / f"{block:032x}.kvs").open("wb") as file:
                file.truncate(4096)
