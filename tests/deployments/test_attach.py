"""An engine that somebody else runs is registered once with a token, seen, and left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from deploy_rig import WORKSPACE, Rig, spec

from kvrun.config import ConfigError, load_config
from kvrun.deployments.errors import (
    AttachTokenError,
    NameTakenError,
    NotOursError,
    SpecError,
    WrongStateError,
)
from kvrun.deployments.model import DeploymentState, LauncherKind
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
    with pytest.raises(WrongStateError, match="already"):
        rig.deployments.attach(again, daemon.config)
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


def test_a_file_that_others_may_write_is_refused(rig: Rig, daemon: Daemon) -> None:
    token = rig.deployments.attach_token(WORKSPACE, "theirs")
    daemon.config.chmod(0o666)
    with pytest.raises(ConfigError, match="other users"):
        rig.deployments.attach(token, daemon.config)
    with pytest.raises(ConfigError, match="full path"):
        rig.deployments.attach(token, daemon.config.relative_to("/"))
    with pytest.raises(ConfigError):
        rig.deployments.attach(token, daemon.folder / "missing.toml")
    daemon.config.chmod(0o600)
    rig.deployments.attach(token, daemon.config)


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
    assert (daemon.data / "keys").is_dir(), "keys stay with whoever runs it"


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
