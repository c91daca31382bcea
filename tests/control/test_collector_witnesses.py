"""Witnesses get proofs that hold, from wherever they stopped; one that is lost costs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from collect_rig import Rig
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulator import LOG_ID, QUIET, Clock, World, honest, signer
from test_collector import grow

from kvrun.audit import AuditLog
from kvrun.audit.checkpoint import cosign_checkpoint, open_checkpoint
from kvrun.audit.merkle import EMPTY_ROOT, verify_consistency
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey
from kvrun.config import parse_config
from kvrun.control.alerts import AlertKind
from kvrun.control.collected import CollectedLog, checkpoint_name
from kvrun.control.collector import CollectOutcome
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import run_round
from kvrun.control.witness import (
    WitnessOutOfStepError,
    WitnessRefusedError,
    WitnessUnavailableError,
)
from kvrun.storage import open_storage
from support.s3_server import request, s3_server

PRIVATE = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
KEY = VerifierKey("other.test/w", COSIGNATURE_V1, PRIVATE.public_key().public_bytes_raw())


@dataclass
class Strict:
    """A witness as C2SP describes it: it signs what a proof connects with what it remembers."""

    size: int = 0
    root: bytes = EMPTY_ROOT
    away: bool = False
    asked: list[int] = field(default_factory=list)
    name: str = "http://other.test"

    def add_checkpoint(self, old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
        if self.away:
            raise WitnessUnavailableError("it does not answer")
        checkpoint = open_checkpoint(note, [signer().key]).checkpoint
        if old_size != self.size:
            raise WitnessOutOfStepError("another size", self.size)
        if not verify_consistency(old_size, checkpoint.size, self.root, checkpoint.root, proof):
            raise WitnessRefusedError("the proof does not hold", evidence=b"what it remembers")
        self.size, self.root = checkpoint.size, checkpoint.root
        self.asked.append(checkpoint.size)
        cosigned = cosign_checkpoint(note, KEY.name, PRIVATE, 1_700_100_000)
        return cosigned.removeprefix(note)


@pytest.fixture
def witness() -> Strict:
    return Strict()


@pytest.fixture
def rig(tmp_path: Path, witness: Strict) -> Rig:
    return Rig(tmp_path / "control-plane", witnesses=[witness])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return honest(tmp_path / "instance")


def cosigners(note: bytes) -> set[str]:
    return {item.name for item in open_checkpoint(note, [signer().key], [KEY]).cosigned_by}


def test_every_stored_checkpoint_and_the_latest_carry_the_witness_cosignature(
    rig: Rig, world: World, witness: Strict
) -> None:
    report = rig.collect(world.folder)
    assert report.witnesses == {witness.name: "cosigned"}
    notes = sorted(rig.folder(LOG_ID).glob("checkpoint-*"))
    assert len(notes) >= 2
    assert all(cosigners(path.read_bytes()) == {KEY.name} for path in notes)
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    assert cosigners(remembered.note.encode()) == {KEY.name}
    assert witness.asked == [*(int(path.name[11:]) for path in notes), report.size]
    grow(world)
    assert rig.collect(world.folder).witnesses == {witness.name: "cosigned"}


def test_a_witness_that_missed_rounds_gets_a_proof_from_where_it_stopped(
    rig: Rig, world: World, witness: Strict
) -> None:
    rig.collect(world.folder)
    witness.away = True
    for _ in range(2):
        grow(world)
        report = rig.collect(world.folder)
        assert report.outcome is CollectOutcome.COLLECTED
        assert report.witnesses == {witness.name: "it does not answer"}
    witness.away = False
    grow(world)
    assert rig.collect(world.folder).witnesses == {witness.name: "cosigned"}


def test_a_witness_whose_memory_the_collector_does_not_know_is_asked_again(
    rig: Rig, world: World, witness: Strict
) -> None:
    rig.collect(world.folder)
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    rig.memory.save(msgspec.structs.replace(remembered, witnesses={}))
    grow(world)
    assert rig.collect(world.folder).witnesses == {witness.name: "cosigned"}


def test_a_witness_that_saw_another_history_raises_an_alert_and_collection_goes_on(
    rig: Rig, world: World, witness: Strict
) -> None:
    rig.collect(world.folder)
    witness.root = b"x" * 32
    grow(world)
    report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.COLLECTED
    alert = rig.alert()
    assert (alert.kind, alert.stops) == (AlertKind.WITNESS_REFUSED, False)
    evidence = rig.alerts.place(alert.id) / "witness-answer"
    assert evidence.read_bytes() == b"what it remembers"
    grow(world)
    rig.collect(world.folder)
    assert len(rig.alerts.all()) == 1, "the same is not said twice"


def test_witness_settings_that_cannot_be_used_are_said_and_hold_nothing_up(
    tmp_path: Path,
) -> None:
    text = '[witness]\nurls = ["http://127.0.0.1:1"]\nkeys_file = "missing"\n'
    config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
    name = "default/default/here"
    AuditLog.open(
        config.layout.audit, log_id=name, signer=signer(name=name), now=Clock(), limits=QUIET
    ).close()
    (report,) = run_round(ControlPlane(config), reason="scheduled").logs
    assert report.outcome is CollectOutcome.COLLECTED
    assert "missing" in report.witnesses["[witness]"]


def test_a_log_is_collected_into_an_object_store(tmp_path: Path, world: World) -> None:
    with s3_server() as (address, options):
        assert request(address, "PUT", "/logs")[0] == 200
        storage = open_storage("s3://logs/below", options)
        rig = Rig(tmp_path / "control-plane", storage=storage)
        report = rig.collect(world.folder)
        grow(world)
        assert rig.collect(world.folder).outcome is CollectOutcome.COLLECTED
        remembered = rig.memory.find(LOG_ID)
        assert remembered is not None
        collected = CollectedLog.of(storage, remembered)
        name = f"{collected.folder}/{checkpoint_name(report.stored_size)}"
        opened = open_checkpoint(storage.get(name), [signer().key])
        assert opened.checkpoint.size == report.stored_size
        data = b"".join(b"".join(collected.pieces(first)) for first in collected.manifests())
        assert data.count(b"\n") == remembered.stored.size
