"""``kvrun bench keys``: how long a request waits for its session's keys, and an erasure for a
rotation."""

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
from kvrun.keys.keyring import Keyring
from kvrun.keys.limits import KeyLimits
from kvrun.keys.ring_store import TABLE_SLOTS
from kvrun.keys.service import KeyService
from kvrun.keys.slots import OsSlotIO

_FIRST_USE_GOAL = Goal(2.0, at_most=True)
_ROTATION_GOAL = Goal(2000.0, at_most=True)
_FIRST_USES = 500
_ERASURES = 21
_SESSIONS_OF_A_TENANT = 10
_EVERYWHERE = "everywhere"


def run_keys_bench(sessions: int = 100_000) -> Report:
    """Make the keys of some sessions and ask for them again; erase among ``sessions``."""
    with tempfile.TemporaryDirectory(prefix="kvrun-bench-") as name:
        rows = [*_first_uses(Path(name) / "few"), *_rotations(Path(name) / "many", sessions)]
    return Report(
        bench="keys", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


def _first_uses(folder: Path) -> list[Row]:
    service = _open(folder)
    try:
        first = _milliseconds(service.acquire, _FIRST_USES)
        again = _milliseconds(service.acquire, _FIRST_USES)
    finally:
        service.close()
    return [
        Row(
            metric="keys of a new session, p50",
            value=statistics.median(first),
            unit="ms",
            against=f"{_FIRST_USES} sessions of one tenant each, durable before it returns; "
            f"p99 {statistics.quantiles(first, n=100)[98]:.2f} ms",
            goal=str(_FIRST_USE_GOAL),
            met=_FIRST_USE_GOAL.holds(statistics.median(first)),
        ),
        Row(metric="keys of a live session, p50", value=statistics.median(again), unit="ms"),
    ]


def _rotations(folder: Path, sessions: int) -> list[Row]:
    _fill(folder, sessions)
    began = time.perf_counter()
    service = _open(folder)
    started = time.perf_counter() - began
    try:
        times = []
        for number in range(min(_ERASURES, sessions)):
            began = time.perf_counter()
            service.destroy_session(*_name(number * sessions // _ERASURES))
            times.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        service.destroy_tenant(_EVERYWHERE)
        everything = (time.perf_counter() - began) * 1e3
    finally:
        service.close()
    among = f"among {sessions} sessions of {-(-sessions // _SESSIONS_OF_A_TENANT)} tenants"
    return [
        Row(
            metric="destroying one session's keys, p50",
            value=statistics.median(times),
            unit="ms",
            against=f"{among}, new epoch included; slowest of {len(times)}: {max(times):.0f} ms",
            goal=str(_ROTATION_GOAL),
            met=_ROTATION_GOAL.holds(statistics.median(times)),
        ),
        Row(
            metric="destroying a tenant that reaches every table of slot keys",
            value=everything,
            unit="ms",
            against=f"{among}: the keys of all slots are wrapped again, as at each erasure; once",
            goal=str(_ROTATION_GOAL),
            met=_ROTATION_GOAL.holds(everything),
        ),
        Row(metric="opening the key folder", value=started, unit="s", against=among),
    ]


class _Unsynced(OsSlotIO):
    """For filling a folder that nobody will miss."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""


def _fill(folder: Path, sessions: int) -> None:
    root = FileRoot(folder / "root")
    ring = Keyring(
        folder / "keys", root, workspace="bench", deployment="bench", now=time.time, io=_Unsynced()
    )
    for number in range(sessions):
        ring.create(*_name(number), time.time())
        if number % (TABLE_SLOTS // 2) == 0:
            ring.create(_EVERYWHERE, f"s{number}", time.time())
    ring.store.slots.sync()
    ring.close()
    root.close()


def _name(number: int) -> tuple[str, str]:
    return f"tenant-{number // _SESSIONS_OF_A_TENANT}", f"session-{number}"


def _open(folder: Path) -> KeyService:
    return KeyService.open(
        folder / "keys",
        FileRoot(folder / "root"),
        workspace="bench",
        deployment="bench",
        limits=KeyLimits(max_sessions_per_tenant=None, max_sessions=None),
        now=time.time,
    )


def _milliseconds(acquire: Callable[[str, str], object], sessions: int) -> list[float]:
    times = []
    for number in range(sessions):
        began = time.perf_counter()
        acquire(f"tenant-{number}", "default")
        times.append((time.perf_counter() - began) * 1e3)
    return times
