"""``kvrun verify`` counts what witnesses keep, and each attack shows by what the page says."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from timestamp_authority import Authority, make_authority
from typer.testing import CliRunner
from witness_rig import LIMITS, client, running_witness

from audit.simulator import (
    LOG_ID,
    World,
    fork_before_the_remembered_size,
    honest,
    rewrite_with_the_key,
    roll_the_disk_back,
    signer,
)
from kvrun.audit.attestation import Attestation
from kvrun.audit.checkpoint import Checkpoint, sign_checkpoint
from kvrun.audit.files import verify_files
from kvrun.audit.merkle import leaf_hashes, tree_root
from kvrun.audit.verdict import Aspect, Code, Verdict, VerificationReport
from kvrun.audit.verify import Trust
from kvrun.cli.main import app
from kvrun.control.witness_git import GitWitness
from kvrun.control.witness_timestamp import TimestampWitness
from kvrun.git import GitAccess

KEYS = (signer().key,)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority") / "one")


def keep_in_git(world: World, repository: Path) -> None:
    access = GitAccess(timeout_s=60)
    to = GitWitness(repository, branch="kvrun-checkpoints", remote=None, access=access)
    to.add_checkpoint(0, [], world.remembered)


def timestamp(world: World, authority: Authority, folder: Path) -> None:
    with authority.serving() as url:
        to = TimestampWitness(url, authority.root, folder, every_s=0, limits=LIMITS, now=time.time)
        to.add_checkpoint(0, [], world.remembered)


def attested(note: bytes, code: Code = Code.COMMITTED, problem: str = "") -> Attestation:
    return Attestation(note, "somebody", 1_700_000_100, code, problem)


def failures(report: VerificationReport) -> set[tuple[Aspect, Code]]:
    return {(f.aspect, f.code) for f in report.findings if f.verdict is Verdict.FAIL}


def run(*arguments: object) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(app, ["verify", *map(str, arguments), "--json"])
    assert result.stdout, result.exception
    return result.exit_code, json.loads(result.stdout)


def test_evidence_passes_the_witnessed_verdict_and_names_what_it_is(tmp_path: Path) -> None:
    world = honest(tmp_path)
    for code in (Code.COMMITTED, Code.TIMESTAMPED):
        trust = Trust(keys=KEYS, attested=(attested(world.remembered, code),))
        report = verify_files([world.folder], trust)
        assert not failures(report)
        assert report.verdict(Aspect.WITNESSED) is Verdict.PASS
        assert report.verdict(Aspect.COMPLETENESS) is Verdict.PASS
        [finding] = [item for item in report.findings if item.aspect is Aspect.WITNESSED]
        assert finding.code is code
        assert "2023-11-14T22:15:00" in finding.detail


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (roll_the_disk_back, (Aspect.COMPLETENESS, Code.ROLLED_BACK)),
        (rewrite_with_the_key, (Aspect.INTEGRITY, Code.FORKED)),
        (fork_before_the_remembered_size, (Aspect.INTEGRITY, Code.FORKED)),
        (lambda world: shutil.rmtree(world.folder), (Aspect.COMPLETENESS, Code.LOG_MISSING)),
    ],
    ids=["rollback", "rewrite", "fork", "deleted"],
)
def test_an_attack_that_the_log_hides_shows_by_a_repository(
    tmp_path: Path, attack: object, expected: tuple[Aspect, Code]
) -> None:
    world = honest(tmp_path)
    attack(world)  # type: ignore[operator]
    world.folder.mkdir(exist_ok=True)
    assert not failures(verify_files([world.folder], Trust(keys=KEYS)))
    trust = Trust(keys=KEYS, attested=(attested(world.remembered),))
    report = verify_files([world.folder], trust)
    assert expected in failures(report)
    assert report.verdict(Aspect.WITNESSED) is not Verdict.PASS


def test_evidence_that_does_not_hold_fails_only_the_witnessed_verdict(tmp_path: Path) -> None:
    world = honest(tmp_path)
    forged = world.remembered.replace(b"\n", b"\n1", 1)
    stranger = sign_checkpoint(Checkpoint(LOG_ID, 3, bytes(32)), signer(seed=9))
    for item in (
        attested(b"garbage"),
        attested(forged),
        attested(stranger),
        attested(world.remembered, Code.TIMESTAMPED, "the timestamp does not hold"),
    ):
        report = verify_files([world.folder], Trust(keys=KEYS, attested=(item,)))
        assert failures(report) == {(Aspect.WITNESSED, Code.BAD_EVIDENCE)}


def test_evidence_of_other_logs_is_passed_over(tmp_path: Path) -> None:
    world = honest(tmp_path)
    other = sign_checkpoint(Checkpoint("kvrun.test/other", 3, bytes(32)), signer(seed=9))
    items = (attested(other), attested(world.remembered))
    report = verify_files([world.folder], Trust(keys=KEYS, attested=items))
    assert report.verdict(Aspect.WITNESSED) is Verdict.PASS
    alone = verify_files([world.folder], Trust(keys=KEYS, attested=items[:1]))
    assert alone.verdict(Aspect.WITNESSED) is Verdict.UNKNOWN


def test_two_histories_in_one_repository_are_a_fork(tmp_path: Path) -> None:
    """Both signed by the log: whichever the records are, the other one contradicts them."""
    world = honest(tmp_path)
    leaves = leaf_hashes([b"another history"] * 30)
    fork = sign_checkpoint(Checkpoint(LOG_ID, 30, tree_root(leaves)), signer())
    items = (attested(world.remembered), attested(fork))
    report = verify_files([world.folder], Trust(keys=KEYS, attested=items))
    assert (Aspect.INTEGRITY, Code.FORKED) in failures(report)


def test_the_command_reads_a_repository(tmp_path: Path) -> None:
    world = honest(tmp_path)
    keep_in_git(world, tmp_path / "witness.git")
    key = tmp_path / "log.vkey"
    key.write_text(signer().key.text())
    arguments = [world.folder, "--key", key, "--repository", tmp_path / "witness.git"]
    status, answer = run(*arguments)
    assert status == 0
    assert answer["verdicts"]["witnessed"] == "pass"  # type: ignore[index]
    assert "committed" in json.dumps(answer)
    roll_the_disk_back(world)
    status, answer = run(*arguments)
    assert status == 1
    assert "rolled_back" in json.dumps(answer)


def test_the_command_reads_timestamps_offline(tmp_path: Path, authority: Authority) -> None:
    world = honest(tmp_path)
    timestamp(world, authority, tmp_path / "stamps")
    key, ca = tmp_path / "log.vkey", tmp_path / "tsa.pem"
    key.write_text(signer().key.text())
    ca.write_bytes(authority.root)
    arguments = [world.folder, "--key", key, "--timestamp", tmp_path / "stamps"]
    status, answer = run(*arguments, "--tsa-certificate", ca)
    assert status == 0
    assert answer["verdicts"]["witnessed"] == "pass"  # type: ignore[index]
    assert "timestamped" in json.dumps(answer)
    [token] = (tmp_path / "stamps").rglob("*.tsr")
    changed = bytearray(token.read_bytes())
    changed[-1] ^= 1
    token.write_bytes(changed)
    status, answer = run(*arguments, "--tsa-certificate", ca)
    assert status == 1
    assert "bad_evidence" in json.dumps(answer)
    assert answer["verdicts"]["integrity"] == "pass"  # type: ignore[index]


def test_a_timestamp_needs_the_authority_that_is_trusted(tmp_path: Path) -> None:
    world = honest(tmp_path)
    result = CliRunner().invoke(app, ["verify", str(world.folder), "--timestamp", str(tmp_path)])
    assert result.exit_code == 1
    empty = CliRunner().invoke(
        app,
        ["verify", str(world.folder), "--timestamp", str(tmp_path), "--tsa-certificate", "none"],
    )
    assert empty.exit_code == 1


def test_the_command_takes_a_kvrun_witness_cosignature(tmp_path: Path) -> None:
    world = honest(tmp_path)
    with running_witness(tmp_path / "w", [signer().key]) as (url, witness_key):
        lines = client(url, witness_key).add_checkpoint(0, [], world.remembered)
    (tmp_path / "log.vkey").write_text(signer().key.text())
    (tmp_path / "witness.vkey").write_text(witness_key.text())
    (tmp_path / "checkpoint").write_bytes(world.remembered + lines)
    status, answer = run(
        world.folder,
        *("--key", tmp_path / "log.vkey", "--checkpoint", tmp_path / "checkpoint"),
        *("--witness-key", tmp_path / "witness.vkey"),
    )
    assert status == 0
    assert answer["verdicts"]["witnessed"] == "pass"  # type: ignore[index]


def test_a_cosignature_with_an_impossible_time_is_no_crash(tmp_path: Path) -> None:
    world = honest(tmp_path)
    item = replace(attested(world.remembered), time=float(2**63))
    report = verify_files([world.folder], Trust(keys=KEYS, attested=(item,)))
    assert any("impossible" in finding.detail for finding in report.findings)
