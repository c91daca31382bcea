"""``kvrun erase`` as an operator uses it: plan, confirm, find again, verify elsewhere."""

from __future__ import annotations

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

from support.client import grant
from support.daemon import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder)
    running.start()
    (running.data / "run" / "admin.token").write_text(running.admin_token)
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def kvrun(daemon: Daemon, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN_")}
    return subprocess.run(
        [sys.executable, "-m", "kvrun", *map(str, arguments)],
        cwd=daemon.folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_a_session_erased_is_found_by_reference_and_verified_elsewhere(daemon: Daemon) -> None:
    grant(daemon, "alice", "chat-7")
    done = kvrun(
        daemon, "erase", "session", "--tenant", "alice", "--session", "chat-7", "--ref", "DSAR-1",
        "--legal-basis", "GDPR Art. 17", "--opening", "alice.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    certificate = done.stdout.split("certificate: ")[1].split("\n")[0]
    assert (daemon.folder / "alice.json").stat().st_mode & 0o777 == 0o600

    (row,) = answer(kvrun(daemon, "erase", "list", "--ref", "DSAR-1", "--json"))
    assert (row["certificate"], row["class"], row["keys"]) == (certificate, "device", "1")
    status = kvrun(daemon, "erase", "status", row["id"], "--json")
    assert status.returncode == 0
    assert [step["name"] for step in answer(status)["steps"]][-1] == "certified"

    (daemon.folder / "anchor.json").write_text(kvrun(daemon, "trust", "export").stdout)
    elsewhere = kvrun(
        daemon, "verify", certificate, "--trust", "anchor.json", "--subject", "chat-7",
        "--opening", "alice.json",
    )  # fmt: skip
    assert elsewhere.returncode == 0, elsewhere.stdout
    another = kvrun(
        daemon, "verify", certificate, "--trust", "anchor.json", "--subject", "chat-8",
        "--opening", "alice.json",
    )  # fmt: skip
    assert another.returncode == 1


def test_a_tenant_wants_the_plans_token(daemon: Daemon) -> None:
    grant(daemon, "bob")
    refused = kvrun(daemon, "erase", "tenant", "--tenant", "bob")
    assert refused.returncode == 1
    assert "--plan" in refused.stderr
    plan = kvrun(daemon, "erase", "tenant", "--tenant", "bob", "--plan")
    assert plan.returncode == 0
    command = plan.stdout.split("to erase: kvrun ")[1].split()
    done = kvrun(daemon, *command, "--json")
    assert done.returncode == 0, done.stderr
    assert len(answer(done)["erased"]) == 1


def test_what_cannot_be_found_or_done_is_said(daemon: Daemon) -> None:
    assert "no erasure" in kvrun(daemon, "erase", "list", "--ref", "none").stdout
    assert kvrun(daemon, "erase", "status", "0" * 24).returncode == 1
