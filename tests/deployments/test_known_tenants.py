"""What the registry says of tenants reaches the deployment's daemon as a file."""

from __future__ import annotations

from deploy_rig import WORKSPACE, Rig, spec

from kvrun.deployments.registry import TenantNote
from kvrun.policy.bundle import PolicyFolder
from kvrun.policy.matching import Tenant
from kvrun.policy.setup import folder_of


def _files(rig: Rig, deployment_id: str) -> PolicyFolder:
    return folder_of(rig.deployments.config_of(deployment_id))


def test_what_is_said_of_tenants_is_in_the_file_and_what_is_forgotten_is_not(rig: Rig) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    notes = [
        TenantNote(tenant_ref="aa", tenant_class="eu", labels={"plan": "gold"}),
        TenantNote(tenant_ref="bb", region="us-east-1"),
    ]
    rig.deployments.tenants.put(made.id, notes)
    rig.deployments.tell_tenants()
    files = _files(rig, made.id)
    assert files.tenants() == {
        "aa": Tenant("eu", "", (("plan", "gold"),)),
        "bb": Tenant("", "us-east-1"),
    }
    rig.deployments.tenants.forget(made.id, {"aa"})
    rig.deployments.tell_tenants()
    assert files.tenants() == {"bb": Tenant("", "us-east-1")}
    rig.deployments.tenants.forget(made.id)
    rig.deployments.tell_tenants()
    assert files.tenants() == {}


def test_more_tenants_than_are_read_at_once_are_all_there(rig: Rig) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    notes = [TenantNote(tenant_ref=f"{n:032x}", tenant_class="eu") for n in range(2500)]
    rig.deployments.tenants.put(made.id, notes)
    rig.deployments.tell_tenants()
    assert len(_files(rig, made.id).tenants()) == 2500


def test_a_file_that_is_as_it_should_be_is_not_written_again(rig: Rig) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    rig.deployments.tenants.put(made.id, [TenantNote(tenant_ref="aa")])
    rig.deployments.tell_tenants()
    path = _files(rig, made.id).tenants_file
    path.write_bytes(b"[]")
    rig.deployments.tell_tenants()
    assert path.read_bytes() == b"[]"
    rig.again().deployments.tell_tenants()
    assert b'"aa"' in path.read_bytes()
