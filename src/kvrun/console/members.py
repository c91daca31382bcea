"""People and service accounts of a workspace."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response

from kvrun.accounts.actor import Role
from kvrun.accounts.permissions import ROLE_PERMISSIONS, Permission, require
from kvrun.api.dependencies import ItemId, WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.errors import KvrunError

router = page_router()
_MEMBERS = "/workspaces/{workspace_id}/members"
_SERVICES = "/workspaces/{workspace_id}/service-accounts"
_MAY: Mapping[Permission, str] = {
    Permission.DEPLOY: "deploy",
    Permission.KEYS: "make API keys",
    Permission.MEMBERS: "manage members",
    Permission.SETTINGS: "change settings and labels",
    Permission.ERASE: "erase users",
    Permission.ERASE_WIDE: "erase whole deployments",
    Permission.WHOIS: "see users' ids",
    Permission.CERTIFICATES: "read certificates",
    Permission.AUDIT_READ: "read the audit log",
    Permission.EVIDENCE: "export evidence",
    Permission.ALERTS: "acknowledge alerts",
    Permission.DELETE_WORKSPACE: "delete the workspace",
}


@router.get(_MEMBERS)
def get_members(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """Who is in the workspace, and what the roles may do."""
    return _page(desk, workspace_id, Form({}, {}))


@router.post(_MEMBERS)
def post_member(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Add a person."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.MEMBERS, workspace_id)
    email = form.text("email", "The e-mail address", limit=254, required=True)
    role = form.choice("role", "a role", Role)
    if not form.errors:
        try:
            desk.services.accounts.add_member(desk.actor, workspace_id, email, Role(role))
            return go(f"{base_of(workspace_id)}/members", "member")
        except KvrunError as error:
            form.errors["email"] = error.diagnostics()
    return _page(desk, workspace_id, form)


@router.post(_MEMBERS + "/{user_id}/role")
def post_role(change: ChangeNow, workspace_id: WorkspaceId, user_id: ItemId) -> Response:
    """Change a person's role."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.MEMBERS, workspace_id)
    role = form.choice("role", "a role", Role)
    if form.errors:
        return _page(desk, workspace_id, form)
    desk.services.accounts.set_role(desk.actor, workspace_id, user_id, Role(role))
    return go(f"{base_of(workspace_id)}/members", "role")


@router.post(_MEMBERS + "/{user_id}/remove")
def post_remove(change: ChangeNow, workspace_id: WorkspaceId, user_id: ItemId) -> Response:
    """Remove a person."""
    change.desk.services.accounts.remove_member(change.desk.actor, workspace_id, user_id)
    return go(f"{base_of(workspace_id)}/members", "removed")


@router.post(_SERVICES)
def post_service_account(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Make a service account."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.MEMBERS, workspace_id)
    name = form.text("service_name", "The name", limit=128, required=True)
    role = form.choice("service_role", "a role", Role)
    if not form.errors:
        try:
            desk.services.accounts.create_service_account(
                desk.actor, workspace_id, name, Role(role)
            )
            return go(f"{base_of(workspace_id)}/members", "service")
        except KvrunError as error:
            form.errors["service_name"] = error.diagnostics()
    return _page(desk, workspace_id, form)


@router.post(_SERVICES + "/{account_id}/delete")
def post_delete_service_account(
    change: ChangeNow, workspace_id: WorkspaceId, account_id: ItemId
) -> Response:
    """Delete a service account and its keys."""
    change.desk.services.accounts.delete_service_account(
        change.desk.actor, workspace_id, account_id
    )
    return go(f"{base_of(workspace_id)}/members", "service-deleted")


def _page(desk: Desk, workspace_id: str, form: Form) -> Response:
    accounts = desk.services.accounts
    found = accounts.list_service_accounts(desk.actor, workspace_id)
    roles = [role.value for role in Role]
    return desk.page(
        "members.html",
        desk.workspace(workspace_id),
        "members",
        members=accounts.list_members(desk.actor, workspace_id),
        service_accounts=[item for item in found if item.deleted_at is None],
        may_manage=desk.may(Permission.MEMBERS, workspace_id),
        roles=roles,
        role_options=[(name, name) for name in roles],
        service_role_options=[(name, name) for name in roles if name != Role.OWNER],
        role_texts=[(role.value, _allowed(role)) for role in Role],
        values=form.values,
        errors=form.errors,
        status=422 if form.errors else 200,
    )


def _allowed(role: Role) -> str:
    """What a role may do, as a sentence."""
    texts = [text for permission, text in _MAY.items() if permission in ROLE_PERMISSIONS[role]]
    return f"See the workspace; {', '.join(texts)}."
