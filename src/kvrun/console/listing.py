"""Workspaces, and the deployments of one."""

from collections.abc import Mapping

from fastapi import Response

from kvrun.accounts.actor import ActorKind, Role
from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, WatchingDesk, base_of, go, page_router
from kvrun.console.frame import LAUNCHERS
from kvrun.console.live import stream
from kvrun.errors import KvrunError

router = page_router()


@router.get("/workspaces")
def get_workspaces(desk: DeskNow) -> Response:
    """The workspaces of whoever is signed in."""
    return _workspaces(desk, {}, {})


@router.post("/workspaces")
def post_workspace(change: ChangeNow) -> Response:
    """Make a workspace."""
    desk, form = change.desk, change.form
    name = form.text("name", "The name", limit=63, required=True)
    if not form.errors:
        try:
            made = desk.services.accounts.create_workspace(desk.actor, name)
            return go(f"{base_of(made.id)}/deployments", "workspace")
        except KvrunError as error:
            form.errors["name"] = error.diagnostics()
    return _workspaces(desk, form.values, form.errors)


@router.get("/workspaces/{workspace_id}/deployments")
def get_deployments(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """Every deployment of the workspace, deleted ones last."""
    workspace = desk.workspace(workspace_id)
    return desk.page("deployments.html", workspace, "deployments", _listed(desk, workspace_id))


@router.get("/workspaces/{workspace_id}/deployments-events")
def get_deployments_events(desk: WatchingDesk, workspace_id: WorkspaceId) -> Response:
    """The list as it changes."""
    desk.workspace(workspace_id)

    def fragments() -> Mapping[str, str]:
        values = {"base": base_of(workspace_id), **_listed(desk, workspace_id)}
        return {"list": desk.pages.text("deployments_list.html", values)}

    return stream(desk, fragments)


def _listed(desk: Desk, workspace_id: str) -> dict[str, object]:
    found = desk.services.listed(desk.actor, workspace_id)
    return {
        "live": [item for item in found if not item.read_only],
        "deleted": [item for item in found if item.read_only],
        "launchers": LAUNCHERS,
        "may_deploy": desk.may(Permission.DEPLOY, workspace_id),
        "may_evidence": desk.may(Permission.EVIDENCE, workspace_id),
    }


def _workspaces(desk: Desk, values: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    actor = desk.actor
    may_make = actor.kind is ActorKind.LOCAL_OWNER or Role.OWNER in actor.roles.values()
    return desk.page(
        "workspaces.html",
        None,
        "",
        found=desk.services.accounts.list_workspaces(actor),
        roles={place: role.value for place, role in actor.roles.items()},
        may_make=may_make,
        values=values,
        errors=errors,
        status=422 if errors else 200,
    )
