"""``kvrun bench evidence``: a year's evidence in summary form, and whole segments; time, memory.

The year is a log as a collector leaves it: manifests, countersigned checkpoints and tallies of all
segments, and the segments that the sample opens. The other segments are not written: an export in
summary form opens none of them, and they would take 55 GB for 100,000,000 records. The export and
the verification run in processes of their own, so that their peak memory is their own.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvrun.bench.evidence_world import build_certificates, build_world
from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.report import Report, Row
from kvrun.errors import KvrunError

SUMMARY_GOAL_S = 300
FULL_GOAL_S = 60
MEMORY_GOAL_MB = 500
SAMPLE = 25
YEAR_RECORDS, WHOLE_RECORDS = 100_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class EvidenceBenchSettings:
    """How much there is to show; ``full_records`` 0 leaves the whole segments out."""

    records: int = YEAR_RECORDS
    certificates: int = 10_000
    full_records: int = WHOLE_RECORDS
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class _Figures:
    wall_s: float
    cpu_s: float
    peak_bytes: int
    size_bytes: int
    exit_code: int


def run_evidence_bench(
    settings: EvidenceBenchSettings | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Build in a temporary folder, export, verify, and report against the goals."""
    settings = settings or EvidenceBenchSettings()
    with tempfile.TemporaryDirectory(dir=settings.folder, prefix="kvrun-bench-") as name:
        folder = Path(name)
        rows = _summary_rows(folder / "year", settings, say)
        if settings.full_records:
            rows += _full_rows(folder / "whole", settings, say)
    return Report(
        bench="evidence", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


def _summary_rows(
    folder: Path, settings: EvidenceBenchSettings, say: Callable[[str], None]
) -> list[Row]:
    say("making a year")
    records = build_world(folder, settings.records, SAMPLE, whole=False)
    build_certificates(folder, settings.certificates)
    say("exporting the year")
    made = _run("export", folder, "summary.zip", str(SAMPLE), "summary")
    say("verifying it")
    checked = _run("verify", folder, "summary.zip", str(SAMPLE), "summary")
    what = f"{records:,} records, {settings.certificates:,} certificates, {SAMPLE} drawn"
    scaled = settings.records >= YEAR_RECORDS
    return [
        _seconds("export, summary form", made, what, SUMMARY_GOAL_S if scaled else None),
        _memory("most memory of the export", made),
        _seconds("verify, summary form", checked, f"{made.size_bytes:,} bytes", None),
        _memory("most memory of the verification", checked),
    ]


def _full_rows(
    folder: Path, settings: EvidenceBenchSettings, say: Callable[[str], None]
) -> list[Row]:
    say("making whole segments")
    records = build_world(folder, settings.full_records, SAMPLE, whole=True)
    say("exporting them")
    made = _run("export", folder, "full.zip", str(SAMPLE), "full")
    say("verifying them")
    checked = _run("verify", folder, "full.zip", str(SAMPLE), "full")
    scaled = settings.full_records >= WHOLE_RECORDS
    return [
        _seconds("export, --full", made, f"{records:,} records", FULL_GOAL_S if scaled else None),
        _memory("most memory of the export, --full", made),
        _seconds("verify, --full", checked, f"{made.size_bytes:,} bytes, counted again", None),
        _memory("most memory of the verification, --full", checked),
    ]


def _seconds(metric: str, figures: _Figures, against: str, goal: int | None) -> Row:
    return Row(
        metric=metric,
        value=round(figures.wall_s, 2),
        unit="s",
        against=f"{against}; {figures.cpu_s:.1f} s of CPU time, start of the process included",
        goal=f"<= {goal}" if goal else None,
        met=figures.wall_s <= goal if goal else None,
    )


def _memory(metric: str, figures: _Figures) -> Row:
    held = figures.peak_bytes / 1e6
    return Row(
        metric=metric,
        value=round(held),
        unit="MB",
        against="the whole process",
        goal=f"<= {MEMORY_GOAL_MB}",
        met=held <= MEMORY_GOAL_MB,
    )


def _run(*arguments: object) -> _Figures:
    command = [sys.executable, "-m", "kvrun.bench.evidence_run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KvrunError(f"the bench did not come to its end: {done.stderr[-800:]}")
    figures = _Figures(**json.loads(done.stdout))
    if figures.exit_code:
        raise KvrunError(f"the evidence that was made does not verify: {done.stderr[-800:]}")
    return figures
