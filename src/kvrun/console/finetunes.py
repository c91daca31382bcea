"""Fine-tunes of the installation: base against tuned, and deploying one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response

from kvrun.accounts.permissions import Permission
from kvrun.api import finetunes
from kvrun.api.dependencies import WorkspaceId
from kvrun.console.desk import ChangeNow, DeskNow, base_of, go, page_router

router = page_router()
_LIST = "/workspaces/{workspace_id}/finetunes"
_Name = Annotated[str, Path(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


@router.get(_LIST)
def get_finetunes(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """Those on record, and jobs that are not done."""
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
