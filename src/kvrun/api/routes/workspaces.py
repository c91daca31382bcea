"""Workspaces: what owns deployments, members and keys."""

from fastapi import APIRouter, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.actor import Role
from kvrun.accounts.permissions import ROLE_PERMISSIONS, Permission
from kvrun.accounts.records import Workspace
from kvrun.api.dependencies import ActorNow, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, Page, cut

router = APIRouter(tags=["workspaces"])


class WorkspaceView(BaseModel):
    """A workspace. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    account_id: str
    name: str
    created_at: int
    closing_at: int | None = Field(description="Its deletion began; nothing new is made in it.")
    deleted_at: int | None
    role: Role | None = Field(default=None, description="The caller's role in it.")
    permissions: list[Permission] = Field(default=[], description="What that role allows.")


class WorkspaceAsked(BaseModel):
    """A workspace to make."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        min_length=1, max_length=63, description="Letters, digits, `.`, `_`, `-`. It never changes."
    )


@router.get("/workspaces", summary="List the caller's workspaces")
def list_workspaces(
    services: ServicesNow, actor: ActorNow, limit: Limit = 50, cursor: Cursor = ""
) -> Page[WorkspaceView]:
    """Those in which the caller has a role, deleted ones included, by name."""
    items, after = cut(services.accounts.list_workspaces(actor), limit, cursor)
    return Page(items=[_view(item, actor.roles.get(item.id)) for item in items], next=after)


@router.post("/workspaces", summary="Make a workspace", status_code=status.HTTP_201_CREATED)
def create_workspace(
    services: ServicesNow, actor: ActorNow, asked: WorkspaceAsked
) -> WorkspaceView:
    """The caller becomes its owner. For the local owner, and people who own another workspace."""
    return _view(services.accounts.create_workspace(actor, asked.name), Role.OWNER)


@router.get("/workspaces/{workspace_id}", summary="Show a workspace")
def get_workspace(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId
) -> WorkspaceView:
    """The workspace, and what the caller may do in it."""
    found = services.accounts.get_workspace(actor, workspace_id)
    return _view(found, actor.roles.get(workspace_id))


@router.delete("/workspaces/{workspace_id}", summary="Delete a workspace")
def delete_workspace(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId
) -> WorkspaceView:
    """Its deployments must have been deleted, each with its certificate. Logs stay readable.

    409 names what is left. Nothing new is made in it from the first call on.
    """
    found = services.delete_workspace(actor, workspace_id)
    return _view(found, None)


def _view(found: Workspace, role: Role | None) -> WorkspaceView:
    view = WorkspaceView.model_validate(found)
    allowed = sorted(ROLE_PERMISSIONS[role]) if role is not None else []
    return view.model_copy(update={"role": role, "permissions": allowed})
