"""A log's key is replaced while it is written: it continues, verifies, and says so by itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.checkpoint import (
    Checkpoint,
    Ed25519Signer,
    continuous_keys,
    open_checkpoint,
    sign_checkpoint,
)
from kvrun.audit.files import verify_files
from kvrun.audit.record import AuditEvent, Event
from kvrun.audit.segment import CHECKPOINT_NAME
from kvrun.audit.verify import Trust
from kvrun.audit.writer import AuditLimits, AuditLog
from kvrun.instance.ring_signer import RingSigner
from kvrun.keys.signing import KeyPurpose, SigningRing

LOG = "acme/chat/box"


class Clock:
    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(tmp_path: Path, clock: Clock) -> SigningRing:
    return SigningRing(tmp_path / "signing", now=clock)


def open_log(tmp_path: Path, ring: SigningRing, clock: Clock) -> AuditLog:
    return AuditLog.open(
        tmp_path / "audit",
        log_id=LOG,
        signer=RingSigner(LOG, ring),
        now=clock,
        limits=AuditLimits(segment_bytes=2000),
    )


def write(log: AuditLog, count: int = 5) -> None:
    for _ in range(count):
        log.append_durable(
            AuditEvent(event=Event.SEALED, workspace="acme", deployment="chat", blocks=1)
        )


def test_a_log_goes_on_over_a_rotation_and_verifies_with_either_key_or_none(
    tmp_path: Path, ring: SigningRing, clock: Clock
) -> None:
    log = open_log(tmp_path, ring, clock)
    write(log, 12)
    old = RingSigner(LOG, ring).key
    ring.rotate(KeyPurpose.CHECKPOINT, overlap_s=1000)
    write(log, 12)
    log.close()
    new = RingSigner(LOG, ring).key
    assert new != old
    log = open_log(tmp_path, ring, clock)  # an older segment's manifest has the old key only
    write(log, 12)
    log.close()
    for trust in (Trust(keys=(old,)), Trust(keys=(new, old)), Trust()):
        report = verify_files([tmp_path / "audit"], trust)
        assert report.exit_code == (0 if trust.keys else 2), report


def test_after_the_overlap_or_a_revocation_the_old_key_signs_no_more_and_the_log_goes_on(
    tmp_path: Path, ring: SigningRing, clock: Clock
) -> None:
    log = open_log(tmp_path, ring, clock)
    write(log)
    first = ring.load_or_create(KeyPurpose.CHECKPOINT)
    ring.rotate(KeyPurpose.CHECKPOINT, overlap_s=1000)
    signer = RingSigner(LOG, ring)
    assert len(signer.signers()) == 2
    clock.time += 1000
    assert len(signer.signers()) == 1
    second = ring.load_or_create(KeyPurpose.CHECKPOINT)
    ring.revoke(second.key_id)
    assert signer.key.public_key not in (
        key.private_key.public_key().public_bytes_raw() for key in (first, second)
    )
    write(log)
    log.close()
    log = open_log(tmp_path, ring, clock)
    write(log)
    log.close()
    note = (tmp_path / "audit" / CHECKPOINT_NAME).read_bytes()
    assert open_checkpoint(note, signer.known()).signed_by == (signer.key,)


def test_a_log_is_written_while_its_key_is_replaced_again_and_again(
    tmp_path: Path, ring: SigningRing, clock: Clock
) -> None:
    log = open_log(tmp_path, ring, clock)
    stop, problems = threading.Event(), []

    def work() -> None:
        try:
            while not stop.is_set():
                write(log, 3)
                log.commit()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        ring.rotate(KeyPurpose.CHECKPOINT)
        seen = log.size
        while not problems and log.size < seen + 6:
            stop.wait(0.01)
    stop.set()
    thread.join()
    assert problems == []
    log.close()
    trust = Trust(keys=tuple(RingSigner(LOG, ring).known()))
    assert verify_files([tmp_path / "audit"], trust).exit_code == 0


def test_a_foreign_key_beside_the_claimed_one_is_not_adopted(ring: SigningRing) -> None:
    mine = Ed25519Signer(LOG, Ed25519PrivateKey.generate())
    other = Ed25519Signer(LOG, Ed25519PrivateKey.generate())
    notes = [sign_checkpoint(Checkpoint(LOG, 1, bytes(32)), one) for one in (mine, other)]
    assert continuous_keys([mine.key, other.key], notes) == (mine.key,)
    ring.load_or_create(KeyPurpose.CHECKPOINT)
    ring.rotate(KeyPurpose.CHECKPOINT)
    signer = RingSigner(LOG, ring)
    old, new = signer.known()
    both = sign_checkpoint(Checkpoint(LOG, 2, bytes(32)), signer)
    assert continuous_keys([new, old, other.key], [both, *notes]) == (new, old)
