"""``kvrun bench audit``: how fast records become durable, and how fast a log is verified.

Appending measures wall time, waiting for the disk included: one thread, batches, one commit a
batch. Verifying measures CPU time of one core over segments that are already in memory. Records
carry every field that a sealing writes. The median of the rounds counts.
"""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.checkpoint import Ed25519Signer
from kvrun.audit.record import AuditEvent, Event
from kvrun.audit.segment import SegmentFile, list_segments
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import SegmentSource, Trust, verify_log
from kvrun.audit.writer import AuditLog
from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.report import Report, Row

APPEND_GOAL = 150_000
VERIFY_GOAL = 300_000
LOG_ID = "kvrun.bench/audit"
CHUNK_LINES = 2_000
RECORD_BYTES = 550
SYNC_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class AuditBenchSettings:
    """How much is written and verified; ``folder`` is on the disk to measure."""

    records: int = 100_000
    batch: int = 100
    rounds: int = 5
    folder: Path | None = None


def run_audit_bench(settings: AuditBenchSettings | None = None) -> Report:
    """Measure in a temporary folder and report against the goals. Takes about ten seconds."""
    settings = settings or AuditBenchSettings()
    with tempfile.TemporaryDirectory(dir=settings.folder, prefix="kvrun-bench-") as name:
        folder = Path(name)
        disk = _sync_rate(folder, settings)
        rows = [
            *_append_rows(folder / "log", settings, disk),
            *_verify_rows(folder / "log", settings),
        ]
    return Report(
        bench="audit", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


def sealed_event() -> AuditEvent:
    """A record as a sealing writes it."""
    return AuditEvent(
        event=Event.SEALED,
        request_id="cmpl-0123456789abcdef",
        workspace="w-1",
        deployment="d-1",
        tenant_ref="a1" * 16,
        session_ref="b2" * 16,
        tier="memory",
        blocks=12,
        bytes=12 * 2_097_152,
        tokens=192,
        policy_revision="builtin-1",
        key_id="c3" * 8,
        blocks_root="d4" * 32,
    )


def _append_rows(folder: Path, settings: AuditBenchSettings, disk: float) -> list[Row]:
    signer = Ed25519Signer(LOG_ID, Ed25519PrivateKey.generate())
    event, wall, cpu = sealed_event(), [], []
    per_round = max(1, settings.records // settings.rounds // settings.batch)
    log = AuditLog.open(folder, log_id=LOG_ID, signer=signer, now=time.time)
    try:
        for _ in range(settings.rounds):
            begun, used = time.perf_counter(), time.process_time()
            for _ in range(per_round):
                for _ in range(settings.batch):
                    log.append(event)
                log.commit()
            count = per_round * settings.batch
            wall.append(count / (time.perf_counter() - begun))
            cpu.append(count / (time.process_time() - used))
    finally:
        log.close()
    rate = statistics.median(wall)
    against = f"batches of {settings.batch}, {min(wall):.0f} to {max(wall):.0f}"
    met: bool | None = rate >= APPEND_GOAL
    if not met and disk < APPEND_GOAL:
        met = None
        against += f"; no verdict: the disk alone manages {disk:.0f}"
    return [
        Row(
            metric="append, durable",
            value=round(rate),
            unit="records/s",
            against=against,
            goal=f">= {APPEND_GOAL}",
            met=met,
        ),
        Row(
            metric="append, CPU only",
            value=round(statistics.median(cpu)),
            unit="records/CPU s",
            against="the same rounds without the wait for the disk",
        ),
        Row(
            metric="disk, write and sync alone",
            value=round(disk),
            unit="records/s",
            against=f"the same batches of {RECORD_BYTES} bytes a record, nothing else done",
        ),
    ]


def _sync_rate(folder: Path, settings: AuditBenchSettings) -> float:
    """The bound that the disk sets: the same batches as bare writes with a sync each."""
    batch = bytes(RECORD_BYTES * settings.batch)
    file = SegmentFile(folder / "sync")
    begun = time.perf_counter()
    for _ in range(SYNC_ROUNDS):
        file.append(batch)
    elapsed = time.perf_counter() - begun
    file.close()
    return SYNC_ROUNDS * settings.batch / elapsed


def _verify_rows(folder: Path, settings: AuditBenchSettings) -> list[Row]:
    sources, count, size = [], 0, 0
    for path in list_segments(folder):
        lines = path.read_bytes().splitlines(keepends=True)
        chunks = [
            b"".join(lines[at : at + CHUNK_LINES]) for at in range(0, len(lines), CHUNK_LINES)
        ]
        count += len(lines)
        size += sum(map(len, lines))
        sources.append(SegmentSource(path.name, chunks.__iter__))
    latest = (folder / "checkpoint").read_bytes()
    key = (folder / "signer.vkey").read_text()
    rates = []
    for _ in range(settings.rounds):
        used = time.process_time()
        report = verify_log(sources, latest=latest, claimed_key=key, trust=Trust())
        rates.append(count / (time.process_time() - used))
        if report.verdict(Aspect.INTEGRITY) is not Verdict.PASS or report.next_seq != count:
            raise AssertionError("the log that was just written does not verify")
    rate = statistics.median(rates)
    return [
        Row(
            metric="verify, one core",
            value=round(rate),
            unit="records/CPU s",
            against=f"{size / count:.0f} bytes a record, {min(rates):.0f} to {max(rates):.0f}",
            goal=f">= {VERIFY_GOAL}",
            met=rate >= VERIFY_GOAL,
        )
    ]
