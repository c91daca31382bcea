"""``kvrun bench keys``: how long a request waits for its session's keys."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal
from kvrun.bench.report import Report, Row
from kvrun.keys.file_root import FileRoot
from kvrun.keys.service import KeyLimits, KeyService

_FIRST_USE_GOAL = Goal(2.0, at_most=True)


def run_keys_bench(sessions: int = 500) -> Report:
    """Make the keys of ``sessions`` sessions one after the other, then ask for them again."""
    with tempfile.TemporaryDirectory(prefix="kvrun-bench-") as name:
        service = KeyService.open(
            Path(name) / "keys",
            FileRoot(Path(name) / "root"),
            workspace="bench",
            deployment="bench",
            limits=KeyLimits(),
            now=time.time,
        )
        try:
            first = _milliseconds(service.acquire, sessions)
            again = _milliseconds(service.acquire, sessions)
        finally:
            service.close()
    rows = (
        Row(
            metric="keys of a new session, p50",
            value=statistics.median(first),
            unit="ms",
            against=f"{sessions} sessions of one tenant each, durable before it returns; "
            f"p99 {statistics.quantiles(first, n=100)[98]:.2f} ms",
            goal=str(_FIRST_USE_GOAL),
            met=_FIRST_USE_GOAL.holds(statistics.median(first)),
        ),
        Row(metric="keys of a live session, p50", value=statistics.median(again), unit="ms"),
    )
    return Report(bench="keys", machine=describe_machine(), commit=describe_commit(), rows=rows)


def _milliseconds(acquire: Callable[[str, str], object], sessions: int) -> list[float]:
    times = []
    for number in range(sessions):
        began = time.perf_counter()
        acquire(f"tenant-{number}", "default")
        times.append((time.perf_counter() - began) * 1e3)
    return times
