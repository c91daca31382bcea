"""An engine that somebody else runs is registered once with a token, seen, and left alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_rig import WORKSPACE, Rig, spec

from kvrun.config import load_config
from kvrun.deployments import folder
from kvrun.deployments.errors import (
    AttachRefusedError,
    AttachTokenError,
    NameTakenError,
    NotOursError,
    SpecError,
    WrongStateError,
)
from kvrun.deployments.model import Deployment, DeploymentState, LauncherKind
from kvrun.deployments.spec import API_KEYS_FILE, METRICS_KEY_FILE
from kvrun.gateway.apikeys import ApiKeyRecord, load_api_keys, save_api_keys
from support.daemon import Daemon


@pytest.fixture
def daemon(rig: Rig) -> Iterator[Daemon]:
    folder = rig.home / "theirs"
    folder.mkdir()
    running = Daemon(folder, settings="[gateway]\nport = 1\n")
    running.config.chmod(0o600)
    yield running
    running.stop()


def test_a_token_registers_once_and_only_for_an_hour(rig: Rig, daemon: Daemon) -> None:
    token = rig.deployments.attach_token(WORKSPACE, "theirs")
    stored = sqlite3.connect(rig.home / "control.sqlite").execute("SELECT * FROM attach_tokens")
    assert token not in str(stored.fetchall())
    attached = rig.deployments.attach(token, daemon.config)
    assert attached.launcher is LauncherKind.ATTACHED
    assert (attached.workspace_id, attached.spec.name) == (WORKSPACE, "theirs")
    assert rig.deployments.config_of(attached.id).instance.data_dir == daemon.data
    for wrong in (token, "", "kva_x", token + "x"):
        with pytest.raises(AttachTokenError):
            rig.deployments.attach(wrong, daemon.config)
    again = rig.deployments.attach_token(WORKSPACE, "again")
    rig.clock.ahead_s += 3601
    with pytest.raises(AttachTokenError):
        rig.deployments.attach(again, daemon.config)
    with pytest.raises(SpecError):
        rig.deployments.attach_token(WORKSPACE, "../x")


def test_a_token_is_not_used_up_by_a_name_that_is_taken(rig: Rig, daemon: Daemon) -> None:
    rig.deployments.create(WORKSPACE, spec("theirs"))
    token = rig.deployments.attach_token(WORKSPACE, "theirs")
    with pytest.raises(NameTakenError):
        rig.deployments.attach(token, daemon.config)
    other = rig.deployments.list(WORKSPACE)[0]
    rig.deployments.delete(other.id, "a test")
    assert rig.deployments.attach(token, daemon.config).spec.name == "theirs"


def refused(rig: Rig, file: Path, workspace: str = "w-other") -> str:
    """What is said when a file cannot be attached; its token is used up by that."""
    token = rig.deployments.attach_token(workspace, "theirs")
    with pytest.raises(AttachRefusedError) as found:
        rig.deployments.attach(token, file)
    with pytest.raises(AttachTokenError):
        rig.deployments.attach(token, file)
    return found.value.diagnostics()


def test_what_is_said_of_a_file_tells_nothing_of_it_and_costs_the_token(
    rig: Rig, daemon: Daemon
) -> None:
    odd = daemon.folder / "odd.toml"
    odd.write_text("secret = nonsense")
    odd.chmod(0o600)
    os.mkfifo(daemon.folder / "pipe", 0o600)
    loop = daemon.folder / "loop"
    loop.symlink_to(loop)
    said = {
        refused(rig, file)
        for file in (
            odd,
            loop,
            daemon.folder,
            daemon.folder / "pipe",
            daemon.folder / "missing.toml",
            daemon.config.relative_to("/"),
            Path("/etc/passwd"),
        )
    }
    daemon.config.chmod(0o666)
    said.add(refused(rig, daemon.config))
    daemon.config.chmod(0o600)
    token = rig.deployments.attach_token(WORKSPACE, "theirs")
    rig.deployments.attach(token, daemon.config)
    said.add(refused(rig, daemon.config))
    assert len(said) == 1
    assert str(daemon.folder) not in said.pop()


def aliases(rig: Rig, file: Path) -> Iterator[Path]:
    """Other names of a file, and another file that names the same data folder."""
    yield file
    yield file.parent / ".." / file.parent.name / file.name
    yield Path("/proc/self/root") / file.relative_to("/")
    place = rig.home / f"names-of-{file.parent.name}"
    place.mkdir()
    (place / "link.toml").symlink_to(file)
    yield place / "link.toml"
    (place / "folder").symlink_to(file.parent)
    yield place / "folder" / file.name
    config = load_config(file, {})
    data, root = config.instance.data_dir, config.layout.data_dir / "root"
    (place / "data").symlink_to(data)
    for number, text in enumerate(
        (
            f'[instance]\ndata_dir = "{data}"\n',
            f'[instance]\ndata_dir = "{place}/data"\n',
            f'[keys]\nroot = "file:{root}"\n',
            f'[keys]\nroot = "file:{data}-root"\n',
        )
    ):
        other = place / f"{number}.toml"
        other.write_text(text)
        other.chmod(0o600)
        yield other


def test_what_is_or_was_a_deployment_cannot_be_attached_under_another_name(
    rig: Rig, daemon: Daemon
) -> None:
    made = rig.deployments.create(WORKSPACE, spec("made"))
    attached = rig.deployments.attach(
        rig.deployments.attach_token(WORKSPACE, "theirs"), daemon.config
    )
    deleted = rig.deployments.create(WORKSPACE, spec("deleted"))
    rig.deployments.delete(deleted.id, "a test")
    for known in (made, attached, deleted):
        for file in aliases(rig, known.config_file):
            refused(rig, file)
    rig.deployments.detach(attached.id)
    refused(rig, daemon.config)
    assert len(rig.deployments.list()) == 3
    inside = made.folder / "other.toml"
    inside.write_text("")
    inside.chmod(0o600)
    refused(rig, inside)


def test_what_runs_elsewhere_is_seen_and_never_touched(rig: Rig, daemon: Daemon) -> None:
    token = rig.deployments.attach_token(WORKSPACE, "theirs")
    attached = rig.deployments.attach(token, daemon.config)
    assert attached.state is DeploymentState.STOPPED
    daemon.start()
    seen = rig.until(attached.id, DeploymentState.UNHEALTHY)
    assert "gateway or engine does not" in seen.reason
    for act in (
        rig.deployments.start,
        rig.deployments.stop,
        rig.deployments.restart,
        rig.deployments.rebuild,
        rig.deployments.drain,
        lambda name: rig.deployments.set_api_keys(name, []),
        lambda name: rig.deployments.delete(name, "somebody"),
    ):
        with pytest.raises(NotOursError):
            act(attached.id)
    assert daemon.process is not None
    assert daemon.process.poll() is None
    daemon.stop()
    rig.until(attached.id, DeploymentState.STOPPED)
    forgotten = rig.deployments.detach(attached.id)
    assert forgotten.read_only
    with pytest.raises(WrongStateError, match="not attached") as refused:
        rig.deployments.detach(attached.id)
    assert "others are deleted" in (refused.value.hint or "")
    assert (daemon.data / "keys").is_dir(), "keys stay with whoever runs it"


@pytest.mark.parametrize("root", ["../root", "root", ".", "storage"])
def test_deleting_what_somebody_else_made_touches_its_data_folder_alone(
    rig: Rig, root: str
) -> None:
    theirs = rig.home / "theirs"
    data = theirs / "data"
    config = theirs / "kvrun.toml"
    beside = [theirs / API_KEYS_FILE, theirs / METRICS_KEY_FILE, theirs / "root/key"]
    stays = [data / "audit/log/signer", data / "storage/w/certificate", data / "signing/key"]
    goes = [data / "keys/slot", data / "api_keys.json", data / "door/draining", data / "mine.json"]
    inside = data / root / "key"
    (goes if root == "root" else beside if root == "../root" else stays).append(inside)
    for path in {*beside, *goes, data / "storage/w/certificate", data / "signing/key", inside}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    stays = [path for path in stays if path.exists()]
    config.write_text(
        f"[instance]\ndata_dir = {str(data)!r}\n[keys]\nroot = 'file:{root}'\n"
        f"[gateway]\nstate_dir = {str(data / 'door')!r}\n"
        f"api_keys_file = {str(data / 'mine.json')!r}\n"
    )
    folder.remove_data(load_config(config, {}))
    folder.remove_data(load_config(config, {}))
    assert [path for path in (*beside, *stays, config) if not path.exists()] == []
    assert [path for path in goes if path.exists()] == []


def test_the_deployment_that_started_the_control_plane_is_there_once(
    rig: Rig, daemon: Daemon
) -> None:
    config = load_config(daemon.config, {})
    own = rig.deployments.register_own(config, daemon.config, workspace_id=WORKSPACE)
    assert own.launcher is LauncherKind.OWN
    assert rig.deployments.register_own(config, daemon.config, workspace_id=WORKSPACE).id == own.id
    with pytest.raises(NotOursError):
        rig.deployments.stop(own.id)
    path = config.layout.api_keys
    path.parent.mkdir(mode=0o700, exist_ok=True)
    first, made = (ApiKeyRecord(id=name, sha256="0" * 64) for name in ("first", "key-" + "a" * 16))
    save_api_keys(path, [first])
    rig.deployments.set_api_keys(own.id, [made])
    assert load_api_keys(path) == [first, made]
    rig.deployments.set_api_keys(own.id, [])
    assert load_api_keys(path) == [first]
    later = rig.again()
    assert [item.id for item in later.deployments.list(WORKSPACE)] == [own.id]
    later.close()


def test_the_control_planes_own_deployment_is_shown_as_its_file_says_now(
    rig: Rig, daemon: Daemon
) -> None:
    def register(**settings: object) -> Deployment:
        text = {f"KVRUN_{name}": str(value) for name, value in settings.items()}
        config = load_config(daemon.config, text)
        return rig.deployments.register_own(config, daemon.config, workspace_id=WORKSPACE)

    first = register(DEPLOYMENT__NAME="first", GATEWAY__PORT=4001)
    rig.deployments.create(WORKSPACE, spec("taken"))
    later = register(DEPLOYMENT__NAME="second", GATEWAY__PORT=4002, DEPLOYMENT__CONTEXT_WINDOW=128)
    assert later.id == first.id
    assert (later.spec.name, later.spec.context_window) == ("second", 128)
    assert (first.endpoint, later.endpoint) == ("http://127.0.0.1:4001", "http://127.0.0.1:4002")
    assert rig.deployments.get(first.id).spec == later.spec
    clash = register(DEPLOYMENT__NAME="taken", GATEWAY__PORT=4003)
    assert (clash.spec.name, clash.endpoint) == ("second", "http://127.0.0.1:4003")
