"""A log whose key is rotated goes on being collected; one whose key is replaced does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from collect_rig import Rig
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulator import Clock

from kvrun.audit.checkpoint import CheckpointSigner, Ed25519Signer
from kvrun.audit.note import Note, NoteSignature, parse_note
from kvrun.audit.record import AuditEvent, Event
from kvrun.audit.settings import AuditLimits
from kvrun.audit.writer import AuditLog
from kvrun.control.alerts import AlertKind
from kvrun.control.collector import CollectOutcome
from kvrun.control.sources import FolderSource, LogState
from kvrun.instance.ring_signer import RingSigner
from kvrun.keys.signing import KeyPurpose, SigningRing

LOG = "w1/d1/box"


class Instance:
    """Writes a log with the keys of a ring."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.ring = SigningRing(folder / "signing", now=clock)
        self.folder, self._clock = folder / "audit", clock
        self.log = self.open(RingSigner(LOG, self.ring))

    def open(self, signer: CheckpointSigner) -> AuditLog:
        limits = AuditLimits(segment_bytes=4096)
        return AuditLog.open(self.folder, log_id=LOG, signer=signer, now=self._clock, limits=limits)

    def write(self, count: int = 40) -> None:
        for _ in range(count):
            self.log.append_durable(AuditEvent(event=Event.DENIED, reason="x" * 60))
        self.log.sign_checkpoint()

    def rotate(self) -> None:
        self.ring.rotate(KeyPurpose.CHECKPOINT)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    found = Instance(tmp_path, Clock(1_700_100_000))
    yield found
    found.log.close()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "plane")


def pinned(rig: Rig) -> str:
    remembered = rig.memory.find(LOG)
    assert remembered is not None
    return remembered.key


def test_a_log_is_collected_over_rotations_of_its_key(instance: Instance, rig: Rig) -> None:
    instance.write()
    assert rig.collect(instance.folder).outcome is CollectOutcome.COLLECTED
    keys = [pinned(rig)]
    for _ in range(3):
        instance.write(7)  # the segment in which the key is replaced
        instance.rotate()
        instance.write()
        before = rig.collect(instance.folder)
        assert before.outcome is CollectOutcome.COLLECTED, before.message
        keys.append(pinned(rig))
        assert keys[-1] == RingSigner(LOG, instance.ring).key.text()
    assert len(set(keys)) == 4
    assert before.stored_size > 100
    assert rig.alerts.all() == []
    followed = [reason for event, reason in rig.logged() if event == Event.KEY_ROTATED]
    assert len(followed) == 3
    # What is stored proves itself from the key it began with.
    (vkey,) = rig.folder(LOG).glob("*.vkey")
    assert vkey.read_text().strip() == keys[0]


class Claiming(FolderSource):
    """Shows a true log as signed by ``signers``, of whom the first is said to be its key."""

    def __init__(self, folder: Path, *signers: CheckpointSigner, spoilt: bool = False) -> None:
        super().__init__(folder)
        self._signers, self._spoilt = signers, spoilt

    def state(self) -> LogState:
        found = super().state()
        text = parse_note(found.checkpoint).text
        lines = [NoteSignature(LOG, one.key.key_id, one.sign(text)) for one in self._signers]
        if self._spoilt:
            lines[0] = NoteSignature(LOG, lines[0].key_id, bytes(64))
        return LogState(Note(text, tuple(lines)).encode(), self._signers[0].key.text())


def test_a_key_that_the_pinned_one_does_not_sign_beside_is_not_taken_up(
    instance: Instance, rig: Rig
) -> None:
    instance.write()
    rig.collect(instance.folder)
    before, ours = pinned(rig), RingSigner(LOG, instance.ring)
    other = Ed25519Signer(LOG, Ed25519PrivateKey.generate())
    elsewhere = Ed25519Signer("w1/d1/other", Ed25519PrivateKey.generate())
    for source in (
        Claiming(instance.folder, other, ours, spoilt=True),
        Claiming(instance.folder, elsewhere, ours),
        FolderSource(instance.folder),
    ):
        instance.write()
        assert rig.collect(source).outcome is CollectOutcome.COLLECTED
        assert pinned(rig) == before
    instance.write()
    assert rig.collect(Claiming(instance.folder, other)).outcome is CollectOutcome.ALERT
    assert rig.alert().kind is AlertKind.KEY_CHANGED
    assert pinned(rig) == before
    assert all(event != Event.KEY_ROTATED for event, _ in rig.logged())


def test_a_rotation_is_followed_where_nothing_was_written_since(
    instance: Instance, rig: Rig
) -> None:
    instance.write()
    rig.collect(instance.folder)
    ours = RingSigner(LOG, instance.ring)
    other = Ed25519Signer(LOG, Ed25519PrivateKey.generate())
    report = rig.collect(Claiming(instance.folder, other, ours))
    assert report.outcome is CollectOutcome.UNCHANGED
    assert pinned(rig) == other.key.text()
