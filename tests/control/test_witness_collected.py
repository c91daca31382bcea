"""Witnesses find out even the one who holds the machine, the collector and all it collected."""

import shutil
import time
from pathlib import Path

import pytest
from collect_rig import Rig
from simulator import LOG_ID, World, honest, rewrite_with_the_key, roll_the_disk_back, signer
from timestamp_authority import make_authority
from witness_rig import LIMITS, client, liar, running_witness

from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.files import read_timestamps, verify_files
from kvrun.audit.verdict import Aspect, Code, Verdict
from kvrun.audit.verify import Trust
from kvrun.cli.attestations import read_attestations
from kvrun.control.alerts import AlertKind
from kvrun.control.collector import CollectOutcome
from kvrun.control.witness import Witness
from kvrun.control.witness_git import GitWitness
from kvrun.control.witness_timestamp import TimestampWitness
from kvrun.git import GitAccess

KEYS = (signer().key,)
BRANCH = "kvrun-checkpoints"


def git_witness(repository: Path) -> GitWitness:
    access = GitAccess(timeout_s=60)
    return GitWitness(repository, branch=BRANCH, remote=None, access=access)


def show_early(world: World) -> None:
    """The honest log as it was before: what is collected first."""
    shutil.rmtree(world.folder)
    shutil.copytree(world.early, world.folder)


def test_all_three_kinds_attest_what_was_collected(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "tsa")
    world = honest(tmp_path / "instance")
    whole = shutil.copytree(world.folder, tmp_path / "whole")
    with running_witness(tmp_path / "w", list(KEYS)) as (url, key), authority.serving() as tsa:
        stamps = TimestampWitness(
            tsa, authority.root, tmp_path / "stamps", every_s=0, limits=LIMITS, now=time.time
        )
        witnesses: list[Witness] = [client(url, key), git_witness(tmp_path / "w.git"), stamps]
        rig = Rig(tmp_path / "plane", witnesses=witnesses)
        show_early(world)
        assert rig.collect(world.folder).outcome is CollectOutcome.COLLECTED
        shutil.rmtree(world.folder)
        shutil.copytree(whole, world.folder)
        report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.COLLECTED
    assert list(report.witnesses) == [witness.name for witness in witnesses]
    assert rig.alerts.all() == []
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    note = remembered.note.encode()
    assert {who.name for who in open_checkpoint(note, KEYS, [key]).cosigned_by} == {key.name}
    attested = read_attestations([tmp_path / "w.git"], BRANCH, [], None)
    attested += read_timestamps([tmp_path / "stamps"], authority.root, "the authority")
    trust = Trust(keys=KEYS, witnesses=(key,), remembered=(note,), attested=attested)
    verified = verify_files([whole], trust)
    assert verified.verdict(Aspect.WITNESSED) is Verdict.PASS
    assert verified.exit_code == 0
    assert verified.codes(Aspect.WITNESSED) == {Code.COSIGNED, Code.COMMITTED, Code.TIMESTAMPED}


@pytest.mark.parametrize("attack", [rewrite_with_the_key, roll_the_disk_back])
@pytest.mark.parametrize("kind", ["c2sp", "git"])
def test_a_new_history_behind_a_wiped_collector_is_refused(
    tmp_path: Path, kind: str, attack: object
) -> None:
    """With no witness the same attack leaves nothing that anybody could see."""
    world = honest(tmp_path / "instance")
    with running_witness(tmp_path / "w", list(KEYS)) as (url, key):
        witness = client(url, key) if kind == "c2sp" else git_witness(tmp_path / "w.git")
        first = Rig(tmp_path / "plane", witnesses=[witness])
        assert first.collect(world.folder).outcome is CollectOutcome.COLLECTED
        shutil.rmtree(tmp_path / "plane")
        world = honest(tmp_path / "again")
        attack(world)  # type: ignore[operator]
        unseen = Rig(tmp_path / "unseen").collect(world.folder)
        assert (unseen.outcome, unseen.alert) == (CollectOutcome.COLLECTED, "")
        world = honest(tmp_path / "and-again")
        attack(world)  # type: ignore[operator]
        second = Rig(tmp_path / "plane", witnesses=[witness])
        report = second.collect(world.folder)
    assert "log may have been" in report.witnesses[witness.name]
    assert second.alert().kind is AlertKind.WITNESS_REFUSED
    assert report.outcome is CollectOutcome.COLLECTED, "a refusal is an alert, no switch"


def test_a_witness_that_fails_costs_only_its_own_evidence(tmp_path: Path) -> None:
    world = honest(tmp_path / "instance")
    with (
        running_witness(tmp_path / "w", list(KEYS)) as (url, key),
        liar(lambda connection: None) as silent,
    ):
        broken, good = client(silent, key), client(url, key)
        rig = Rig(tmp_path / "plane", witnesses=[broken, good])
        report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.COLLECTED
    assert report.witnesses[good.name] == "cosigned"
    assert "cannot be asked" in report.witnesses[broken.name]
    assert rig.alerts.all() == []
