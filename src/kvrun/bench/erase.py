"""``kvrun bench erase``: from a request to the signed certificate, in a full deployment.

Every session has its key and its share of the indexed blocks. The sessions that are erased have
real sealed blocks on disk; the others' are in the index only, which is what their number costs.
No engine is connected while they are timed: how long one takes to zero its pages is its own figure.
One more session is erased beside an engine that never answers, and one in a deployment of its own
beside such an engine and a daemon that stands still.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrun.bench.erase_unreachable import erase_unreachable
from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal
from kvrun.bench.report import Report, Row
from kvrun.cache.session import NAME_BYTES
from kvrun.config import KvrunConfig, parse_config
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import ErasureScope
from kvrun.instance.erasures import ErasureRequest, Erasures
from kvrun.instance.instance import Instance
from kvrun.instance.parts import open_erasures, open_parts
from kvrun.instance.scrubbing import SchedulerScrubber

_P50_GOAL = Goal(300.0, at_most=True)
_P99_GOAL = Goal(1000.0, at_most=True)
_SILENT_GOAL = Goal(35_000.0, at_most=True)
# What one erasure asks of the disk beside removing the session's files.
_SYNCS = 19
_PAGE = bytes(4096)
_CELL_BYTES = 64
_REQUESTER = "kvrun bench erase"


@dataclass(frozen=True, slots=True)
class EraseBenchSettings:
    """How full the deployment is, and how many of its sessions are erased one after the other.

    ``engine_deadline_s`` and ``lease_s``: how long an erasure waits for an engine, and for another
    daemon of a key service at most, as a deployment sets it.
    """

    sessions: int = 10_000
    blocks: int = 1_000_000
    erasures: int = 100
    engine_deadline_s: int = 30
    lease_s: int = 30
    folder: Path | None = None


def run_erase_bench(
    settings: EraseBenchSettings | None = None, say: Callable[[str], None] = lambda _: None
) -> Report:
    """Fill a deployment in a temporary folder, then erase sessions. Takes some minutes."""
    settings = settings or EraseBenchSettings()
    erasures = min(settings.erasures, settings.sessions)
    with tempfile.TemporaryDirectory(dir=settings.folder, prefix="kvrun-bench-") as name:
        config = _config(Path(name), settings)
        engines = SchedulerScrubber(deadline_s=config.erasure.engine_deadline_s)
        with (
            open_parts(config) as parts,
            open_erasures(config, parts, None, engines) as running,
        ):
            _fill(parts.instance, settings, erasures + 1, say)
            times = []
            for number in range(erasures):
                say(f"erasing {number + 1} of {erasures}")
                times.append(_timed(running, number))
            silent = None
            if settings.sessions > erasures:
                say("erasing beside an engine that does not answer")
                engines.listening = True
                engines.connected(
                    "silent", pid=os.getpid(), software="silent", scrubs=True, send=lambda _: None
                )
                silent = _timed(running, erasures)
            claim = parts.root.claim.value
        say("erasing beside that engine and a daemon that stands still")
        both, done = erase_unreachable(
            Path(name) / "unreachable",
            engine_deadline_s=settings.engine_deadline_s,
            lease_s=settings.lease_s,
        )
        say("measuring the disk alone")
        disk = _disk_alone(Path(name) / "disk", max(1, settings.blocks // settings.sessions))
    return Report(
        bench="erase",
        machine=describe_machine(),
        commit=describe_commit(),
        rows=(
            *_rows(settings, times, disk, claim),
            *_silent_rows(settings, silent),
            _both_row(settings, both, done.unacknowledged),
        ),
    )


def _timed(running: Erasures, number: int) -> float:
    """Erase one tenant's session; milliseconds."""
    scope = ErasureScope(RequestKind.SESSION, _tenant(number), "default")
    began = time.perf_counter()
    running.erase(ErasureRequest(scope, _REQUESTER))
    return (time.perf_counter() - began) * 1e3


def _rows(
    settings: EraseBenchSettings, times: list[float], disk: list[float], claim: str
) -> tuple[Row, ...]:
    p50 = statistics.median(times)
    p99 = statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]
    against = (
        f"{len(times)} erasures among {settings.sessions:,} sessions and {settings.blocks:,} "
        f"indexed blocks, class {claim}; {min(times):.0f} to {max(times):.0f} ms"
    )
    alone = statistics.median(disk)
    return (
        _row("request to signed certificate, p50", p50, _P50_GOAL, against, alone),
        _row("request to signed certificate, p99", p99, _P99_GOAL, against, max(disk)),
        Row(
            metric="disk alone, p50",
            value=alone,
            unit="ms",
            against=f"{_SYNCS} syncs of a page and as many files removed, nothing else done; "
            f"{min(disk):.0f} to {max(disk):.0f} ms",
        ),
    )


def _silent_rows(settings: EraseBenchSettings, silent: float | None) -> tuple[Row, ...]:
    if silent is None:
        return ()
    return (
        Row(
            metric="request to signed certificate, silent engine",
            value=silent,
            unit="ms",
            against="once, an engine never answers: its deadline of "
            f"{settings.engine_deadline_s} s is in it",
            goal=str(_SILENT_GOAL),
            met=_SILENT_GOAL.holds(silent),
        ),
    )


def _both_row(settings: EraseBenchSettings, both: float, named: Sequence[str]) -> Row:
    return Row(
        metric="request to signed certificate, silent engine and stopped daemon",
        value=both,
        unit="ms",
        against=f"once, at the same time; the engine's deadline is {settings.engine_deadline_s} s, "
        f"a lease {settings.lease_s} s; the certificate names {len(named)} that did not confirm",
        goal=str(_SILENT_GOAL),
        met=_SILENT_GOAL.holds(both),
    )


def _row(metric: str, value: float, goal: Goal, against: str, disk: float) -> Row:
    met: bool | None = goal.holds(value)
    if not met and not goal.holds(2 * disk):
        met = None
        against += f"; no verdict: the disk alone takes {disk:.0f} ms"
    return Row(metric=metric, value=value, unit="ms", against=against, goal=str(goal), met=met)


def _disk_alone(folder: Path, files: int, rounds: int = 20) -> list[float]:
    """What the same disk operations take by themselves."""
    times = []
    for number in range(rounds):
        target = folder / str(number)
        target.mkdir(parents=True)
        for name in range(files):
            (target / str(name)).write_bytes(_PAGE[:_CELL_BYTES])
        began = time.perf_counter()
        with (folder / "synced").open("wb", buffering=0) as file:
            for _ in range(_SYNCS):
                file.write(_PAGE)
                os.fsync(file.fileno())
        for name in range(files):
            (target / str(name)).unlink()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def _fill(
    instance: Instance, settings: EraseBenchSettings, erasures: int, say: Callable[[str], None]
) -> None:
    instance.cache.carve(_CELL_BYTES)
    each, rest = divmod(settings.blocks, settings.sessions)
    content = bytes(_CELL_BYTES)
    for number in range(settings.sessions):
        if number % 500 == 0:
            say(f"session {number} of {settings.sessions}")
        keys = instance.keys.acquire(_tenant(number), "default")
        session = instance.cache.session(keys.tenant_ref, keys.session_ref, epoch=keys.generation)
        for block in range(each + (number < rest)):
            name = block.to_bytes(NAME_BYTES, "big")
            if number >= erasures:
                session.index_for_measuring(name, _CELL_BYTES)
                continue
            reservation = session.reserve(name, _CELL_BYTES)
            if reservation is not None:
                reservation.view[:] = content
                reservation.commit()
    instance.cache.flush(600.0)


def _config(folder: Path, settings: EraseBenchSettings) -> KvrunConfig:
    memory = max(64 << 20, 2 * settings.blocks * _CELL_BYTES)
    text = (
        f'[deployment]\nworkspace = "bench"\nname = "bench"\n'
        f"[erasure]\nengine_deadline_s = {settings.engine_deadline_s}\n"
        f'[instance]\ndata_dir = "data"\nmemory_bytes = {memory}\ndisk_bytes = {1 << 50}\n'
    )
    (folder / "data").mkdir(mode=0o700)
    return parse_config(text, {}, source=folder / "kvrun.toml")


def _tenant(number: int) -> str:
    return f"tenant-{number}"
