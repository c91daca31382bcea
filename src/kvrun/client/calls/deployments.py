"""Deployments, what they do, and who uses them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvrun.client.call import LONG_S, Call, Listing, Page, given, listing, path, query
from kvrun.client.results.deployments import (
    AttachToken,
    Cache,
    Deleted,
    Deployment,
    DeploymentSpec,
    EndUser,
    Imported,
    ImportedList,
    MadeDeployment,
    Overview,
    Place,
    PolicyState,
    Session,
    TenantNote,
)
from kvrun.client.results.policies import (
    PolicyComparison,
    PolicyRevisions,
    PolicySimulation,
    PolicyViolations,
)


def list_deployments(workspace_id: str, *, deleted: bool = False) -> Listing[Deployment]:
    """The deployments of a workspace that the caller may see; ``deleted``: deleted ones too."""
    return listing(path("workspaces", workspace_id, "deployments"), Deployment, deleted=deleted)


def create_deployment(
    workspace_id: str,
    name: str,
    model: str,
    *,
    multi_tenant: bool,
    engine: str | None = None,
    stateless: bool | None = None,
    context_window: int | None = None,
    memory_bytes: int | None = None,
    disk_bytes: int | None = None,
    labels: Mapping[str, str] | None = None,
    gpu_ids: Sequence[int] | None = None,
    allow_shared_gpu: bool | None = None,
    settings: Mapping[str, str | int | bool] | None = None,
) -> Call[MadeDeployment]:
    """Make a deployment; it is not started.

    ``warnings`` of the answer say what to know before that, such as that its key root cannot prove
    that keys are gone. ``multi_tenant``: a product with customers in it, so that every request must
    name its end user; False: an internal tool. ``model`` is a folder, a Hugging Face id, ``demo``
    or ``tiny``.
    """
    body = given(
        name=name,
        model=model,
        multi_tenant=multi_tenant,
        engine=engine,
        stateless=stateless,
        context_window=context_window,
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
        labels=dict(labels) if labels is not None else None,
        gpu_ids=list(gpu_ids) if gpu_ids is not None else None,
        allow_shared_gpu=allow_shared_gpu,
        settings=dict(settings) if settings is not None else None,
    )
    place = path("workspaces", workspace_id, "deployments")
    return Call("POST", place, MadeDeployment, body=body, timeout_s=LONG_S)


def get_deployment(deployment_id: str) -> Call[Deployment]:
    """One deployment: its state, what was asked of it last, and what may be asked now."""
    return Call("GET", path("deployments", deployment_id), Deployment)


def start_deployment(deployment_id: str) -> Call[Deployment]:
    """Have a deployment started; ``wait`` says when it runs."""
    return _command(deployment_id, "start")


def stop_deployment(deployment_id: str) -> Call[Deployment]:
    """Have a deployment stopped. What is on disk stays."""
    return _command(deployment_id, "stop")


def restart_deployment(deployment_id: str) -> Call[Deployment]:
    """Have a deployment stopped and started again."""
    return _command(deployment_id, "restart")


def rebuild_deployment(deployment_id: str, spec: DeploymentSpec | None = None) -> Call[Deployment]:
    """Have a new instance of the deployment made, warm from what is stored; of another ``spec``
    where one is given: ``msgspec.structs.replace(deployment.spec, ...)``."""
    place = path("deployments", deployment_id, "rebuild")
    if spec is None:
        return Call("POST", place, Deployment)
    return Call("POST", place, Deployment, body=msgspec.to_builtins(spec), timeout_s=LONG_S)


def drain_deployment(deployment_id: str) -> Call[Deployment]:
    """Have a deployment take no new requests, and stop when the last one is done."""
    return _command(deployment_id, "drain")


def delete_deployment(deployment_id: str, name: str) -> Call[Deleted]:
    """Destroy a deployment's keys, with a certificate, and its cached ciphertext. The log stays.

    ``name`` is its name, to confirm. Answers when it is done.
    """
    place = path("deployments", deployment_id, "delete")
    return Call("POST", place, Deleted, body={"name": name}, timeout_s=LONG_S)


def attach_token(workspace_id: str, name: str) -> Call[AttachToken]:
    """Make a token with which somebody registers a deployment that they run themselves."""
    place = path("workspaces", workspace_id, "attach-tokens")
    return Call("POST", place, AttachToken, body={"name": name})


def attach_deployment(token: str, config_file: str) -> Call[Deployment]:
    """Register a deployment of the control plane's machine; ``config_file`` is its full path."""
    body = {"token": token, "config_file": config_file}
    return Call("POST", "/attached-deployments", Deployment, body=body)


def detach_deployment(deployment_id: str) -> Call[Deployment]:
    """Forget an attached deployment; its keys and data stay with whoever runs it."""
    return _command(deployment_id, "detach")


def get_overview(deployment_id: str) -> Call[Overview]:
    """How a deployment does: requests, reuse by tier, time to the first byte."""
    return Call("GET", path("deployments", deployment_id, "overview"), Overview)


def get_cache(deployment_id: str) -> Call[Cache]:
    """What the cache holds by tier, how it is protected, and why a tier is off."""
    return Call("GET", path("deployments", deployment_id, "cache"), Cache)


def get_policy(deployment_id: str) -> Call[PolicyState]:
    """Which residency policy is followed and in force, and what was refused."""
    return Call("GET", path("deployments", deployment_id, "policy"), PolicyState)


def list_policy_revisions(deployment_id: str) -> Call[PolicyRevisions]:
    """The active revision of the policy, those before it, and those that were refused."""
    place = path("deployments", deployment_id, "policy", "revisions")
    return Call("GET", place, PolicyRevisions)


def compare_policies(
    deployment_id: str, after: str, *, before: str = "active"
) -> Call[PolicyComparison]:
    """Which files, policies and decisions differ between two revisions.

    A revision is ``active``, a commit, or a branch or tag of the repository, which is fetched.
    """
    place = path("deployments", deployment_id, "policy", "diff")
    asked = query(after=after, before=before)
    return Call("GET", place, PolicyComparison, query=asked, timeout_s=LONG_S)


def simulate_policy(
    deployment_id: str, revision: str = "active", *, hours: int = 24
) -> Call[PolicySimulation]:
    """What a revision would have decided about the placements on record of the last hours."""
    place = path("deployments", deployment_id, "policy", "simulation")
    asked = query(revision=revision, hours=hours)
    return Call("GET", place, PolicySimulation, query=asked, timeout_s=LONG_S)


def list_policy_violations(deployment_id: str, *, hours: int = 24) -> Call[PolicyViolations]:
    """What the policy did not allow in the last hours, and what is misplaced now."""
    place = path("deployments", deployment_id, "policy", "violations")
    asked = query(hours=hours)
    return Call("GET", place, PolicyViolations, query=asked, timeout_s=LONG_S)


def sync_policy(deployment_id: str) -> Call[None]:
    """Have the policy's repository looked at within seconds."""
    place = path("deployments", deployment_id, "policy", "sync")
    return Call("POST", place, None, repeatable=True)


def get_process_log(
    deployment_id: str, process: str, *, tail_bytes: int | None = None
) -> Call[str]:
    """The end of what a process printed: ``up``, ``instance``, ``engine``, ``gateway``, ..."""
    place = path("deployments", deployment_id, "logs", process)
    return Call("GET", place, str, query=query(tail_bytes=tail_bytes))


def search_users(deployment_id: str, *, query: str = "", reason: str = "") -> Listing[EndUser]:
    """The end users of a deployment, the last used first.

    ``query`` is an id or a reference's beginning. With a ``reason``, which is put on record, ids
    are shown. Either needs the permission ``whois``. Raises NotAvailableError while nobody can say.
    """
    body = {"query": query, "reason": reason, "limit": 200}
    place = path("deployments", deployment_id, "users", "search")
    return Listing(Call("POST", place, Page[EndUser], body=body, repeatable=True), in_body=True)


def search_sessions(deployment_id: str, tenant: str, *, reason: str = "") -> Listing[Session]:
    """The sessions of an end user, named by id or reference. Needs the permission ``whois``."""
    body = {"tenant": tenant, "reason": reason}
    place = path("deployments", deployment_id, "sessions", "search")
    return Listing(Call("POST", place, Page[Session], body=body, repeatable=True), in_body=True)


def where_is(workspace_id: str, user: str) -> Listing[Place]:
    """Where the data of a person is, over all deployments of a workspace, stopped ones included."""
    place = path("workspaces", workspace_id, "where-is")
    return Listing(
        Call(
            "POST",
            place,
            Page[Place],
            query=query(limit=200),
            body={"user": user},
            repeatable=True,
            timeout_s=LONG_S,
        )
    )


def put_tenants(deployment_id: str, tenants: Sequence[TenantNote]) -> Call[Imported]:
    """Say class, region and labels of end users, who are named by reference; at most 5000."""
    body: dict[str, Any] = {"tenants": [msgspec.to_builtins(item) for item in tenants]}
    place = path("deployments", deployment_id, "tenants")
    return Call("PUT", place, Imported, body=body, repeatable=True)


def import_tenants(deployment_id: str, csv: str) -> Call[ImportedList]:
    """Say it of a list, whose first line names the columns: `tenant` or `tenant_ref`, and any of
    `class`, `region` and `label:NAME`. Ids are looked up, and not kept."""
    place = path("deployments", deployment_id, "tenants", "import")
    return Call("POST", place, ImportedList, body={"csv": csv}, repeatable=True)


def get_tenants(deployment_id: str, tenant_refs: Sequence[str]) -> Call[list[TenantNote]]:
    """What is said of the named end users; at most 200."""
    place = path("deployments", deployment_id, "tenants", "search")
    body = {"tenant_refs": list(tenant_refs)}
    return Call("POST", place, list[TenantNote], body=body, repeatable=True)


def _command(deployment_id: str, command: str) -> Call[Deployment]:
    return Call("POST", path("deployments", deployment_id, command), Deployment)
