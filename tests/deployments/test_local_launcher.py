"""Process trees that outlive the control plane: found again, never doubled, restarted, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from deploy_rig import WORKSPACE, Rig, processes_of, spec
from killed_control import run_killed

from kvrun.deployments.local import LOCK_NAME
from kvrun.deployments.model import Deployment, DeploymentState, Wanted
from kvrun.deployments.service import Deployments
from kvrun.filelock import hold_file, is_held
from kvrun.gateway.apikeys import ApiKeyRecord, load_api_keys
from kvrun.instance.known_engines import process_start
from kvrun.state import Database
from support.client import eventually

START_MOMENTS = (
    "before:command",
    "after:command",
    "after:put_place",
    "after:hold",
    "before:spawn",
    "after:spawn",
    "end",
)


def control(rig: Rig, deployment_id: str, command: str, moment: str) -> None:
    """Another control plane on the same home, which is killed."""
    run_killed(rig.home, deployment_id, command, moment)


def one_tree(rig: Rig, deployment: Deployment) -> int:
    """The process id of the one tree that runs."""
    (process,) = processes_of(deployment)
    assert rig.launches(deployment.id)[-1] == process.pid
    return process.pid


@pytest.mark.parametrize("moment", START_MOMENTS)
def test_a_control_plane_killed_while_it_starts_leaves_nothing_half_made(
    rig: Rig, moment: str
) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    control(rig, made.id, "start", moment)
    later = rig.again()
    asked = later.deployments.get(made.id).wanted is Wanted.RUN
    assert asked == (moment != "before:command")
    if asked:
        running = later.until(made.id, DeploymentState.RUNNING)
        one_tree(later, running)
        assert running.restarts == 0, "what was started was taken for crashed"
        assert len(later.launches(made.id)) == 1
    else:
        later.deployments.supervise()
        assert processes_of(made) == []
    later.close()


@pytest.mark.parametrize("moment", ["before:insert", "after:insert", "before:api_keys"])
def test_a_control_plane_killed_while_it_creates_leaves_a_whole_deployment_or_none(
    rig: Rig, moment: str
) -> None:
    control(rig, "-", "create", moment)
    later = rig.again()
    found = later.deployments.list(WORKSPACE)
    assert len(found) == (moment != "before:insert")
    for deployment in found:
        later.deployments.start(deployment.id)
        later.until(deployment.id, DeploymentState.RUNNING)
        key = ApiKeyRecord(id="key-" + "a" * 16, sha256="0" * 64)
        later.deployments.set_api_keys(deployment.id, [key])
        assert key in load_api_keys(deployment.folder / "api_keys.json")
    later.close()


@pytest.mark.parametrize("moment", ["after:command", "after:terminate", "before:save"])
def test_a_control_plane_killed_while_it_stops_is_stopped_by_the_next_one(
    rig: Rig, moment: str
) -> None:
    running = rig.running()
    control(rig, running.id, "stop", moment)
    later = rig.again()
    later.until(running.id, DeploymentState.STOPPED)
    assert processes_of(running) == []
    later.close()


def test_the_tree_goes_on_without_the_control_plane_and_is_found_again(rig: Rig) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    control(rig, made.id, "start", "end")
    eventually((made.folder / "data/run/up.json").exists, "it runs by itself")
    (process,) = processes_of(made)
    assert os.getsid(process.pid) == process.pid, "it has a session of its own"
    later = rig.again()
    running = later.until(made.id, DeploymentState.RUNNING)
    assert one_tree(later, running) == process.pid
    later.deployments.stop(made.id, wait_s=20)
    assert later.deployments.get(made.id).state is DeploymentState.STOPPED
    assert processes_of(made) == []
    later.close()


def test_a_crash_is_named_and_restarted_later_each_time(rig: Rig) -> None:
    running = rig.running()
    (running.folder / "die").touch()
    failed = rig.until(running.id, DeploymentState.FAILED)
    assert failed.reason == "engine ended by itself (exit status 5) (exit status 4)"
    assert "its log" not in failed.reason, "log lines may hold anything"
    assert failed.restart_at is not None
    assert failed.restart_at - failed.state_since == pytest.approx(2)
    assert rig.launches(running.id)[1:] == []
    rig.deployments.supervise()
    assert rig.deployments.get(running.id).state is DeploymentState.FAILED, "not before its time"
    rig.clock.ahead_s += 2
    rig.until(running.id, DeploymentState.STARTING)
    again = rig.until(running.id, DeploymentState.FAILED)
    assert again.restart_at is not None
    assert again.restart_at - again.state_since == pytest.approx(4)
    (running.folder / "die").unlink()
    rig.clock.ahead_s += 4
    well = rig.until(running.id, DeploymentState.RUNNING)
    assert well.restarts == 2
    assert len(rig.launches(running.id)) == 3


def test_one_that_is_killed_is_named_by_its_signal(rig: Rig) -> None:
    running = rig.running()
    os.kill(one_tree(rig, running), signal.SIGKILL)
    assert rig.until(running.id, DeploymentState.FAILED).reason == "killed by SIGKILL"


def test_one_that_does_not_answer_is_unhealthy_and_left_alone(rig: Rig) -> None:
    running = rig.running()
    pid = one_tree(rig, running)
    (running.folder / "ill").touch()
    assert rig.until(running.id, DeploymentState.UNHEALTHY).reason == "it does not answer"
    (running.folder / "ill").unlink()
    rig.until(running.id, DeploymentState.RUNNING)
    assert one_tree(rig, running) == pid


def test_a_restart_and_a_rebuild_are_new_processes_on_the_same_folder(rig: Rig) -> None:
    running = rig.running()
    pid = one_tree(rig, running)
    door = running.folder / "data/gateway/draining"
    door.parent.mkdir(parents=True, exist_ok=True)
    door.touch()
    rig.deployments.restart(running.id)
    again = rig.until(running.id, DeploymentState.RUNNING)
    assert one_tree(rig, again) != pid
    assert again.instance == 1
    assert not door.exists(), "it takes requests again"
    rig.deployments.rebuild(running.id, spec("renamed", context_window=64))
    rebuilt = rig.until(running.id, DeploymentState.RUNNING)
    assert (rebuilt.instance, rebuilt.spec.name, rebuilt.folder) == (2, "renamed", running.folder)
    assert rig.deployments.config_of(running.id).deployment.context_window == 64
    assert len(rig.launches(running.id)) == 3


def test_a_number_that_another_process_has_now_is_not_signalled(rig: Rig) -> None:
    running = rig.running()
    launched = one_tree(rig, running)
    os.kill(launched, signal.SIGKILL)
    # A dying process loses its command line before its files.
    eventually(lambda: _is_free(running.folder / LOCK_NAME), "it ended")
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        # Somebody holds the lock, and the note's number is the bystander's, started at other times.
        held = hold_file(running.folder / LOCK_NAME, "")
        note = {"pid": bystander.pid, "started": process_start(os.getpid()), "attempt": 9}
        os.pwrite(held, json.dumps(note).encode(), 0)
        stopping = rig.deployments.stop(running.id)
        assert stopping.state is DeploymentState.STOPPING
        rig.deployments.supervise()
        assert bystander.poll() is None
        os.ftruncate(held, 0)
        os.pwrite(held, json.dumps(note | {"started": process_start(bystander.pid)}).encode(), 0)
        rig.deployments.supervise()
        assert bystander.wait(20) == -signal.SIGTERM, "the right one would have been"
        os.close(held)
    finally:
        bystander.kill()
        bystander.wait()
    rig.until(running.id, DeploymentState.STOPPED)


def test_the_control_planes_own_settings_reach_no_deployment(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVRUN_DEPLOYMENT__MODEL", "another")
    monkeypatch.setenv("KVRUN_PARENT_PID", "1")
    running = rig.running()
    variables = Path(f"/proc/{one_tree(rig, running)}/environ").read_bytes().split(b"\0")
    assert [item for item in variables if item.startswith(b"KVRUN_")] == []
    assert (running.folder / "data/logs/up.log").stat().st_mode & 0o777 == 0o600
    assert running.folder.stat().st_mode & 0o777 == 0o700
    for path in running.folder.iterdir():
        assert path.is_dir() or path.name == "launches" or path.stat().st_mode & 0o077 == 0, path


def test_a_real_up_that_cannot_start_says_why(short_folder: Path) -> None:
    opened = closing(Database.open(f"sqlite:///{short_folder}/c.sqlite"))
    with socket.socket() as taken, opened as database:
        deployments = Deployments(database, short_folder, gpus=lambda ids: None)
        made = deployments.create(WORKSPACE, spec())
        taken.bind(("127.0.0.1", deployments.config_of(made.id).gateway.port))
        taken.listen()
        deployments.start(made.id)
        eventually(
            lambda: bool(deployments.supervise()) and deployments.get(made.id).restarts == 1,
            "it gave up",
            timeout_s=180,
        )
        failed = deployments.get(made.id)
        assert failed.state is DeploymentState.FAILED
        assert "gateway.port = " in failed.reason or "no engine is installed" in failed.reason
        assert "(exit status" in failed.reason
        assert "kvrun" in deployments.logs(made.id)
        deployments.stop(made.id, wait_s=20)


def test_what_a_person_started_on_the_folder_is_adopted(rig: Rig) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    by_hand = subprocess.Popen(
        [sys.executable, str(rig.up), str(made.config_file), "up", "--config", "kvrun.toml"],
        cwd=made.folder,
    )
    try:
        found = rig.until(made.id, DeploymentState.RUNNING)
        assert found.wanted is Wanted.RUN
        rig.deployments.stop(made.id, wait_s=20)
        assert by_hand.wait(20) == 0
    finally:
        by_hand.kill()
        by_hand.wait()


@pytest.mark.parametrize("stale", ["started at another time", "up of another file", "no start"])
def test_a_note_that_was_left_behind_makes_no_foreign_process_ours(rig: Rig, stale: str) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    named = made.folder / ("other.toml" if stale == "up of another file" else "kvrun.toml")
    command = [sys.executable, "-c", "input()", "up", "--config", str(named)]
    bystander = subprocess.Popen(command, stdin=subprocess.PIPE)
    started = {"started at another time": process_start(os.getpid()), "no start": ""}
    note = {
        "pid": bystander.pid,
        "processes": {},
        "gateway_url": "",
        "engine_url": "",
        "model": "",
        "started_at": 0.0,
        "process_start": started.get(stale, process_start(bystander.pid)),
    }
    try:
        path = rig.deployments.config_of(made.id).layout.state
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(note))
        rig.deployments.supervise()
        assert rig.deployments.get(made.id).state is DeploymentState.CREATED
        rig.deployments.delete(made.id, "a test")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def _is_free(path: Path) -> bool:
    with path.open("rb") as file:
        return not is_held(file.fileno())
