"""Reading and verifying hold one chunk, however long the log is."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from simulator import LOG_ID, sealed, signer

from kvrun.audit import AuditLimits, AuditLog
from kvrun.audit.cursor import read_records
from kvrun.audit.export import ExportFormat, export_lines
from kvrun.audit.files import verify_files
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import Trust

SHORT, LONG = 1_000, 6_000


def written(folder: Path, records: int) -> Path:
    log = AuditLog.open(
        folder,
        log_id=LOG_ID,
        signer=signer(),
        now=time.time,
        limits=AuditLimits(segment_bytes=150_000),
    )
    batch = [sealed(number) for number in range(200)]
    for _ in range(records // 200):
        log.append_durable(*batch)
    log.close()
    return folder


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("logs")
    return written(root / "short", SHORT), written(root / "long", LONG)


def verify(folder: Path) -> None:
    report = verify_files([folder], Trust(keys=(signer().key,)))
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS


def export(folder: Path) -> None:
    for _ in export_lines(read_records(folder), ExportFormat.JSONL):
        pass


@pytest.mark.parametrize("use", [verify, export])
def test_a_log_of_six_times_the_length_holds_no_more(
    logs: tuple[Path, Path], use: Callable[[Path], None]
) -> None:
    def most_held(folder: Path) -> int:
        tracemalloc.start()
        use(folder)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    short, long = (most_held(folder) for folder in logs)
    assert len(list(logs[1].glob("*.jsonl"))) > 4 * len(list(logs[0].glob("*.jsonl")))
    # The names and manifests of more segments are a little more; the records are not held.
    assert long < 1.3 * short + 64 * 1024
    assert long < 8 * 2**20
