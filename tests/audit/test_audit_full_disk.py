"""A disk that is really full: a tmpfs of a few pages."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulator import LOG_ID, QUIET, Clock, sealed, signer

from kvrun.audit import AuditLog, AuditUnavailableError, Event
from kvrun.audit.cursor import read_records
from kvrun.audit.files import verify_files
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import Trust

pytestmark = pytest.mark.root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def append_until_full(log: AuditLog) -> None:
    for number in range(1000):
        log.append_durable(sealed(number))


def test_a_full_disk_refuses_and_a_freed_one_records_the_gap(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(32 * 1024))
    folder = small_disk / "log"
    log = AuditLog.open(folder, log_id=LOG_ID, signer=signer(), now=Clock(), limits=QUIET)
    with pytest.raises(AuditUnavailableError, match="No space left on device"):
        append_until_full(log)
    assert not log.available
    ballast.unlink()
    log.commit()
    assert log.available
    log.append_durable(sealed(7777))
    log.close()
    records = list(read_records(folder))
    assert any(record.event is Event.GAP for record in records)
    assert records[-2].request_id == "req-7777"
    report = verify_files([folder], Trust(keys=(signer().key,)))
    assert report.exit_code == 0
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS
