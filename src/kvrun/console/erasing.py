"""Erasing in one deployment: the plan, the confirmation, the progress, the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Path, Response

from kvrun.accounts.errors import NotFoundError
from kvrun.accounts.permissions import Permission
from kvrun.api import erasures
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.console import words
from kvrun.console.desk import (
    ChangeNow,
    Desk,
    DeskNow,
    WatchingDesk,
    base_of,
    go,
    page_router,
    place_of,
)
from kvrun.console.forms import Form
from kvrun.console.frame import section_page
from kvrun.console.live import stream
from kvrun.console.progress import Step, progress
from kvrun.console.reasons import read_reasons, require_sure
from kvrun.console.runs import Certified, Result, Run
from kvrun.deployments.model import Deployment
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import ErasureScope, erasure_scope
from kvrun.errors import KvrunError
from kvrun.instance.erasures import ErasureResult

router = page_router()
_PLACE = "/workspaces/{workspace_id}/deployments/{deployment_id}"
_KINDS = ("tenant", "session", "deployment")
_RunId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
_CertificateId = Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9_-]+$")]
CLASSES: Mapping[str, str] = {
    "cryptographic": "Cryptographic: the key is held only where nothing remains of it afterwards",
    "device": "Device: the key is overwritten in place and read back",
    "logical": "Logical: the key is deleted, and the medium may keep it; no certificate of erasure",
}


@router.get(_PLACE + "/erase")
def get_erase(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """The form, and the erasures so far."""
    found = desk.deployment(Permission.ERASE, workspace_id, deployment_id)
    return _form(desk, workspace_id, found, Form({}, {}))


@router.post(_PLACE + "/erase/plan")
def post_plan(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """What it would reach; nothing is erased."""
    desk, form = change.desk, change.form
    found = desk.deployment(Permission.ERASE, workspace_id, deployment_id)
    scope = _scope(form)
    if scope is None:
        return _form(desk, workspace_id, found, form)
    return _plan(desk, workspace_id, found, scope, form)


@router.post(_PLACE + "/erase/ask")
def post_ask(change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """Ask a second person to agree to a plan."""
    token = change.form.text("confirm", "The plan", limit=200, required=True)
    erasures.ask_approval(
        change.desk.services, change.desk.actor, workspace_id, deployment_id, token
    )
    return go(f"{base_of(workspace_id)}/approvals", "approval-asked")


@router.post(_PLACE + "/erase")
def post_erase(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Erase; the next page follows it."""
    desk, form = change.desk, change.form
    found = desk.deployment(Permission.ERASE, workspace_id, deployment_id)
    scope = _scope(form)
    if scope is None:
        return _form(desk, workspace_id, found, form)
    reasons = read_reasons(form)
    require_sure(form)
    if form.errors:
        return _plan(desk, workspace_id, found, scope, form)
    confirm = form.values.get("confirm", "")[:512]

    def work() -> Result:
        done = erasures.erase(
            desk.services, desk.actor, found.id, scope, confirm=confirm, reasons=reasons
        )
        return _result(found.id, done)

    title = f"Erase {_what(scope)}"
    run = desk.runs.start(desk.actor, found.id, title, work, reference=reasons.reference)
    return go(f"{place_of(found)}/runs/{run.id}")


@router.get(_PLACE + "/runs/{run_id}")
def get_run(
    desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId, run_id: _RunId
) -> Response:
    """How far an erasure or deletion has come, and what came of it."""
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    run = desk.runs.find(desk.actor, found.id, run_id).as_it_is()
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        run.section or ("settings" if run.deletes else "users"),
        "run.html",
        live=True,
        run=run,
        steps=_steps(desk, found.id, run),
    )


@router.get(_PLACE + "/runs/{run_id}/events")
def get_run_events(
    desk: WatchingDesk, workspace_id: WorkspaceId, deployment_id: DeploymentId, run_id: _RunId
) -> Response:
    """The same as it changes."""
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    run = desk.runs.find(desk.actor, found.id, run_id)

    def fragments() -> Mapping[str, str]:
        seen = run.as_it_is()
        values = {
            "run": seen,
            "steps": _steps(desk, found.id, seen),
            "place": place_of(found),
            "base": base_of(workspace_id),
        }
        return {"progress": desk.pages.text("run_progress.html", values)}

    return stream(desk, fragments, over=lambda: run.done)


@router.get(_PLACE + "/runs/{run_id}/openings/{certificate_id}")
def get_opening(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    run_id: _RunId,
    certificate_id: _CertificateId,
) -> Response:
    """The opening of a certificate that was made just now."""
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    opening = desk.runs.find(desk.actor, found.id, run_id).openings.get(certificate_id)
    if opening is None:
        raise NotFoundError("there is no such opening")
    headers = attachment(f"{certificate_id}.opening.json")
    return Response(opening, media_type="application/json", headers=headers)


def _scope(form: Form) -> ErasureScope | None:
    kind = form.choice("kind", "what is to be erased", _KINDS)
    tenant = form.text("tenant", "The user id", limit=128, required=kind != "deployment")
    session = form.text("session", "The session id", limit=128, required=kind == "session")
    if form.errors:
        return None
    try:
        return erasure_scope(kind, tenant, session)
    except KvrunError as error:
        form.errors["session" if "session id" in error.message else "tenant"] = error.diagnostics()
        return None


def _form(desk: Desk, workspace_id: str, found: Deployment, form: Form) -> Response:
    listed = []
    if desk.may(Permission.CERTIFICATES, workspace_id, found.id):
        listed = erasures.listed(desk.services, desk.actor, found.id)[:20]
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "users",
        "erase.html",
        status=422 if form.errors else 200,
        values=form.values,
        errors=form.errors,
        under_way=listed,
        may_erase_wide=desk.may(Permission.ERASE_WIDE, workspace_id, found.id),
    )


def _plan(
    desk: Desk, workspace_id: str, found: Deployment, scope: ErasureScope, form: Form
) -> Response:
    plan = erasures.plan(desk.services, desk.actor, found.id, scope)
    second = scope.kind is RequestKind.DEPLOYMENT and erasures.needs_approval(
        desk.services, desk.actor, found.id
    )
    # A word that was given belongs to the plan that it was given for.
    agreed = erasures.Agreed()
    if second:
        agreed = erasures.agreed(desk.services, desk.actor, found.id)
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "users",
        "erase_plan.html",
        status=422 if form.errors else 200,
        what=_what(scope),
        plan=plan,
        confirm=agreed.token or plan.token,
        needs_approval=second,
        approved=bool(agreed.token),
        outgrown=agreed.outgrown,
        classes=CLASSES,
        values={
            **form.values,
            "kind": scope.kind.value,
            "tenant": scope.tenant,
            "session": scope.session,
        },
        errors=form.errors,
    )


def _what(scope: ErasureScope) -> str:
    match scope.kind:
        case RequestKind.DEPLOYMENT:
            return "everything in this deployment"
        case RequestKind.SESSION:
            return f"session {scope.session} of user {scope.tenant}"
    return f"user {scope.tenant}"


def _result(deployment_id: str, done: ErasureResult) -> Result:
    keys = words.plural(len(done.erased) + done.more, "session key")
    said = f"Erased and certified: {keys} destroyed."
    if not done.erased:
        said = "Nothing was held, so there was no key to destroy. The certificate says so."
    notes = tuple(
        f"Not confirmed yet by {name}; an addendum to the certificate says when it has."
        for name in done.unacknowledged
    )
    return Result(said, notes, (Certified(done.id, deployment_id),), {done.id: done.opening})


def _steps(desk: Desk, deployment_id: str, run: Run) -> list[Step]:
    """How far it is, from the erasure's own record of it."""
    if run.deletes or run.section:
        return []
    if run.result is not None:
        return progress("certified", failed=False)
    try:
        rows = erasures.listed(desk.services, desk.actor, deployment_id, reference=run.reference)
    except KvrunError:
        return progress("", failed=bool(run.error))
    states = [row.state for row in rows if row.state != "certified"]
    return progress(states[-1] if states else "", failed=bool(run.error))
