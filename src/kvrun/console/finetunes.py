"""Fine-tunes of the installation: made and followed, base against tuned, and deploying one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Path, Response

from kvrun.accounts.permissions import Permission
from kvrun.api import finetunes
from kvrun.api.dependencies import WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, WatchingDesk, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.console.live import stream
from kvrun.finetune.errors import FineTuneError
from kvrun.finetune.training import Plan

router = page_router()
_LIST = "/workspaces/{workspace_id}/finetunes"
_ENDED = ("cancelled", "failed")
_Name = Annotated[str, Path(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


@router.get(_LIST)
def get_finetunes(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """Those on record, jobs that are not done, and the form for a new one."""
    return _page(desk, workspace_id, Form({}, {}))


@router.post(_LIST)
def post_finetune(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Begin one; its page follows it."""
    desk, form = change.desk, change.form
    name = form.text("name", "The name", limit=63, required=True)
    model = form.text("model", "The base model", limit=1000, required=True)
    epochs = form.number("epochs", "Times over the data", 1, 1000)
    data = _lines(form, "data")
    if not data.strip():
        form.errors["data"] = "Examples are needed."
    tasks, task_files = _tasks(form)
    if not form.errors:
        asked = finetunes.Asked(
            name=name,
            base=model,
            data=data,
            plan=Plan() if epochs is None else Plan(epochs=epochs),
            tasks=tasks,
            task_files=task_files,
        )
        try:
            finetunes.start(desk.services, desk.actor, workspace_id, asked)
        except FineTuneError as error:
            form.errors["data"] = error.diagnostics()
    if form.errors:
        return _page(desk, workspace_id, form)
    return go(f"{base_of(workspace_id)}/finetunes/{name}/job")


@router.get(_LIST + "/{name}/job")
def get_job(desk: DeskNow, workspace_id: WorkspaceId, name: _Name) -> Response:
    """How far a job is; once it is done, the fine-tune itself."""
    view = finetunes.job_of(desk.services, desk.actor, workspace_id, name)
    if view is None:
        return go(f"{base_of(workspace_id)}/finetunes/{name}")
    return desk.page(
        "finetune_job.html",
        desk.workspace(workspace_id),
        "finetunes",
        name=name,
        may_deploy=desk.may(Permission.DEPLOY, workspace_id),
        job=view,
        ended=view.note.state in _ENDED,
        place=f"{base_of(workspace_id)}/finetunes/{name}",
    )


@router.get(_LIST + "/{name}/job/events")
def get_job_events(desk: WatchingDesk, workspace_id: WorkspaceId, name: _Name) -> Response:
    """The same as it changes."""
    finetunes.job_of(desk.services, desk.actor, workspace_id, name)

    def fragments() -> Mapping[str, str]:
        values = {
            "job": finetunes.job_of(desk.services, desk.actor, workspace_id, name),
            "place": f"{base_of(workspace_id)}/finetunes/{name}",
            "csrf": desk.session.csrf_token,
            "may_deploy": desk.may(Permission.DEPLOY, workspace_id),
        }
        return {"progress": desk.pages.text("finetune_progress.html", values)}

    def over() -> bool:
        view = finetunes.job_of(desk.services, desk.actor, workspace_id, name)
        return view is None or view.note.state in _ENDED

    return stream(desk, fragments, over=over)


@router.post(_LIST + "/{name}/resume")
def post_resume(change: ChangeNow, workspace_id: WorkspaceId, name: _Name) -> Response:
    """Go on with its job."""
    finetunes.resume(change.desk.services, change.desk.actor, workspace_id, name)
    return go(f"{base_of(workspace_id)}/finetunes/{name}/job")


def _tasks(form: Form) -> tuple[tuple[str, ...], dict[str, str]]:
    """The task of lm-eval in the form's three fields, or none where all are empty."""
    name = form.text("task", "The task's name")
    files = {"task.yaml": _lines(form, "task_yaml"), "examples.jsonl": _lines(form, "task_data")}
    if not name and not any(text.strip() for text in files.values()):
        return (), {}
    if not name:
        form.errors["task"] = "The task's name is needed, as its YAML says it."
    for field, said in (("task_yaml", "Its YAML is needed."), ("task_data", "They are needed.")):
        if not form.values.get(field, "").strip():
            form.errors[field] = said
    return (name,), files


def _lines(form: Form, field: str) -> str:
    return form.values.get(field, "").replace("\r\n", "\n")


def _page(desk: Desk, workspace_id: str, form: Form) -> Response:
    found = finetunes.listed(desk.services, desk.actor, workspace_id)
    store = finetunes.store_of(desk.services)
    return desk.page(
        "finetunes.html",
        desk.workspace(workspace_id),
        "finetunes",
        kept=found.kept,
        jobs=found.jobs,
        folders={item.note.name: str(store.folder(item.note.name)) for item in found.kept},
        may_deploy=desk.may(Permission.DEPLOY, workspace_id),
        may_make=desk.may(Permission.DEPLOY, workspace_id)
        and finetunes.is_home(desk.services, desk.actor, workspace_id),
        values=form.values,
        errors=form.errors,
        status=422 if form.errors else 200,
    )


@router.get(_LIST + "/{name}")
def get_finetune(desk: DeskNow, workspace_id: WorkspaceId, name: _Name) -> Response:
    """One, with every byte of it checked."""
    return desk.page(
        "finetune.html",
        desk.workspace(workspace_id),
        "finetunes",
        detail=finetunes.shown(desk.services, desk.actor, workspace_id, name),
        may_deploy=desk.may(Permission.DEPLOY, workspace_id),
    )


@router.post(_LIST + "/{name}/cancel")
def post_cancel(change: ChangeNow, workspace_id: WorkspaceId, name: _Name) -> Response:
    """Ask its job to stop."""
    finetunes.cancel(change.desk.services, change.desk.actor, workspace_id, name)
    return go(f"{base_of(workspace_id)}/finetunes", "finetune-cancelled")


@router.post(_LIST + "/{name}/delete")
def post_delete(change: ChangeNow, workspace_id: WorkspaceId, name: _Name) -> Response:
    """Delete its weights."""
    finetunes.delete(change.desk.services, change.desk.actor, workspace_id, name)
    return go(f"{base_of(workspace_id)}/finetunes", "finetune-deleted")
