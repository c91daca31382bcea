"""``kvrun policy``: what people and scripts see."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvrun.cli.main import app
from kvrun.config import load_config
from kvrun.policy.bundle import PolicyFolder, TenantEntry
from kvrun.policy.document import schema_text
from kvrun.policy.named import RevisionUnknownError, find_revision

POLICY = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {name: eu}
match:
  classes: [eu]
allow:
  tiers: [gpu, memory]
  regions: ["eu-*"]
reason: contract
tests:
  - {tenant: {class: eu}, instance_region: eu-1, tier: disk, expect: deny}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "eu.yaml").write_text(POLICY)
    return tmp_path


def _run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["policy", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout + result.stderr


def _repository(home: Path) -> Path:
    (home / "repo").mkdir()
    (home / "policies").rename(home / "repo" / "policies")
    for arguments in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "one"),
    ):
        subprocess.run(["git", *arguments], cwd=home / "repo", check=True)
    return home / "repo"


def _commit(repository: Path, subject: str) -> None:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qam", subject]
    subprocess.run(command, cwd=repository, check=True)


def _synced() -> dict[str, str]:
    outcome = json.loads(_run("sync", "--json"))
    assert isinstance(outcome, dict)
    return outcome


def test_lint_says_what_is_wrong_and_where(home: Path) -> None:
    assert "1 policies are right" in _run("lint")
    file = home / "policies" / "eu.yaml"
    file.write_text(POLICY.replace("[gpu, memory]", "[gpu, ram]"))
    assert "eu.yaml:7:16: allow.tiers.1" in _run("lint", code=1)


def test_test_runs_what_the_policies_carry(home: Path) -> None:
    assert "1 tests passed, 0 failed" in _run("test")
    (home / "policies" / "eu.yaml").write_text(POLICY.replace("expect: deny", "expect: allow"))
    answer = json.loads(_run("test", "--json", code=1))
    assert answer["passed"] == 0
    assert answer["failures"][0].startswith("eu.yaml:11:5: test 'eu number 1': expected allow")


def test_schema_is_the_published_one() -> None:
    assert _run("schema") == schema_text()


def test_explain_names_policy_file_line_and_revision(home: Path) -> None:
    (home / "kvrun.toml").write_text('[residency]\nregion = "eu-1"\n')
    answer = json.loads(
        _run("explain", "--class", "eu", "--revision", "./policies", "--tier", "disk", "--json")
    )
    disk = answer["tiers"]["disk"]
    assert disk["decision"]["allowed"] is False
    assert (disk["decision"]["rule"], disk["decision"]["where"]) == ("eu", "eu.yaml:1")
    assert (disk["traces"][0]["refuses"], disk["traces"][0]["matched"]) == (
        "tier_not_allowed",
        "yes",
    )
    assert "refused" in _run("explain", "--class", "eu", "--revision", "./policies")


def test_a_repository_is_followed_compared_and_shown(home: Path) -> None:
    repository = _repository(home)
    (home / "kvrun.toml").write_text(f'[residency]\nregion = "eu-1"\nrepository = "{repository}"\n')
    assert json.loads(_run("sync", "--json"))["outcome"] == "activated"
    state = json.loads(_run("status", "--json"))
    assert state["active"]["subject"] == "one"
    file = repository / "policies" / "eu.yaml"
    file.write_text(POLICY.replace("[gpu, memory]", "[gpu]"))
    answer = json.loads(_run("diff", "active", str(repository / "policies"), "--json"))
    assert answer["changes"][0]["fields"] == ["allow.tiers: [gpu, memory] -> [gpu]"]
    shown = _run("diff", "active", str(repository / "policies"))
    assert "[gpu, memory] -> [gpu]" in shown
    same = _run("diff", "main", "active", "--repository", str(repository))
    assert "no policy differs" in same
    assert "no decision of this instance changes" in same
    file.write_text("x")
    _commit(repository, "two")
    assert "policies/eu.yaml:1:1: a document is a mapping" in _run("sync", code=1)
    assert json.loads(_run("status", "--json"))["active"]["subject"] == "one"


def test_a_stricter_revision_is_taken_although_the_log_is_damaged_and_a_looser_is_not(
    home: Path,
) -> None:
    repository = _repository(home)
    (home / "kvrun.toml").write_text(
        f'[instance]\ndata_dir = "{home}/data"\n'
        f'[residency]\nrepository = "{repository}"\nregion = "eu-1"\n'
    )
    known = TenantEntry(tenant_ref="a", tenant_class="eu")
    PolicyFolder(home / "data" / "residency").put_tenants([known])
    assert _synced()["note"].endswith("; blocks that have to leave: none")
    log = home / "data" / "audit"
    log.mkdir(parents=True)
    (log / "segment-0000000000000000.jsonl").write_bytes(b"no record\n")
    (repository / "policies" / "eu.yaml").write_text(POLICY.replace("[gpu, memory]", "[gpu]"))
    _commit(repository, "stricter")
    outcome = _synced()
    assert outcome["outcome"] == "activated"
    assert "; blocks that have to leave: unknown: the log does not say" in outcome["note"]
    assert json.loads(_run("status", "--json"))["active"]["subject"] == "stricter"
    (repository / "policies" / "eu.yaml").write_text(POLICY)
    _commit(repository, "looser")
    assert "main:1:1: it cannot be tried on what is placed now" in _run("sync", code=1)
    assert json.loads(_run("status", "--json"))["active"]["subject"] == "stricter"
    shutil.rmtree(log)
    assert _synced()["outcome"] == "activated"
    assert json.loads(_run("status", "--json"))["active"]["subject"] == "looser"


def test_without_a_repository_there_is_nothing_to_follow(home: Path) -> None:
    (home / "kvrun.toml").write_text("")
    assert "builtin-1 applies" in _run("sync", code=1)
    assert "no policy is active" in _run("explain", "--class", "eu", code=1)
    with pytest.raises(RevisionUnknownError, match="builtin-1 applies") as refused:
        find_revision(load_config(home / "kvrun.toml", {}), "main")
    assert "residency.repository" in (refused.value.hint or "")
