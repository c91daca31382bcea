"""Records of deployments, the same in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_rig import WORKSPACE, spec

from kvrun.deployments.errors import AttachTokenError, DeploymentNotFoundError, NameTakenError
from kvrun.deployments.machine import Command
from kvrun.deployments.model import Deployment, DeploymentState, LauncherKind
from kvrun.deployments.registry import TenantNote
from kvrun.deployments.service import Deployments
from kvrun.errors import KvrunError
from kvrun.state import Database


@pytest.fixture
def deployments(database_url: str, short_folder: Path) -> Iterator[Deployments]:
    database = Database.open(database_url)
    yield Deployments(database, short_folder, gpus=lambda ids: None, host="here")
    database.close()


def test_a_name_is_given_once_in_a_workspace_until_it_is_free(deployments: Deployments) -> None:
    first = deployments.create(WORKSPACE, spec())
    assert deployments.get(first.id) == first
    with pytest.raises(NameTakenError, match="'chat'"):
        deployments.create(WORKSPACE, spec())
    other = deployments.create("w-2", spec())
    deployments.delete(first.id, "petra")
    again = deployments.create(WORKSPACE, spec())
    assert [item.id for item in deployments.list(WORKSPACE)] == [again.id, first.id]
    assert [item.id for item in deployments.list(WORKSPACE, deleted=False)] == [again.id]
    assert {item.id for item in deployments.list()} == {first.id, other.id, again.id}
    renamed = deployments.create(WORKSPACE, spec("b"))
    deployments._store.command(renamed.id, Command.START)
    with pytest.raises(NameTakenError):
        deployments.rebuild(renamed.id, spec("chat"))
    left = deployments.get(renamed.id)
    assert (left.spec.name, left.state, left.instance) == ("b", DeploymentState.STARTING, 1)


def test_of_many_that_take_one_name_or_one_token_at_once_one_succeeds(
    deployments: Deployments, tmp_path: Path
) -> None:
    token = deployments.attach_token(WORKSPACE, "theirs")
    files = [tmp_path / f"{number}.toml" for number in range(4)]
    for file in files:
        file.write_text("")
        file.chmod(0o600)
    made: list[Deployment] = []
    refused: list[KvrunError] = []

    def attempt(file: Path) -> None:
        for act in (
            lambda: deployments.create(WORKSPACE, spec()),
            lambda: deployments.attach(token, file),
        ):
            try:
                made.append(act())
            except KvrunError as error:
                refused.append(error)

    threads = [threading.Thread(target=attempt, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item.launcher for item in made) == [LauncherKind.ATTACHED, LauncherKind.LOCAL]
    assert {type(error) for error in refused} == {NameTakenError, AttachTokenError}
    assert len(refused) == 6


def test_another_machines_deployments_are_left_alone(
    deployments: Deployments, database_url: str, short_folder: Path
) -> None:
    made = deployments.create(WORKSPACE, spec())
    deployments._store.command(made.id, Command.START)
    database = Database.open(database_url)
    elsewhere = Deployments(database, short_folder, gpus=lambda ids: None, host="elsewhere")
    assert elsewhere.supervise() == ()
    assert elsewhere.get(made.id).state is DeploymentState.STARTING
    assert not (made.folder / "launch.lock").exists()
    database.close()


def test_what_is_said_of_tenants_is_replaced_and_forgotten(deployments: Deployments) -> None:
    tenants = deployments.tenants
    tenants.put("d-1", [TenantNote(tenant_ref="aa", region="eu"), TenantNote(tenant_ref="bb")])
    tenants.put("d-1", [TenantNote(tenant_ref="aa", labels={"team": "x"})])
    tenants.put("d-2", [TenantNote(tenant_ref="aa", region="us")])
    found = tenants.of("d-1", ["aa", "bb", "cc"])
    assert set(found) == {"aa", "bb"}
    assert (found["aa"].region, dict(found["aa"].labels)) == ("", {"team": "x"})
    tenants.forget("d-1", ["aa"])
    assert set(tenants.of("d-1", ["aa", "bb"])) == {"bb"}
    tenants.forget("d-1")
    assert tenants.of("d-1", ["bb"]) == {}
    assert tenants.of("d-2", ["aa"])["aa"].region == "us"


def test_an_unknown_deployment_is_not_found(deployments: Deployments) -> None:
    for act in (deployments.get, deployments.start, deployments.config_of, deployments.logs):
        with pytest.raises(DeploymentNotFoundError):
            act("d-unknown")


def test_what_is_as_it_should_be_is_looked_at_less_often(
    deployments: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = deployments.create(WORKSPACE, spec())
    looks: list[str] = []
    original = deployments._supervision.round

    def counted(deployment_id: str) -> Deployment:
        looks.append(deployment_id)
        return original(deployment_id)

    monkeypatch.setattr(deployments._supervision, "round", counted)
    for _ in range(3):
        deployments.supervise()
    assert looks == [made.id]
    with pytest.raises(KvrunError):
        deployments.drain(made.id)  # whatever a person asks for, the next round looks
    deployments.supervise()
    assert looks == [made.id] * 2
