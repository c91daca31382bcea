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
from kvrun.deployments.model import Deployment, DeploymentSpec, LauncherKind
from kvrun.deployments.spec import ENGINES
from kvrun.errors import KvrunError

router = page_router()
_PLACE = "/workspaces/{workspace_id}/deployments/{deployment_id}"
_LABELS = {"vllm": "vLLM", "llama.cpp": "llama.cpp"}
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
    spec = _spec(form)
    if spec is not None:
        try:
            made = desk.services.create_deployment(desk.actor, workspace_id, spec)
            return go(place_of(made), "created")
        except KvrunError as error:
            _blame(form, error)
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


def _form(desk: Desk, workspace_id: str, form: Form, *, token: str = "") -> Response:
    return desk.page(
        "deployment_new.html",
        desk.workspace(workspace_id),
        "deployments",
        values=form.values,
        errors=form.errors,
        token=token,
        engines=[(name, _LABELS.get(name, name)) for name in ENGINES],
        status=422 if form.errors else 200,
    )


def _spec(form: Form) -> DeploymentSpec | None:
    """What the form asks for; None where a field cannot be read."""
    name = form.text("name", "The name", limit=63, required=True)
    model = form.text("model", "The model", limit=4096, required=True)
    engine = form.choice("engine", "an engine", ENGINES)
    audience = form.choice("audience", "who uses it", ("internal", "product"))
    window = form.number("context_window", "The context window", 16, 10_000_000)
    memory, disk = form.size("memory", "The memory tier"), form.size("disk", "The persistent tier")
    gpus = _gpus(form)
    labels = form.labels("labels")
    if form.errors:
        return None
    usual = DeploymentSpec(name=name, model=model, multi_tenant=audience == "product")
    return DeploymentSpec(
        name=name,
        model=model,
        engine=engine,
        stateless=form.flag("stateless"),
        multi_tenant=usual.multi_tenant,
        context_window=window,
        memory_bytes=usual.memory_bytes if memory is None else memory,
        disk_bytes=usual.disk_bytes if disk is None else disk,
        labels=labels,
        gpu_ids=gpus,
        allow_shared_gpu=form.flag("allow_shared_gpu"),
    )


def _gpus(form: Form) -> tuple[int, ...]:
    parts = [part.strip() for part in form.values.get("gpus", "").split(",") if part.strip()]
    if all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts):
        return tuple(map(int, parts))
    form.errors["gpus"] = "GPU ids are whole numbers with commas between them, such as 0,1."
    return ()


_FIELDS = {
    "context_window": "context_window",
    "memory_bytes": "memory",
    "disk_bytes": "disk",
    "gpu_ids": "gpus",
}


def _blame(form: Form, error: KvrunError) -> None:
    """Put what was refused beside the fields that it names, else beside the name."""
    for part in error.message.split("; "):
        field, colon, text = part.partition(": ")
        known = _FIELDS.get(field, field) if colon else ""
        if known in ("name", "model", "engine", "labels", *_FIELDS.values()):
            form.errors[known] = text
    if not form.errors:
        form.errors["name"] = error.diagnostics()
