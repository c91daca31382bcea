"""The commands that work on a control plane, against one that answers over HTTP."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_rig import World
from api_server import serving
from click.testing import Result
from typer.testing import CliRunner

from kvrun.accounts import Scope
from kvrun.api import finetunes
from kvrun.cli.main import app
from kvrun.keys.filesystem import ClaimClass
from support.filesystems import pretend_filesystem

Run = Callable[..., Result]


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A command of the owner of the workspace acme."""
    key = world.key(world.owner_actor, [Scope.ADMIN]).headers["Authorization"].split()[1]
    with serving(world) as url:
        for name, value in (
            ("KVRUN_API_URL", url),
            ("KVRUN_API_KEY", key),
            ("KVRUN_WORKSPACE", "acme"),
            ("COLUMNS", "100"),
        ):
            monkeypatch.setenv(name, value)
        yield lambda *words: CliRunner().invoke(app, words)


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(result: Result) -> Any:
    return json.loads(ok(result))


def test_a_deployments_life(world: World, run: Run) -> None:
    made = as_json(
        run("deployments", "create", "chat", "--model", "tiny", "--multi-tenant", "--json",
            "--memory", "512MiB", "--label", "team=support")
    )  # fmt: skip
    assert made["spec"]["memory_bytes"] == 2**29
    assert made["spec"]["labels"] == {"team": "support"}
    assert "starting" in ok(run("deployments", "start", "chat"))
    world.services.deployments.supervise()
    table = ok(run("deployments", "list"))
    assert "chat" in table
    assert "running" in table
    assert all(len(line) <= 100 for line in table.splitlines())
    assert as_json(run("deployments", "show", made["id"], "--json"))["state"] == "running"
    ok(run("deployments", "drain", "chat"))
    world.services.deployments.supervise()
    world.services.deployments.supervise()
    refused = run("deployments", "delete", "chat")
    assert refused.exit_code == 2
    assert as_json(run("deployments", "list", "--json"))
    assert "its log is kept" in ok(run("deployments", "delete", "chat", "--yes"))
    assert as_json(run("deployments", "list", "--json")) == []
    assert as_json(run("deployments", "list", "--deleted", "--json"))[0]["state"] == "deleted"


def test_a_workspaces_evidence_is_made_fetched_and_checked(
    world: World, run: Run, tmp_path: Path
) -> None:
    for name in ("chat", "second"):
        world.deployment(name)
    path, anchor = tmp_path / "evidence.zip", tmp_path / "anchor.json"
    asked = ("evidence", "export", "-w", "acme", "--from", "2026-01-01", "--to", "2026-02-01")
    assert "evidence:" in ok(run(*asked, "-o", str(path)))
    assert path.stat().st_mode & 0o777 == 0o600
    anchor.write_text(ok(run("evidence", "trust", "--workspace", "acme")))
    assert "policies" in ok(run("verify", str(path), "--trust", str(anchor)))
    with zipfile.ZipFile(path) as archive:
        summary = json.loads(archive.read("summary.json"))
    assert sorted(name for _, name in summary["deployments"]) == ["chat", "second"]
    again = run(*asked, "-o", str(path))
    assert again.exit_code == 1
    assert "there already" in again.stderr
    assert run(*asked[:3], "elsewhere", *asked[4:]).exit_code == 2
    wrong = run(*asked[:-1], "2026-01-01", "-o", str(tmp_path / "x.zip"))
    assert wrong.exit_code != 0
    assert not (tmp_path / "x.zip").exists()


def test_who_makes_a_deployment_is_warned_of_a_root_that_proves_no_erasure(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("--model", "tiny", "--single-tenant", "--json")
    for claim in (ClaimClass.LOGICAL, ClaimClass.DEVICE):
        pretend_filesystem(monkeypatch, claim)
        done = run("deployments", "create", f"on-{claim.value}", *create)
        warned = claim is ClaimClass.LOGICAL
        assert bool(as_json(done)["warnings"]) == warned
        assert ("warning: The key root cannot prove" in done.stderr) == warned


def test_workspaces_and_members(run: Run) -> None:
    assert [item["name"] for item in as_json(run("workspaces", "list", "--json"))] == ["acme"]
    ok(run("members", "add", "ada@example.com", "--role", "privacy"))
    ok(run("members", "set-role", "Ada@example.com", "--role", "auditor"))
    assert "auditor" in ok(run("members", "list"))
    ok(run("members", "remove", "ada@example.com", "--yes"))
    gone = run("members", "remove", "ada@example.com", "--yes")
    assert gone.exit_code == 2
    refused = run("workspaces", "create", "another")
    assert refused.exit_code == 1
    assert "only people" in refused.stderr


def test_api_keys(run: Run) -> None:
    made = as_json(run("apikeys", "create", "website", "--scope", "infer", "--days", "7", "--json"))
    assert made["secret"].startswith("kv")
    listed = ok(run("apikeys", "list"))
    assert "website" in listed
    assert made["secret"] not in listed
    following = ok(run("apikeys", "rotate", made["key"]["id"], "--overlap", "60"))
    assert "shown this once" in following
    assert "revoked" in ok(run("apikeys", "revoke", made["key"]["id"]))
    assert len(as_json(run("apikeys", "list", "--json"))) == 2
    assert len(as_json(run("apikeys", "list", "--inactive", "--json"))) == 3


def test_where_somebody_is(world: World, run: Run) -> None:
    deployment = world.deployment()
    world.visit(deployment, "alice")
    found = as_json(run("users", "where-is", "alice", "--json"))
    assert [(item["found"], item["sessions"]) for item in found] == [(True, 1)]
    assert "alice" not in ok(run("users", "list", "chat"))
    assert "alice" in ok(run("users", "list", "chat", "--reason", "ticket 1"))
    assert len(as_json(run("users", "sessions", "chat", "alice", "--json"))) == 1


def test_what_is_said_of_users_is_said_by_command(world: World, run: Run, tmp_path: Path) -> None:
    deployment = world.deployment()
    world.visit(deployment, "alice", "bob")
    users = as_json(run("users", "list", "chat", "--reason", "ticket 1", "--json"))
    refs = {item["tenant"]: item["tenant_ref"] for item in users}
    ok(run("users", "label", "chat", refs["alice"], "--class", "gold", "--label", "customer=acme"))
    file = tmp_path / "users.csv"
    file.write_text("tenant,label:customer\nbob,acme\nnobody,acme\n")
    left_out = run("users", "import", "chat", str(file))
    assert left_out.exit_code == 1
    assert "lines 3" in left_out.stdout
    plan = as_json(run("erase", "tenants", "--label", "customer=acme", "--plan", "--json"))
    assert plan["tenants"] == 2


def test_another_specification_and_what_somebody_else_runs(
    world: World, run: Run, tmp_path: Path
) -> None:
    deployment = world.deployment()
    shown = ok(
        run("deployments", "rebuild", "chat", "--memory", "64MiB", "--set", "engine.max_num_seqs=7")
    )
    assert "instance 2" in shown
    spec = as_json(run("deployments", "show", "chat", "--json"))["spec"]
    assert (spec["memory_bytes"], spec["settings"]) == (2**26, {"engine.max_num_seqs": 7})
    assert spec["disk_bytes"] == deployment.spec.disk_bytes
    assert "scratch space" in ok(run("deployments", "cache", "chat"))
    assert "endpoint" in ok(run("deployments", "overview", "chat"))
    assert as_json(run("deployments", "policy", "chat"))
    token = as_json(run("deployments", "attach-token", "theirs", "--json"))["token"]
    config = tmp_path / "kvrun.toml"
    config.write_text('[deployment]\nname = "theirs"\n[instance]\ndata_dir = "data"\n')
    kept = tmp_path / "token"
    kept.write_text(token)
    attach = ("deployments", "attach", "--token-file", str(kept), "--config", str(config))
    assert "is attached" in ok(run(*attach))
    assert run(*attach).exit_code == 1, "a token works once"
    assert "is forgotten here" in ok(run("deployments", "detach", "theirs"))
    made = as_json(run("service-accounts", "create", "ci", "--role", "developer", "--json"))
    key = as_json(run("apikeys", "create", "ci", "--scope", "infer", "--service-account", "ci",
                      "--json"))  # fmt: skip
    assert key["key"]["service_account_id"] == made["id"]
    ok(run("service-accounts", "delete", "ci", "--yes"))
    assert "ci" in ok(run("service-accounts", "list"))


def test_erasing_and_reading_need_an_api_key_and_no_configuration(
    world: World, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deployment = world.deployment()
    world.visit(deployment, "alice", "bob", "carol", "dora")
    world.launcher.alive.discard(deployment.id)
    shown = ok(run("remote", "erase", "chat", "--tenant", "alice", "--plan"))
    command = shown.rpartition("kvrun ")[2].split()
    done = ok(run(*command, "--ref", "DSAR-1"))
    assert "1 session key(s) destroyed" in done
    (erasure,) = as_json(run("remote", "erasures", "chat", "--ref", "DSAR-1", "--json"))
    assert "certified" in ok(run("remote", "erasures", "chat", erasure["id"]))
    assert "alice" in Path(f"{erasure['id']}.opening.json").read_text()
    (listed,) = as_json(run("remote", "certificates", "--ref", "DSAR-1", "--json"))
    assert "bytes" in ok(run("remote", "certificate", "chat", listed["id"]))
    ok(run("remote", "trust", "chat", "-o", "anchor.json"))
    verified = run("verify", f"{listed['id']}.json", "--trust", "anchor.json")
    assert verified.exit_code == 0, verified.output
    odd = "$(reboot);'x'"
    shown = ok(run("remote", "erase", "chat", "--tenant", odd, "--plan"))
    assert shlex.split(shown.rpartition("kvrun ")[2])[4] == odd, "it can be pasted into a shell"
    shown = ok(run("remote", "erase-user", "bob", "--plan"))
    command = shown.rpartition("kvrun ")[2].split()
    assert "certificate over all" in ok(run(*command, "--ref", "DSAR-2"))
    asked_for = ("erase", "user", "dora", "--workspace", "acme")
    shown = ok(run(*asked_for, "--plan"))
    command = shown.rpartition("kvrun ")[2].split()
    assert command[:5] == list(asked_for), "no configuration is here, so the control plane is asked"
    assert "certificate over all" in ok(run(*command, "--ref", "DSAR-3"))
    found = as_json(run("remote", "certificates", "--ref", "DSAR-3", "--json"))
    assert [item["children"] for item in found].count(1) == 1, "the deployment's, the one over all"
    shown = ok(run("remote", "certificates", "--ref", "DSAR-3"))
    assert shown.count("each deployment's") == 1
    assert "nothing held" not in shown
    Path("kvrun.toml").write_text("")
    shown = ok(run(*asked_for, "--plan"))
    assert "--api-url" in shown.rpartition("kvrun ")[2].split(), "an address that is given is asked"
    given = run(*asked_for, "--plan", "-c", "kvrun.toml")
    assert "'default', not 'acme'" in given.output, "a configuration wins"
    whole = as_json(run("remote", "erase", "chat", "--plan", "--json"))
    assert (whole["kind"], whole["tenants"]) == ("deployment", 1)
    assert "is asked for" in ok(
        run("remote", "erase", "chat", "--ask", "--confirm", whole["token"])
    )
    (asked,) = as_json(run("remote", "approvals", "--json"))
    assert "refused" in ok(run("remote", "refuse", asked["id"]))

    verdict = ok(run("remote", "audit", "chat", "--collect"))
    assert "erified up to record" in verdict
    assert "erased" in ok(run("remote", "records", "chat", "--event", "erased"))
    missing = run("remote", "segment", "chat", "segment-0000000000000000.jsonl")
    assert missing.exit_code == 1, "it is stored once it is full"
    folder = f"deployments/{deployment.id}/certificates"
    stored = as_json(run("remote", "storage", folder, "--json"))
    (proof,) = [item["key"] for item in stored if item["key"].endswith(f"{listed['id']}.log-proof")]
    ok(run("remote", "fetch", proof, "-o", "certificate.log-proof"))
    ok(run("remote", "trust", "chat", "-o", "newer.json"))  # the earlier one names no such log
    checks = ("--trust", "newer.json", "--log-proof", "certificate.log-proof")
    shown = run("verify", f"{listed['id']}.json", *checks).stdout
    assert re.search(r"^control_log +pass +included:", shown, re.MULTILINE), shown
    ok(run("remote", "fetch", stored[0]["key"], "-o", "stored.json"))
    assert Path("stored.json").stat().st_size == stored[0]["size_bytes"]
    assert Path("stored.json").stat().st_mode & 0o077 == 0
    again = run(
        "remote", "evidence", "--from", "2026-01-01", "--to", "2026-02-01", "-o", "stored.json"
    )
    assert "is there already" in again.output, "a bundle takes no other file's place"
    assert run("remote", "alerts").exit_code == 0
    assert "a session is one of a user" in run("remote", "erase", "chat", "--session", "x").output


def test_fine_tunes_are_made_stopped_and_deleted_by_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(finetunes, "is_home", lambda *_: True)
    monkeypatch.setattr(finetunes, "require_tools", lambda: None)
    monkeypatch.setattr(finetunes, "run_job", lambda store, ring, name, most: started.append(name))
    data = tmp_path / "train.jsonl"
    data.write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    create = ("remote", "finetune-create", "--name", "support-9", "--base", "demo", "--data")
    assert "job support-9" in ok(run(*create, str(data)))
    assert run(*create, str(data)).exit_code != 0, "the name is taken"
    assert run(*create, str(tmp_path / "missing")).exit_code == 1
    assert "job support-9" in ok(run("remote", "finetunes"))
    idle = run("remote", "finetune-cancel", "support-9")
    assert (idle.exit_code, idle.stdout) == (1, "no process works on it\n")
    ok(run("remote", "finetune-resume", "support-9"))
    assert started == ["support-9", "support-9"]
    assert run("remote", "finetune-delete", "support-9").exit_code == 2, "nobody was asked"
    ok(run("remote", "finetune-delete", "support-9", "--yes"))
    assert as_json(run("remote", "finetunes", "--json"))["jobs"] == []
    assert "support-9" in run("remote", "finetune", "support-9").stderr


def test_what_is_not_there_or_not_said_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = run("deployments", "show", "nowhere")
    assert missing.exit_code == 2
    assert "nowhere" in missing.stderr
    other = run("deployments", "list", "--workspace", "not-mine")
    assert other.exit_code == 2
    key = tmp_path / "key"
    key.write_text("kv_open-to-all\n")
    key.chmod(0o644)
    refused = run("workspaces", "list", "--api-key-file", str(key))
    assert refused.exit_code == 2
    assert "chmod 600" in refused.stderr
    key.chmod(0o600)
    wrong = run("workspaces", "list", "--api-key-file", str(key))
    assert wrong.exit_code == 1
    assert "kv_open-to-all" not in wrong.output + wrong.stderr
    monkeypatch.setenv("KVRUN_API_URL", "http://kvrun.example.com")
    assert run("workspaces", "list").exit_code == 2
