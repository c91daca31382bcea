"""Where is this user? In every deployment of the workspace; and erasing one person in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from fastapi import Path, Response

from kvrun.accounts.errors import NotFoundError
from kvrun.accounts.permissions import Permission, require
from kvrun.api import joint_erasures
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import WorkspaceId
from kvrun.api.erasures import Reasons
from kvrun.console import words
from kvrun.console.desk import ChangeNow, Desk, DeskNow, WatchingDesk, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.console.live import stream
from kvrun.console.runs import Certified, Result
from kvrun.deployments.views import Place
from kvrun.erasure.certificate import ChildOutcome
from kvrun.launch.joint_erasures import JointErased

router = page_router()
_WHERE = "/workspaces/{workspace_id}/where"
_RunId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
_CertificateId = Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9_-]+$")]


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
    reasons = Reasons(
        form.text("reference", "The reference"), form.text("legal_basis", "The legal basis")
    )
    if not form.flag("sure") and not form.errors:
        form.errors["sure"] = "Confirm that it cannot be undone."
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
            return _result(desk, workspace_id, done)

    title = f"Erase user {user} everywhere"
    run = desk.runs.start(desk.actor, workspace_id, title, work, reference=reasons.reference)
    return go(f"{base_of(workspace_id)}/where/runs/{run.id}")


@router.get(_WHERE + "/runs/{run_id}")
def get_run(desk: DeskNow, workspace_id: WorkspaceId, run_id: _RunId) -> Response:
    """How far it is, and what came of it."""
    require(desk.actor, Permission.VIEW, workspace_id)
    run = desk.runs.find(desk.actor, workspace_id, run_id)
    return desk.page(
        "where_run.html",
        desk.workspace(workspace_id),
        "where",
        run=run,
        steps=[],
        place=f"{base_of(workspace_id)}/where",
    )


@router.get(_WHERE + "/runs/{run_id}/events")
def get_run_events(desk: WatchingDesk, workspace_id: WorkspaceId, run_id: _RunId) -> Response:
    """The same as it changes."""
    require(desk.actor, Permission.VIEW, workspace_id)
    run = desk.runs.find(desk.actor, workspace_id, run_id)

    def fragments() -> Mapping[str, str]:
        base = base_of(workspace_id)
        values = {"run": run, "steps": [], "base": base, "place": f"{base}/where"}
        return {"progress": desk.pages.text("run_progress.html", values)}

    return stream(desk, fragments, over=lambda: run.done)


@router.get(_WHERE + "/runs/{run_id}/openings/{certificate_id}")
def get_opening(
    desk: DeskNow, workspace_id: WorkspaceId, run_id: _RunId, certificate_id: _CertificateId
) -> Response:
    """The opening of a certificate that was made just now."""
    require(desk.actor, Permission.VIEW, workspace_id)
    opening = desk.runs.find(desk.actor, workspace_id, run_id).openings.get(certificate_id)
    if opening is None:
        raise NotFoundError("there is no such opening")
    headers = attachment(f"{certificate_id}.opening.json")
    return Response(opening, media_type="application/json", headers=headers)


def _result(desk: Desk, workspace_id: str, done: JointErased) -> Result:
    erased = sum(item.outcome is ChildOutcome.ERASED for item in done.children)
    left = [item.deployment for item in done.children if item.outcome is ChildOutcome.PENDING]
    return Result(
        f"Certified over {words.plural(len(done.children), 'deployment')};"
        f" keys were destroyed in {erased}.",
        tuple(f"Pending: {name}. {done.problems.get(name, '')}" for name in left),
        tuple(_certified(desk, workspace_id, done.parent.id)),
        done.openings,
    )


def _certified(desk: Desk, workspace_id: str, certificate_id: str) -> Iterator[Certified]:
    """Where the certificate over all deployments is."""
    for row in desk.services.storage.certificates(workspace_id).rows:
        if row.certificate_id == certificate_id:
            yield Certified(certificate_id, row.deployment_id)


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
