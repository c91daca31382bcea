"""One person in every deployment of a workspace, running, stopped or unknown to the command."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvrun.api.services import open_services
from kvrun.config import load_config
from kvrun.deployments.machine import Command
from kvrun.deployments.model import DeploymentSpec
from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.keys.opening import open_keys
from support.client import grant
from support.daemon import Daemon


def kvrun(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN_")}
    environment["COLUMNS"] = "300"  # a row is a line
    return subprocess.run(
        [sys.executable, "-m", "kvrun", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def statement(path: str | Path) -> ErasureStatement:
    return decode_statement(payload_of(parse_certificate(Path(path).read_bytes())))


@pytest.fixture
def deployments() -> Iterator[list[Daemon]]:
    """``running`` and ``stopped`` know the user, ``empty`` does not; only the first runs."""
    above = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    made = []
    for name in ("running", "stopped", "empty"):
        folder = above / name
        folder.mkdir()
        daemon = Daemon(folder, settings=f'[deployment]\nworkspace = "default"\nname = "{name}"\n')
        daemon.start()
        (daemon.data / "run" / "admin.token").write_text(daemon.admin_token)
        if name != "empty":
            grant(daemon, "alice", "one")
        grant(daemon, "bob")
        if name != "running":
            daemon.stop()
            (daemon.data / "run" / "admin.token").unlink()
        made.append(daemon)
    yield made
    for daemon in made:
        daemon.stop()
    shutil.rmtree(above, ignore_errors=True)


def test_one_parent_certificate_lists_each_deployment(deployments: list[Daemon]) -> None:
    folder = deployments[0].folder
    configs = [part for daemon in deployments for part in ("-c", daemon.config)]
    command = ("erase", "user", "alice", "--workspace", "default", "--json", *configs)

    refused = kvrun(folder, *command)
    assert refused.returncode == 1
    assert "token" in refused.stderr

    plan = answer(kvrun(folder, *command, "--plan"))
    assert [one["sessions"] for one in plan["deployments"]] == [1, 1, 0]
    done = kvrun(folder, *command, "--ref", "DSAR-123", "--confirm", plan["token"])
    assert done.returncode == 0, done.stderr
    parent = statement(answer(done)["certificate"])
    assert parent.request.reference == "DSAR-123"
    anchor = folder / "anchor.json"
    anchor.write_text(kvrun(folder, "trust", "export", "-c", deployments[0].config).stdout)
    verified = kvrun(folder, "verify", answer(done)["certificate"], "--trust", anchor)
    assert verified.returncode == 0, verified.stdout
    assert {child.deployment: child.outcome.value for child in parent.children} == {
        "running": "erased",
        "stopped": "erased",
        "empty": "nothing_held",
    }
    for daemon, child in zip(
        deployments, (_child(parent, name) for name in ("running", "stopped", "empty")), strict=True
    ):
        (path,) = daemon.data.rglob(f"certificates/{child.certificate_id}.json")
        own = statement(path)
        assert own.request.reference == "DSAR-123"
        assert bool(own.keys) == (child.outcome.value == "erased")
        unasked = any("no engine was asked" in excluded for excluded in own.exclusions)
        assert unasked == (daemon is deployments[1])
        listed = answer(kvrun(daemon.folder, "erase", "list", "--ref", "DSAR-123", "--json"))
        assert child.certificate_id in {row["id"] for row in listed}

    def shown(*words: str, of: Daemon) -> dict[str, str]:
        """The lines of a list for people that have the reference, by the id they begin with."""
        lines = kvrun(of.folder, *words, "--ref", "DSAR-123").stdout.splitlines()
        return {line.split()[0]: line for line in lines if "DSAR-123" in line}

    listed_here = shown("erase", "list", of=deployments[0])
    assert len(listed_here) == 2
    assert "each deployment's own" in listed_here[parent.id]
    assert "nothing held" not in "".join(listed_here.values())
    (nothing,) = shown("erase", "list", of=deployments[2]).values()
    assert "nothing held" in nothing
    assert kvrun(folder, "audit", "collect", "--once").returncode == 0
    stored = shown("certificate", "list", of=deployments[0])
    assert stored.keys() == listed_here.keys()
    assert "each deployment's own" in stored[parent.id]
    assert "nothing held" not in "".join(stored.values())

    stopped = deployments[1]
    stopped.start()
    assert grant(stopped, "alice", "one").generation > 2
    assert grant(stopped, "bob").generation == 2


def test_storage_without_its_configuration_is_pending_not_forgotten(
    deployments: list[Daemon],
) -> None:
    daemon = deployments[0]
    (daemon.data / "storage/default/deployments/forgotten").mkdir(parents=True)
    command = ("erase", "user", "alice", "--workspace", "default", "-c", daemon.config, "--json")
    token = answer(kvrun(daemon.folder, *command, "--plan"))["token"]
    done = kvrun(daemon.folder, *command, "--confirm", token)
    assert done.returncode == 1
    parent = statement(answer(done)["certificate"])
    assert _child(parent, "forgotten").outcome.value == "pending"
    assert _child(parent, "running").outcome.value == "erased"


def test_what_the_control_plane_has_on_record_is_pending_not_forgotten(
    short_folder: Path,
) -> None:
    """Made in the console: below the control plane's folder, so that no Storage here shows it."""
    file = short_folder / "kvrun.toml"
    file.write_text("")
    config = load_config(file, {})
    with contextlib.closing(open_keys(config, "one")) as keys:
        keys.acquire("alice", "one")
    with contextlib.closing(open_services(config, file)) as services:
        workspace = services.accounts.ensure_workspace("default")
        made, _ = (
            services.deployments.create(
                workspace.id, DeploymentSpec(name=name, model="demo", multi_tenant=True)
            )
            for name in ("chat", "never-ran")
        )
        services.deployments._store.command(made.id, Command.START)
    here = ("erase", "user", "alice", "--workspace", "default", "--json")
    plan = answer(kvrun(short_folder, *here, "--plan"))
    assert list(plan["pending"]) == [made.id], "neither its own nor what never ran"
    assert "on record as chat" in plan["pending"][made.id]
    assert answer(kvrun(short_folder, *here, "-c", file, "--plan"))["pending"] == plan["pending"]
    done = kvrun(short_folder, *here, "--confirm", plan["token"])
    assert done.returncode == 1
    assert list(answer(done)["problems"]) == [made.id]
    parent = statement(answer(done)["certificate"])
    assert _child(parent, made.id).outcome.value == "pending"
    assert _child(parent, config.deployment.name).outcome.value == "erased"
    (config.control_home / "control.db").write_bytes(b"no database")
    plan = answer(kvrun(short_folder, *here, "--plan"))
    done = kvrun(short_folder, *here, "--confirm", plan["token"])
    assert (done.returncode, answer(done)["problems"]) == (1, {})
    assert "Which other deployments the control plane has is not known" in done.stderr


def test_another_workspace_is_refused(deployments: list[Daemon]) -> None:
    daemon = deployments[0]
    done = kvrun(daemon.folder, "erase", "user", "a", "--workspace", "acme", "-c", daemon.config)
    assert done.returncode == 1
    assert "'default', not 'acme'" in done.stderr


def _child(parent: ErasureStatement, name: str) -> Any:
    return next(child for child in parent.children if child.deployment == name)
