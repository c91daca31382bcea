"""Making a deployment, attaching one, asking it to start or stop, and deleting it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from kvrun.accounts.permissions import Permission, require
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.api.services import requester
from kvrun.console.desk import Change, ChangeNow, Desk, DeskNow, base_of, go, page_router, place_of
from kvrun.console.forms import Form
from kvrun.console.frame import section_page
from kvrun.console.runs import Certified, Result
from kvrun.console.spec_form import ENGINE_OPTIONS, blame, read_spec, spec_values
from kvrun.deployments.machine import Command, allowed
from kvrun.deployments.model import Deployment, LauncherKind
from kvrun.errors import KvrunError

router = page_router()
_PLACE = "/workspaces/{workspace_id}/deployments/{deployment_id}"
_DONE = {
    "start": "started",
    "stop": "stopped",
    "restart": "restarted",
    "rebuild": "rebuilt",
    "drain": "drained",
}
_Command = Annotated[str, Path(pattern="^(start|stop|restart|rebuild|drain)$")]


@router.get("/workspaces/{workspace_id}/new-deployment")
def get_new(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    model: Annotated[str, Query(max_length=4096)] = "",
) -> Response:
    """The form for a new deployment, maybe of a model that was chosen before."""
    require(desk.actor, Permission.DEPLOY, workspace_id)
    return _form(desk, workspace_id, Form({"model": model} if model else {}, {}))


@router.post("/workspaces/{workspace_id}/new-deployment")
def post_new(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Make a deployment."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.DEPLOY, workspace_id)
    spec = read_spec(form)
    if spec is not None:
        try:
            made = desk.services.create_deployment(desk.actor, workspace_id, spec)
            return go(place_of(made), "created")
        except KvrunError as error:
            blame(form, error)
    return _form(desk, workspace_id, form)


@router.post("/workspaces/{workspace_id}/attach-deployment")
def post_attach(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Make a token with which somebody registers what they run."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.DEPLOY, workspace_id)
    name = form.text("attach_name", "The name", limit=63, required=True)
    token = ""
    if not form.errors:
        try:
            desk.services.open_workspace(desk.actor, workspace_id)
            token = desk.services.deployments.attach_token(workspace_id, name)
        except KvrunError as error:
            form.errors["attach_name"] = error.diagnostics()
    return _form(desk, workspace_id, form, token=token)


@router.get(_PLACE + "/rebuild")
def get_rebuild(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """The form for another specification, with what it has now."""
    found = desk.deployment(Permission.DEPLOY, workspace_id, deployment_id)
    return _rebuild(desk, workspace_id, found, Form(spec_values(found.spec), {}))


@router.post(_PLACE + "/rebuild")
def post_rebuild(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Replace the instance by one of another specification; keys and stored context stay."""
    desk, form = change.desk, change.form
    found = desk.deployment(Permission.DEPLOY, workspace_id, deployment_id)
    spec = read_spec(form)
    if spec is not None:
        try:
            desk.services.rebuild_deployment(desk.actor, found.id, spec)
            return go(place_of(found), "rebuilt")
        except KvrunError as error:
            blame(form, error)
    return _rebuild(desk, workspace_id, found, form)


@router.post(_PLACE + "/do/{command}")
def post_command(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId, command: _Command
) -> Response:
    """Start, stop, restart, rebuild or drain."""
    desk = change.desk
    desk.deployment(Permission.DEPLOY, workspace_id, deployment_id)
    found = desk.services.ask(desk.actor, command, deployment_id)
    deployments = desk.services.deployments
    match command:
        case "start":
            deployments.start(found.id)
        case "stop":
            deployments.stop(found.id)
        case "restart":
            deployments.restart(found.id)
        case "rebuild":
            deployments.rebuild(found.id)
        case _:
            deployments.drain(found.id)
    return go(place_of(found), _DONE[command])


@router.post(_PLACE + "/delete")
def post_delete(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Delete it: its keys are destroyed with a certificate; the log stays."""
    desk = change.desk
    found = desk.services.find_to_delete(desk.actor, deployment_id)
    desk.services.same_workspace(found, workspace_id)
    if change.form.values.get("name", "").strip() != found.spec.name:
        change.form.errors["name"] = "This is not the deployment's name. Nothing was deleted."
        return _settings(change, workspace_id, found)
    run = desk.runs.start(
        desk.actor,
        found.id,
        f"Delete {found.spec.name}",
        lambda: _delete(desk, found),
        deletes=True,
    )
    return go(f"{place_of(found)}/runs/{run.id}")


@router.post(_PLACE + "/detach")
def post_detach(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Forget a deployment that somebody else runs."""
    desk = change.desk
    desk.deployment(Permission.DEPLOY, workspace_id, deployment_id)
    found = desk.services.ask(desk.actor, "detach", deployment_id)
    desk.services.deployments.detach(found.id)
    return go(f"{base_of(workspace_id)}/deployments", "detached")


def _delete(desk: Desk, found: Deployment) -> Result:
    services, actor = desk.services, desk.actor
    services.ask(actor, "delete", found.id)
    done = services.deployments.delete(found.id, requester(actor))
    held = bool(done.certificates)
    return Result(
        f"{found.spec.name} is deleted. Its audit log, its certificates and its record stay.",
        () if held else ("There never was a key, so there is no certificate.",),
        tuple(Certified(item, found.id) for item in done.certificates),
        done.openings,
    )


def _settings(change: Change, workspace_id: str, found: Deployment) -> Response:
    return section_page(
        change.desk,
        change.desk.workspace(workspace_id),
        found,
        "settings",
        "deployment_settings.html",
        status=422,
        may_deploy=True,
        may_delete=True,
        attached=found.launcher is LauncherKind.ATTACHED,
        errors=change.form.errors,
    )


def _rebuild(desk: Desk, workspace_id: str, found: Deployment, form: Form) -> Response:
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "settings",
        "deployment_rebuild.html",
        status=422 if form.errors else 200,
        values=form.values,
        errors=form.errors,
        engines=ENGINE_OPTIONS,
        possible=found.launcher is LauncherKind.LOCAL and Command.REBUILD in allowed(found.state),
    )


def _form(desk: Desk, workspace_id: str, form: Form, *, token: str = "") -> Response:
    return desk.page(
        "deployment_new.html",
        desk.workspace(workspace_id),
        "deployments",
        values=form.values,
        errors=form.errors,
        token=token,
        engines=ENGINE_OPTIONS,
        status=422 if form.errors else 200,
    )
