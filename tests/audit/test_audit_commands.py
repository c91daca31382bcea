"""``kvrun verify`` and ``kvrun audit`` on a real log."""

import json
import re
from pathlib import Path

import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulator import ATTACKS, Attack, edit_a_record, honest, rewrite_with_the_key, signer
from typer.testing import CliRunner

from kvrun.audit.checkpoint import cosign_checkpoint
from kvrun.audit.errors import AuditError
from kvrun.audit.files import verify_files
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey
from kvrun.audit.proof import check_proof, parse_proof
from kvrun.audit.verify import Trust
from kvrun.bench.audit import AuditBenchSettings, run_audit_bench
from kvrun.cli.audit import app as audit_app
from kvrun.cli.log_report import next_step
from kvrun.cli.verify import verify_command

verify_app = typer.Typer()
verify_app.command()(verify_command)
run = CliRunner().invoke


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "trusted.vkey"
    path.write_text(f"# the log's key\n{signer().key.text()}\n")
    return str(path)


def test_verify_prints_one_line_a_verdict_and_ends_with_0(tmp_path: Path, key: str) -> None:
    world = honest(tmp_path)
    result = run(verify_app, [str(world.folder), "--key", key])
    assert result.exit_code == 0
    words = [line.split()[:2] for line in result.output.splitlines() if line[:1] not in (" ", "")]
    assert words[1:5] == [
        ["integrity", "pass"],
        ["completeness", "unknown"],
        ["freshness", "unknown"],
        ["witnessed", "unknown"],
    ]
    assert words[5][0] == "next:"
    assert "--checkpoint" in result.output


def test_verify_ends_with_2_without_a_trusted_key(tmp_path: Path) -> None:
    world = honest(tmp_path)
    result = run(verify_app, [str(path) for path in reversed(world.segments())])
    assert result.exit_code == 2
    assert "self_asserted: " in result.output


def test_verify_ends_with_1_and_names_the_attack(tmp_path: Path, key: str) -> None:
    world = honest(tmp_path)
    edit_a_record(world)
    result = run(verify_app, [str(world.folder), "--key", key, "--json"])
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert report["verdicts"]["integrity"] == "fail"
    assert {"chain_broken", "manifest_mismatch"} <= {f["code"] for f in report["findings"]}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.run.__name__)
def test_whatever_was_found_fits_100_columns_and_ends_with_a_next_step(
    tmp_path: Path, key: str, attack: Attack
) -> None:
    world = honest(tmp_path)
    attack.run(world)
    kept = tmp_path / "kept"
    kept.write_bytes(world.remembered)
    result = run(verify_app, [str(world.folder), "--key", key, "--checkpoint", str(kept)])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("next: ") for line in lines)
    for _, code in attack.remembered:
        assert f"{code}: " in result.output or "--json lists all" in result.output


def test_the_json_report_has_the_documented_fields_and_no_other(tmp_path: Path, key: str) -> None:
    world = honest(tmp_path)
    report = json.loads(run(verify_app, [str(world.folder), "--key", key, "--json"]).output)
    page = (Path(__file__).parents[2] / "docs/spec/audit-log.md").read_text()
    section = page.split("`--json` prints one object", 1)[1].split("| finding |", 1)[0]
    names = [
        name
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(report) == sorted(names)
    assert report["v"] == 1


def test_nothing_is_left_to_do_when_all_four_pass(tmp_path: Path) -> None:
    world = honest(tmp_path)
    private = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
    note = cosign_checkpoint(world.remembered, "witness.test/w1", private, 1_700_000_100)
    public = private.public_key().public_bytes_raw()
    trust = Trust(
        keys=(signer().key,),
        witnesses=(VerifierKey("witness.test/w1", COSIGNATURE_V1, public),),
        remembered=(note,),
        now=world.clock.time,
        max_age_seconds=60,
    )
    assert next_step(verify_files([world.folder], trust)) == ""


def test_a_kept_checkpoint_shows_a_rewrite_by_the_keys_owner(tmp_path: Path, key: str) -> None:
    world = honest(tmp_path)
    kept = tmp_path / "kept"
    kept.write_bytes(world.remembered)
    rewrite_with_the_key(world)
    assert run(verify_app, [str(world.folder), "--key", key]).exit_code == 0
    result = run(verify_app, [str(world.folder), "--key", key, "--checkpoint", str(kept)])
    assert result.exit_code == 1
    assert "forked" in result.output


def test_a_missing_file_is_named(tmp_path: Path, key: str) -> None:
    missing = tmp_path / "segment-0000000000000000.jsonl"
    result = run(verify_app, [str(missing), "--key", key])
    assert isinstance(result.exception, AuditError)
    assert str(missing) in result.exception.message


def test_tail_shows_the_newest_and_show_filters(tmp_path: Path) -> None:
    world = honest(tmp_path)
    folder = ["--folder", str(world.folder)]
    result = run(audit_app, ["tail", "-n", "3", *folder])
    assert result.output.encode().splitlines() == world.lines()[-3:]
    result = run(audit_app, ["show", "--request", "req-7", *folder])
    assert [json.loads(line)["request_id"] for line in result.output.splitlines()] == ["req-7"]
    result = run(audit_app, ["show", "--event", "log_closed", "--from", "2023", *folder])
    assert len(result.output.splitlines()) == 1


def test_checkpoint_and_prove_give_files_that_others_can_check(tmp_path: Path) -> None:
    world = honest(tmp_path)
    folder = ["--folder", str(world.folder)]
    result = run(audit_app, ["checkpoint", *folder])
    assert result.output.encode() == (world.folder / "checkpoint").read_bytes()
    proof = run(audit_app, ["prove", "17", *folder]).output.encode()
    assert check_proof(parse_proof(proof), world.lines()[17], [signer().key]) is not None
    assert isinstance(run(audit_app, ["prove", "99", *folder]).exception, AuditError)


def test_the_benchmark_measures_and_verifies_what_it_wrote(tmp_path: Path) -> None:
    settings = AuditBenchSettings(records=600, batch=50, rounds=2, ttft_ms=250, folder=tmp_path)
    report = run_audit_bench(settings)
    assert [row.metric for row in report.rows if row.goal] == [
        "append, durable, one caller",
        "append, durable, 8 callers at once",
        "verify, one core",
        "most memory held",
        "most memory of the collector",
        "records of a request, CPU of its TTFT",
    ]
    assert all(row.value and row.value > 0 for row in report.rows)
