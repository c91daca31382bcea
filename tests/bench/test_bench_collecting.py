"""The benchmark of the collector collects a whole log in a process of its own."""

import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit import AuditLimits, AuditLog, Ed25519Signer
from kvrun.bench.audit import sealed_event
from kvrun.bench.collecting import measure_collection
from kvrun.errors import KvrunError


def test_a_whole_log_is_collected_and_its_memory_is_stated(tmp_path: Path) -> None:
    signer = Ed25519Signer("bench/x", Ed25519PrivateKey.generate())
    limits = AuditLimits(segment_bytes=64 * 1024)
    log = AuditLog.open(
        tmp_path / "log", log_id="bench/x", signer=signer, now=time.time, limits=limits
    )
    for _ in range(10):
        for _ in range(50):
            log.append(sealed_event())
        log.commit()
    log.close()
    figures = measure_collection(tmp_path / "log", tmp_path / "plane")
    assert figures.records == 502
    assert figures.peak_bytes > 2**20
    assert len(list((tmp_path / "log").glob("*.jsonl"))) == 1
    with pytest.raises(KvrunError, match="not collected"):
        measure_collection(tmp_path / "nothing", tmp_path / "other")
