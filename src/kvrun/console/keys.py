"""A workspace's API keys."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response

from kvrun.accounts.actor import Scope
from kvrun.accounts.errors import ConflictError
from kvrun.accounts.permissions import Permission, allowed_scopes, require
from kvrun.api.dependencies import ItemId, WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.errors import KvrunError

router = page_router()
_KEYS = "/workspaces/{workspace_id}/keys"
_DAY_S = 86_400
_LONGEST_DAYS = 3650
_OVERLAPS: Mapping[str, str] = {
    "0": "ends now",
    "3600": "goes on for an hour",
    str(_DAY_S): "goes on for a day",
    str(7 * _DAY_S): "goes on for seven days",
    str(30 * _DAY_S): "goes on for thirty days",
}
_SCOPES: Mapping[Scope, str] = {
    Scope.INFER: "Send requests to deployments.",
    Scope.ERASE: "Erase sessions and users, and get the certificate.",
    Scope.AUDIT_READ: "Read the audit log.",
    Scope.EVIDENCE: "Export evidence and certificates.",
    Scope.ADMIN: "Everything that the holder's role allows.",
}


@router.get(_KEYS)
def get_keys(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """The keys, without their secrets."""
    return _page(desk, workspace_id, Form({}, {}))


@router.post(_KEYS)
def post_key(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Make a key; its secret is on this one page and nowhere else."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.KEYS, workspace_id)
    name = form.text("name", "The name", limit=128, required=True)
    scopes = [Scope(item) for item in form.choices("scopes", Scope)]
    if not scopes:
        form.errors["scopes"] = "Choose at least one scope."
    days = form.number("days", "The number of days", 1, _LONGEST_DAYS)
    deployment = form.text("deployment", "The deployment", limit=128)
    holder = form.text("holder", "The holder", limit=128)
    secret = ""
    if not form.errors:
        try:
            if deployment:
                desk.deployment(Permission.KEYS, workspace_id, deployment)
            _, secret = desk.services.accounts.create_key(
                desk.actor,
                workspace_id,
                name,
                scopes,
                deployment_id=deployment or None,
                expires_at=int(desk.services.now()) + days * _DAY_S if days else None,
                service_account_id=holder or None,
            )
            form = Form({}, {})
        except KvrunError as error:
            form.errors["name"] = error.diagnostics()
    return _page(desk, workspace_id, form, secret=secret)


@router.post(_KEYS + "/{key_id}/rotate")
def post_rotate(change: ChangeNow, workspace_id: WorkspaceId, key_id: ItemId) -> Response:
    """Make a key's successor; its secret is on this one page and nowhere else."""
    desk, form = change.desk, change.form
    overlap = form.choice("overlap", "how long the old key goes on", _OVERLAPS)
    if form.errors:
        return _page(desk, workspace_id, Form({}, {}), problem=form.errors["overlap"])
    try:
        made, secret = desk.services.accounts.rotate_key(
            desk.actor, workspace_id, key_id, overlap_s=int(overlap)
        )
    except ConflictError as error:
        return _page(desk, workspace_id, Form({}, {}), problem=error.diagnostics())
    said = f"{made.name} has a successor, with the same scopes. The old key {_OVERLAPS[overlap]}."
    return _page(desk, workspace_id, Form({}, {}), secret=secret, said=said)


@router.post(_KEYS + "/{key_id}/revoke")
def post_revoke(change: ChangeNow, workspace_id: WorkspaceId, key_id: ItemId) -> Response:
    """End a key."""
    change.desk.services.accounts.revoke_key(change.desk.actor, workspace_id, key_id)
    return go(f"{base_of(workspace_id)}/keys", "revoked")


def _page(
    desk: Desk,
    workspace_id: str,
    form: Form,
    *,
    secret: str = "",
    said: str = "",
    problem: str = "",
) -> Response:
    accounts, actor = desk.services.accounts, desk.actor
    keys = accounts.list_keys(actor, workspace_id)
    deployments = desk.services.listed(actor, workspace_id)
    services = [
        item
        for item in accounts.list_service_accounts(actor, workspace_id)
        if item.deleted_at is None
    ]
    may_manage = desk.may(Permission.MEMBERS, workspace_id)
    allowed = allowed_scopes(actor.roles[workspace_id])
    return desk.page(
        "keys.html",
        desk.workspace(workspace_id),
        "keys",
        keys=sorted(keys, key=lambda item: (not item.active, item.name)),
        names={item.id: item.spec.name for item in deployments},
        secret=secret,
        made=said,
        problem=problem,
        overlaps=list(_OVERLAPS.items()),
        scopes=[(item.value, text) for item, text in _SCOPES.items() if item in allowed],
        chosen=form.choices("scopes", Scope),
        for_options=[
            ("", "Every deployment of the workspace"),
            *((item.id, item.spec.name) for item in deployments if not item.read_only),
        ],
        holders=[("", "Me"), *((item.id, item.name) for item in services)] if may_manage else [],
        logins=accounts.list_logins(actor),
        may_make=desk.may(Permission.KEYS, workspace_id),
        may_manage=may_manage,
        values=form.values,
        errors=form.errors,
        status=422 if form.errors or problem else 200,
    )
