"""A deployment's end users and their sessions: by reference, or by id for a stated reason."""

from typing import Annotated

from fastapi import Path, Query, Response

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, page_router
from kvrun.console.forms import Form
from kvrun.console.frame import section_page

router = page_router()
_USERS = "/workspaces/{workspace_id}/deployments/{deployment_id}/users"
_Ref = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9_-]+$")]
_PER_PAGE = 50
MAX_PAGE = 10_000_000


@router.get(_USERS)
def get_users(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    page: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 1,
) -> Response:
    """Everybody, by reference."""
    return _users(desk, workspace_id, deployment_id, Form({"page": str(page)}, {}))


@router.post(_USERS)
def post_users(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """A search, or the ids for a reason. Not by address: an id has no place in one."""
    return _users(change.desk, workspace_id, deployment_id, change.form)


@router.get(_USERS + "/{tenant_ref}")
def get_user(
    desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId, tenant_ref: _Ref
) -> Response:
    """A user's sessions, by reference."""
    return user_page(desk, workspace_id, deployment_id, tenant_ref, Form({}, {}))


@router.post(_USERS + "/{tenant_ref}")
def post_user(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId, tenant_ref: _Ref
) -> Response:
    """A user's sessions with their ids, for a reason."""
    return user_page(change.desk, workspace_id, deployment_id, tenant_ref, change.form)


def _users(desk: Desk, workspace_id: str, deployment_id: str, form: Form) -> Response:
    query = form.text("q", "The search", limit=128)
    reveal = form.text("reveal", "The reason", limit=300)
    page = form.number("page", "The page", 1, MAX_PAGE) or 1
    needed = Permission.WHOIS if query or reveal else Permission.VIEW
    found = desk.deployment(needed, workspace_id, deployment_id)
    users = desk.services.views.users(found.id, query, page, per_page=_PER_PAGE, reveal=reveal)
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "users",
        "users.html",
        users=users,
        query=query,
        reveal=reveal,
        errors=form.errors,
        may_reveal=desk.may(Permission.WHOIS, workspace_id, found.id),
        may_erase=desk.may(Permission.ERASE, workspace_id, found.id) and not found.read_only,
        may_label=desk.may(Permission.SETTINGS, workspace_id, found.id) and not found.read_only,
    )


def user_page(
    desk: Desk, workspace_id: str, deployment_id: str, tenant_ref: str, form: Form
) -> Response:
    """One user's page: sessions, and what is said of them; their ids for a reason."""
    reveal = form.text("reveal", "The reason", limit=300)
    found = desk.deployment(Permission.WHOIS, workspace_id, deployment_id)
    sessions = desk.services.views.sessions(found.id, tenant_ref, reveal=reveal)
    tenant = None
    if reveal:
        rows = desk.services.views.users(found.id, tenant_ref, reveal=reveal).rows
        tenant = next((row.tenant for row in rows if row.tenant_ref == tenant_ref), None)
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "users",
        "user.html",
        tenant_ref=tenant_ref,
        tenant=tenant,
        sessions=sessions,
        reveal=reveal,
        note=desk.services.deployments.tenants.of(found.id, [tenant_ref]).get(tenant_ref),
        values=form.values,
        errors=form.errors,
        may_reveal=True,
        may_erase=desk.may(Permission.ERASE, workspace_id, found.id) and not found.read_only,
        may_label=desk.may(Permission.SETTINGS, workspace_id, found.id) and not found.read_only,
        status=422 if form.errors else 200,
    )
