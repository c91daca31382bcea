"""What the journal does with records that the log cannot take now: keep them, or count them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit import AuditLimits, AuditLog, AuditUnavailableError, Ed25519Signer, Event
from kvrun.audit.cursor import read_records
from kvrun.audit.record import Record
from kvrun.instance import journal as module
from kvrun.instance.journal import Journal

LIMITS = AuditLimits(group_seconds=60, heartbeat_seconds=3600, retry_seconds=3600)


class Disk:
    broken = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    state, real = Disk(), os.fdatasync

    def sync(descriptor: int) -> None:
        if state.broken:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr("kvrun.audit.segment.os.fdatasync", sync)
    return state


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    signer = Ed25519Signer("test/log", Ed25519PrivateKey.generate())
    opened = AuditLog.open(
        tmp_path / "log", log_id="test/log", signer=signer, now=lambda: 1.8e9, limits=LIMITS
    )
    yield opened
    opened.close()


def break_disk(log: AuditLog, disk: Disk, journal: Journal) -> None:
    disk.broken = True
    with pytest.raises(AuditUnavailableError):
        journal.admitted_stateless("r-first")
    assert not journal.available


def records(log: AuditLog) -> list[Record]:
    log.commit()
    return list(read_records(log.folder))


def test_what_happens_while_the_log_is_away_is_kept_in_order(log: AuditLog, disk: Disk) -> None:
    journal = Journal(log, "w", "d")
    break_disk(log, disk, journal)
    for number in range(5):
        journal.denied(f"r-{number}", "the log is away")
    journal.write_owed()
    assert journal.owed == 5
    disk.broken = False
    log.commit()
    journal.write_owed()
    assert journal.owed == 0
    denied = [record.request_id for record in records(log) if record.event is Event.DENIED]
    assert denied == [f"r-{number}" for number in range(5)]
    assert log.health().lost == 0


def test_what_cannot_be_kept_is_counted_in_the_gap(
    log: AuditLog, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_OWED", 3)
    journal = Journal(log, "w", "d")
    break_disk(log, disk, journal)
    for number in range(8):
        journal.denied(f"r-{number}", "the log is away")
    assert log.health().lost == 5
    disk.broken = False
    log.commit()
    journal.write_owed()
    found = records(log)
    assert [r.request_id for r in found if r.event is Event.DENIED] == ["r-0", "r-1", "r-2"]
    assert sum(r.lost for r in found if r.event is Event.GAP) == 5


def test_a_record_that_does_not_fit_the_schema_leaves_a_gap_at_its_place(log: AuditLog) -> None:
    journal = Journal(log, "w\u00e9", "d")
    journal.denied("r-1", "no claim")
    gap = records(log)[-1]
    assert (gap.event, gap.reason, gap.lost) == (Event.GAP, "not_recorded", 1)
