"""Erasing many users at once: those with a label, a workspace, or an account; with one certificate
over all deployments."""

from __future__ import annotations

from fastapi import Response

from kvrun.accounts.permissions import Permission, require
from kvrun.api import joint_erasures
from kvrun.api.dependencies import WorkspaceId
from kvrun.api.erasures import Agreed, ErasureNotFoundError
from kvrun.api.joint_erasures import JointScope
from kvrun.console.desk import ChangeNow, Desk, DeskNow, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.console.joint_runs import joint_result
from kvrun.console.reasons import read_reasons, require_sure
from kvrun.console.runs import Result
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import add_tiers
from kvrun.errors import KvrunError

router = page_router()
_ERASE = "/workspaces/{workspace_id}/erase"
_KINDS = (RequestKind.TENANTS, RequestKind.WORKSPACE, RequestKind.ACCOUNT)
_MAX_TOKEN = 400_000


@router.get(_ERASE)
def get_erase(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """The form."""
    require(desk.actor, Permission.ERASE_WIDE, workspace_id)
    return _form(desk, workspace_id, Form({}, {}))


@router.post(_ERASE + "/plan")
def post_plan(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """What it would reach; nothing is erased."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.ERASE_WIDE, workspace_id)
    scope = _scope(form)
    if scope is None:
        return _form(desk, workspace_id, form)
    return _plan(desk, workspace_id, scope, form)


@router.post(_ERASE + "/ask")
def post_ask(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Ask a second person to agree to a plan."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.ERASE_WIDE, workspace_id)
    scope = _scope(form)
    if scope is None:
        return _form(desk, workspace_id, form)
    token = form.values.get("confirm", "")[:_MAX_TOKEN]
    joint_erasures.ask_joint_approval(desk.services, desk.actor, workspace_id, scope, token)
    return go(f"{base_of(workspace_id)}/approvals", "approval-asked")


@router.post(_ERASE)
def post_erase(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Erase; the next page follows it."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.ERASE_WIDE, workspace_id)
    scope = _scope(form)
    if scope is None:
        return _form(desk, workspace_id, form)
    reasons = read_reasons(form)
    name = desk.workspace(workspace_id).name
    if scope.kind is not RequestKind.TENANTS and form.values.get("name", "").strip() != name:
        form.errors["name"] = "This is not the workspace's name. Nothing was erased."
    require_sure(form)
    if form.errors:
        return _plan(desk, workspace_id, scope, form)
    token = form.values.get("confirm", "")[:_MAX_TOKEN]
    pending = form.flag("certify_pending")

    def work() -> Result:
        with joint_erasures.erasing_scope(
            desk.services,
            desk.actor,
            workspace_id,
            scope,
            confirm=token,
            reasons=reasons,
            certify_pending=pending,
        ) as done:
            return joint_result(desk, workspace_id, done)

    title = f"Erase {what(scope.kind.value, scope.label)}"
    run = desk.runs.start(desk.actor, workspace_id, title, work, reference=reasons.reference)
    return go(f"{base_of(workspace_id)}/erase/runs/{run.id}")


def what(kind: str, label: str) -> str:
    """What such an erasure reaches, in words."""
    match kind:
        case RequestKind.TENANTS:
            return f"the users labelled {label}"
        case RequestKind.WORKSPACE:
            return "everything in this workspace"
    return "everything in every workspace of the account"


def _scope(form: Form) -> JointScope | None:
    kind = form.choice("kind", "what is to be erased", _KINDS)
    label = form.text("label", "The label", limit=320, required=kind == RequestKind.TENANTS)
    if form.errors:
        return None
    try:
        by_label = kind == RequestKind.TENANTS
        return JointScope(RequestKind(kind), label if by_label else "")
    except KvrunError as error:
        form.errors["label"] = error.diagnostics()
        return None


def _form(desk: Desk, workspace_id: str, form: Form) -> Response:
    return desk.page(
        "wide.html",
        desk.workspace(workspace_id),
        "erase",
        values=form.values,
        errors=form.errors,
        status=422 if form.errors else 200,
    )


def _plan(desk: Desk, workspace_id: str, scope: JointScope, form: Form) -> Response:
    try:
        found = joint_erasures.plan_joint(desk.services, desk.actor, workspace_id, scope)
    except ErasureNotFoundError as error:
        form.errors["label" if scope.label else "kind"] = error.diagnostics()
        return _form(desk, workspace_id, form)
    agreed = Agreed()
    if found.needs_approval:
        agreed = joint_erasures.joint_agreed(desk.services, desk.actor, workspace_id, scope)
    counted = found.plans
    return desk.page(
        "wide_plan.html",
        desk.workspace(workspace_id),
        "erase",
        what=what(scope.kind.value, scope.label),
        by_label=scope.kind is RequestKind.TENANTS,
        plan=found,
        users=sum(item.tenants for item in counted),
        sessions=sum(item.sessions for item in counted),
        requests=sum(item.requests for item in counted),
        tiers=add_tiers(tier for item in counted for tier in item.tiers),
        problems=any(item.problem for item in found.deployments),
        confirm=agreed.token or found.token,
        approved=bool(agreed.token),
        outgrown=agreed.outgrown,
        values={**form.values, "kind": scope.kind.value, "label": scope.label},
        errors=form.errors,
        status=422 if form.errors else 200,
    )
