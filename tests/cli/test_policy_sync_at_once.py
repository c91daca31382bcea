"""Two processes that look at a policy's repository at once: one works, the other waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvrun.config import load_config
from kvrun.policy.bundle import PolicyFolder
from kvrun.policy.errors import PolicyBusyError
from kvrun.policy.setup import folder_of
from support.client import eventually
from support.git_servers import play_ssh

POLICY = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {name: eu}
match: {classes: [eu]}
allow: {tiers: [gpu, memory], regions: ["eu-*"]}
"""


class World:
    """An installation whose repository is behind an ssh that can be held up."""

    def __init__(self, folder: Path) -> None:
        self.base = folder
        self.ssh = play_ssh(folder / "bin")
        repository = folder / "repository"
        (repository / "policies").mkdir(parents=True)
        (repository / "policies" / "eu.yaml").write_text(POLICY)
        for arguments in (
            ("init", "-q", "-b", "main"),
            ("add", "-A"),
            ("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "one"),
        ):
            subprocess.run(["git", *arguments], cwd=repository, check=True)
        (folder / "kvrun.toml").write_text(
            f'[instance]\ndata_dir = "d"\n[residency]\n'
            f'repository = "ssh://git@git.example.com{repository}"\ntimeout_s = 120\n'
        )
        self.processes: list[subprocess.Popen[str]] = []

    @property
    def folder(self) -> PolicyFolder:
        return folder_of(load_config(self.base / "kvrun.toml", {}))

    def sync(self) -> subprocess.Popen[str]:
        """``kvrun policy sync`` in a process of its own."""
        command = [sys.executable, "-m", "kvrun", "policy", "sync", "--json"]
        process = subprocess.Popen(
            [*command, "--config", str(self.base / "kvrun.toml")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PATH": f"{self.ssh}:{os.environ['PATH']}"},
        )
        self.processes.append(process)
        return process

    def calls(self) -> int:
        """How often the repository was asked."""
        record = self.ssh / "calls"
        return len(record.read_text().splitlines()) if record.exists() else 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    (made.ssh / "gate").unlink(missing_ok=True)
    for process in made.processes:
        process.kill()
        process.communicate()


def outcome(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, out + errors
    found: dict[str, str] = json.loads(out)
    return found["outcome"]


def has_open(process: subprocess.Popen[str], path: Path) -> Callable[[], bool]:
    def looks() -> bool:
        assert process.poll() is None, process.communicate()
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                if entry.readlink() == path:
                    return True
            except FileNotFoundError:
                continue
        return False

    return looks


def test_the_second_waits_until_the_first_is_done_and_finds_nothing_new(world: World) -> None:
    (world.ssh / "gate").touch()
    first = world.sync()
    eventually(lambda: world.calls() == 1, "the first is at the repository", 60)
    second = world.sync()
    eventually(has_open(second, world.folder.folder / "sync.lock"), "the second waits", 60)
    assert world.calls() == 1
    (world.ssh / "gate").unlink()
    assert outcome(first) == "activated"
    assert outcome(second) == "unchanged"
    assert [line.outcome for line in world.folder.status().history] == ["activated"]


def test_who_waits_too_long_is_told_which_process_it_is(world: World) -> None:
    (world.ssh / "gate").touch()
    first = world.sync()
    eventually(lambda: world.calls() == 1, "the first is at the repository", 60)
    with (
        pytest.raises(PolicyBusyError, match=f"process {first.pid} looks at"),
        world.folder.alone(0.0),
    ):
        pass
    (world.ssh / "gate").unlink()
    assert outcome(first) == "activated"


def test_one_that_was_killed_holds_up_nobody(world: World) -> None:
    (world.ssh / "gate").touch()
    first = world.sync()
    eventually(lambda: world.calls() == 1, "the first is at the repository", 60)
    first.kill()
    first.wait()
    (world.ssh / "gate").unlink()
    assert outcome(world.sync()) == "activated"
