"""The commands that work on a control plane, against one that answers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_rig import World
from api_server import serving
from click.testing import Result
from typer.testing import CliRunner

from kvrun.accounts import Scope
from kvrun.cli.main import app

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
