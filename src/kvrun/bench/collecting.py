"""How fast and in how much memory a log is collected: verified, countersigned and stored.

The collection runs in a process of its own, so that its peak memory is its own.
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from kvrun.config.layout import DataLayout
from kvrun.control.alerts import AlertBook
from kvrun.control.collector import Collector, CollectOutcome, Target
from kvrun.control.cosigner import open_cosigner
from kvrun.control.journal import ControlJournal
from kvrun.control.remembered import Memory
from kvrun.control.sources import FolderSource
from kvrun.errors import KvrunError
from kvrun.storage import open_storage


@dataclass(frozen=True, slots=True)
class CollectFigures:
    """One collection of a whole log: records, wall and CPU seconds, peak resident memory."""

    records: int
    wall_s: float
    cpu_s: float
    peak_bytes: int


def measure_collection(log: Path, folder: Path) -> CollectFigures:
    """Collect the log in ``log`` into the empty ``folder``; its closed segments are released.

    Raises KvrunError when it was not collected whole.
    """
    done = subprocess.run(
        [sys.executable, "-m", "kvrun.bench.collecting", str(log), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise KvrunError(f"the log {log} was not collected: {done.stderr[-500:]}")
    return CollectFigures(**json.loads(done.stdout))


def _collect(log: Path, folder: Path) -> CollectFigures:
    layout = DataLayout(folder)
    (layout.control / "logs").mkdir(mode=0o700, parents=True)
    collector = Collector(
        storage=open_storage(f"file://{layout.storage_root}"),
        memory=Memory(layout.control / "logs"),
        alerts=AlertBook(layout.control / "alerts"),
        journal=ControlJournal(layout, "bench", time.time),
        cosigner=open_cosigner(layout, time.time),
        witnesses=(),
        now=time.time,
    )
    wall, cpu = time.monotonic(), time.process_time()
    report = collector.collect(Target(FolderSource(log), "bench", "bench"))
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    if report.outcome is not CollectOutcome.COLLECTED:
        raise KvrunError(f"{report.outcome}: {report.message}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return CollectFigures(report.size, round(wall, 3), round(cpu, 3), peak)


if __name__ == "__main__":
    figures = _collect(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
    names = CollectFigures.__slots__
    sys.stdout.write(json.dumps({name: getattr(figures, name) for name in names}) + "\n")
