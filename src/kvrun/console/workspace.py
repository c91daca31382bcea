"""What waits for a person in a workspace: alerts, approvals; and the workspace itself."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response

from kvrun.accounts.permissions import Permission, require
from kvrun.accounts.records import Approval
from kvrun.api import alerts
from kvrun.api.alerts import AlertEntry
from kvrun.api.dependencies import ItemId, WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.console.wide import what
from kvrun.control.alerts import AlertKind
from kvrun.errors import KvrunError

router = page_router()
_PLACE = "/workspaces/{workspace_id}"
_SETTLED_SHOWN = 50
_TITLES: Mapping[AlertKind, str] = {
    AlertKind.ROLLED_BACK: "The log is shorter than it was",
    AlertKind.FORKED: "The log has another history than before",
    AlertKind.TRUNCATED: "The log's end was cut off",
    AlertKind.LOG_MISSING: "The log is gone",
    AlertKind.KEY_CHANGED: "The log is signed with another key",
    AlertKind.CHAIN_BROKEN: "A record of the log was changed",
    AlertKind.MISSING_RECORDS: "Records of the log are missing",
    AlertKind.OUT_OF_ORDER: "Records of the log are out of order",
    AlertKind.STORED_DIFFERS: "A file in Storage is not what was stored",
    AlertKind.OMISSION: "Requests were served that the log does not show",
    AlertKind.WITNESS_REFUSED: "A witness refuses the log",
    AlertKind.OWNER_LINK_USED: "Somebody signed in with the owner link",
    AlertKind.ISOLATION_FAILED: "An isolation self-test failed",
}


@router.get(_PLACE + "/alerts")
def get_alerts(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """What waits, and what was acknowledged."""
    return _alerts(desk, workspace_id, {})


@router.post(_PLACE + "/alerts/acknowledge")
def post_acknowledge(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Acknowledge the alerts of one log, with a reason."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.ALERTS, workspace_id)
    reason = form.reason("reason", "A reason")
    log = form.text("log", "The log", limit=300, required=True)
    deployment_id = form.text("deployment", "The deployment", limit=128)
    if form.errors:
        return _alerts(desk, workspace_id, form.errors)
    alerts.acknowledge(
        desk.services,
        desk.actor,
        workspace_id,
        deployment_id=deployment_id,
        log=log,
        reason=reason[:300],
        start_over=form.flag("start_over"),
    )
    desk.pages.waiting.forget()
    return go(f"{base_of(workspace_id)}/alerts", "acknowledged")


@router.get(_PLACE + "/approvals")
def get_approvals(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """Who asks for a second person's word."""
    accounts = desk.services.accounts
    listed = desk.services.listed(desk.actor, workspace_id)
    names = {item.id: item.spec.name for item in listed}
    people = {item.user_id: item.name for item in accounts.list_members(desk.actor, workspace_id)}
    return desk.page(
        "approvals.html",
        desk.workspace(workspace_id),
        "approvals",
        approvals=accounts.list_approvals(desk.actor, workspace_id),
        people=people,
        what_of=lambda item: _wanted(item, names),
        now=desk.services.now(),
    )


@router.post(_PLACE + "/approvals/{approval_id}/approve")
def post_approve(change: ChangeNow, workspace_id: WorkspaceId, approval_id: ItemId) -> Response:
    """Agree as the second person."""
    change.desk.services.accounts.approve(change.desk.actor, workspace_id, approval_id)
    return go(f"{base_of(workspace_id)}/approvals", "approved")


@router.post(_PLACE + "/approvals/{approval_id}/refuse")
def post_refuse(change: ChangeNow, workspace_id: WorkspaceId, approval_id: ItemId) -> Response:
    """Do not agree, or take the request back."""
    reason = " ".join(change.form.values.get("reason", "").split())
    change.desk.services.accounts.refuse_approval(
        change.desk.actor, workspace_id, approval_id, reason
    )
    return go(f"{base_of(workspace_id)}/approvals", "refused")


@router.get(_PLACE + "/settings")
def get_settings(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """The workspace, and how to end it."""
    return _settings(desk, workspace_id, Form({}, {}))


@router.post(_PLACE + "/delete")
def post_delete(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Close the workspace, and end it once its deployments are deleted."""
    desk, form = change.desk, change.form
    found = desk.workspace(workspace_id)
    require(desk.actor, Permission.DELETE_WORKSPACE, workspace_id)
    if form.values.get("name", "").strip() != found.name:
        form.errors["name"] = "This is not the workspace's name. Nothing was done."
        return _settings(desk, workspace_id, form)
    try:
        desk.services.delete_workspace(desk.actor, workspace_id)
    except KvrunError as error:
        form.errors["name"] = error.diagnostics()
        return _settings(desk, workspace_id, form)
    return go("/workspaces")


def _wanted(item: Approval, names: Mapping[str, str]) -> str:
    """What somebody asks to be agreed to."""
    if item.deployment_id is not None:
        return f"Erase everything in {names.get(item.deployment_id, item.deployment_id)}"
    return f"Erase {what(item.operation.removeprefix('erase_'), item.subject)}"


def _alerts(desk: Desk, workspace_id: str, errors: Mapping[str, str]) -> Response:
    found = alerts.listed(desk.services, desk.actor, workspace_id, every=True)
    return desk.page(
        "alerts.html",
        desk.workspace(workspace_id),
        "alerts",
        waiting=[item for item in found.entries if item.alert.acknowledged_at is None],
        settled=[item for item in found.entries if item.alert.acknowledged_at][:_SETTLED_SHOWN],
        problems=found.problems,
        title_of=_title,
        may_acknowledge=desk.may(Permission.ALERTS, workspace_id),
        errors=errors,
        status=422 if errors else 200,
    )


def _title(entry: AlertEntry) -> str:
    kind = entry.alert.kind
    return _TITLES.get(kind, kind.value.replace("_", " ").capitalize())


def _settings(desk: Desk, workspace_id: str, form: Form) -> Response:
    return desk.page(
        "workspace.html",
        desk.workspace(workspace_id),
        "settings",
        role=desk.actor.roles[workspace_id].value,
        may_delete=desk.may(Permission.DELETE_WORKSPACE, workspace_id),
        values=form.values,
        errors=form.errors,
        status=422 if form.errors else 200,
    )
