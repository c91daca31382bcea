"""Where is this user? In every deployment of the workspace; and erasing one person in all."""

from __future__ import annotations

from fastapi import Response

from kvrun.accounts.permissions import Permission, require
from kvrun.api import joint_erasures
from kvrun.api.dependencies import WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.console.joint_runs import joint_result
from kvrun.console.reasons import read_reasons, require_sure
from kvrun.console.runs import Result
from kvrun.deployments.views import Place

router = page_router()
_WHERE = "/workspaces/{workspace_id}/where"


@router.get(_WHERE)
def get_where(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """The question."""
    require(desk.actor, Permission.WHOIS, workspace_id)
    return _page(desk, workspace_id, Form({}, {}), None)


@router.post(_WHERE)
def post_where(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """The answer of every deployment, stopped ones included."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.WHOIS, workspace_id)
    user = form.text("user", "The user id", limit=128, required=True)
    places = desk.services.views.where_is(workspace_id, user) if not form.errors else None
    return _page(desk, workspace_id, form, places)


@router.post(_WHERE + "/plan")
def post_plan(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """What erasing the person everywhere would reach."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.ERASE, workspace_id)
    user = form.text("user", "The user id", limit=128, required=True)
    if form.errors:
        return _page(desk, workspace_id, form, None)
    return _plan(desk, workspace_id, user, form)


@router.post(_WHERE + "/erase")
def post_erase(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Erase the person everywhere; the next page follows it."""
    desk, form = change.desk, change.form
    require(desk.actor, Permission.ERASE, workspace_id)
    user = form.text("user", "The user id", limit=128, required=True)
    reasons = read_reasons(form)
    require_sure(form)
    if form.errors:
        return _plan(desk, workspace_id, user, form)
    tokens = {
        name.removeprefix("token."): value[:512]
        for name, value in form.values.items()
        if name.startswith("token.")
    }
    pending = form.flag("certify_pending")

    def work() -> Result:
        with joint_erasures.erasing_person(
            desk.services,
            desk.actor,
            workspace_id,
            user,
            confirm=tokens,
            reasons=reasons,
            certify_pending=pending,
        ) as done:
            return joint_result(desk, workspace_id, done)

    title = f"Erase user {user} everywhere"
    run = desk.runs.start(desk.actor, workspace_id, title, work, reference=reasons.reference)
    return go(f"{base_of(workspace_id)}/where/runs/{run.id}")


def _page(desk: Desk, workspace_id: str, form: Form, places: tuple[Place, ...] | None) -> Response:
    return desk.page(
        "where.html",
        desk.workspace(workspace_id),
        "where",
        values=form.values,
        errors=form.errors,
        places=places,
        anywhere=any(item.found for item in places or ()),
        may_erase=desk.may(Permission.ERASE, workspace_id),
        may_erase_wide=desk.may(Permission.ERASE_WIDE, workspace_id),
        status=422 if form.errors else 200,
    )


def _plan(desk: Desk, workspace_id: str, user: str, form: Form) -> Response:
    plans = joint_erasures.plan_user(desk.services, desk.actor, workspace_id, user)
    return desk.page(
        "where_plan.html",
        desk.workspace(workspace_id),
        "where",
        user=user,
        plans=plans,
        problems=any(item.problem for item in plans),
        values=form.values,
        errors=form.errors,
        status=422 if form.errors else 200,
    )
