"""Evidence: what it answers to, making it, and fetching it; of a workspace or one deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Path, Query, Response
from fastapi.responses import FileResponse

from kvrun.accounts.permissions import Permission, require
from kvrun.api import evidence
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, WatchingDesk, base_of, go, page_router
from kvrun.console.forms import Form
from kvrun.console.live import stream
from kvrun.deployments.model import Deployment
from kvrun.errors import KvrunError
from kvrun.evidence.controls import ControlMap
from kvrun.evidence.export import Request
from kvrun.evidence.jobs import EvidenceJob, JobState
from kvrun.evidence.manifest import MAX_SAMPLE
from kvrun.evidence.period import Period, month_before, parse_period

router = page_router()
_PLACE = "/workspaces/{workspace_id}/evidence"
_Deployment = Annotated[str, Query(max_length=128, pattern=r"^[A-Za-z0-9._~@:+-]*$")]
_JobId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
_Day = Annotated[str, Query(max_length=10)]
_SHOWN = 20
TONES: Mapping[JobState, str] = {
    JobState.DONE: "good",
    JobState.RUNNING: "open",
    JobState.INTERRUPTED: "open",
    JobState.FAILED: "bad",
}


@router.get(_PLACE)
def get_evidence(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment: _Deployment = "",
    since: _Day = "",
    until: _Day = "",
) -> Response:
    """The controls as they stand, the form, and bundles that were made."""
    values = {name: text for name, text in (("since", since), ("until", until)) if text}
    return _page(desk, workspace_id, deployment, Form(values, {}))


@router.post(_PLACE)
def post_evidence(change: ChangeNow, workspace_id: WorkspaceId) -> Response:
    """Begin a bundle; the page then follows it."""
    desk, form = change.desk, change.form
    deployment_id = form.text("deployment", "The deployment", limit=128)
    _check(desk, workspace_id, deployment_id)
    request = _request(desk, form)
    if request is None:
        return _page(desk, workspace_id, deployment_id, form)
    try:
        job = evidence.start(desk.services, desk.actor, workspace_id, request, deployment_id)
    except KvrunError as error:
        form.errors["since"] = error.diagnostics()
        return _page(desk, workspace_id, deployment_id, form)
    return go(f"{base_of(workspace_id)}/evidence/{job.id}")


@router.get(_PLACE + "/{job_id}")
def get_job(desk: DeskNow, workspace_id: WorkspaceId, job_id: _JobId) -> Response:
    """How far a bundle is, and where to fetch it."""
    job = evidence.get(desk.services, desk.actor, workspace_id, job_id)
    return desk.page(
        "evidence_job.html",
        desk.workspace(workspace_id),
        "evidence",
        job=job,
        running=job.state is JobState.RUNNING,
        tone=TONES[job.state],
        place=f"{base_of(workspace_id)}/evidence",
    )


@router.get(_PLACE + "/{job_id}/events")
def get_job_events(desk: WatchingDesk, workspace_id: WorkspaceId, job_id: _JobId) -> Response:
    """The same as it changes."""
    evidence.get(desk.services, desk.actor, workspace_id, job_id)

    def job() -> EvidenceJob:
        return desk.services.evidence.get(job_id)

    def fragments() -> Mapping[str, str]:
        found = job()
        values = {
            "job": found,
            "tone": TONES[found.state],
            "running": found.state is JobState.RUNNING,
            "place": f"{base_of(workspace_id)}/evidence",
            "csrf": desk.session.csrf_token,
        }
        return {"progress": desk.pages.text("evidence_progress.html", values)}

    return stream(desk, fragments, over=lambda: job().state is not JobState.RUNNING)


@router.get(_PLACE + "/{job_id}/bundle")
def get_bundle(desk: DeskNow, workspace_id: WorkspaceId, job_id: _JobId) -> Response:
    """The file. That it is fetched is on record."""
    job = evidence.get(desk.services, desk.actor, workspace_id, job_id)
    path = evidence.bundle(desk.services, desk.actor, workspace_id, job.id)
    name = f"evidence-{job.since}-{job.until}.zip"
    return FileResponse(path, media_type="application/zip", headers=attachment(name))


def _page(desk: Desk, workspace_id: str, deployment_id: str, form: Form) -> Response:
    found = _check(desk, workspace_id, deployment_id)
    usual = month_before(desk.services.now())
    since = form.values.get("since", usual.since)
    until = form.values.get("until", usual.until)
    period = _period(since, until) or usual
    controls, problem = _controls(desk, workspace_id, period, deployment_id)
    jobs = evidence.listed(desk.services, desk.actor, workspace_id, deployment_id or None)
    return desk.page(
        "evidence.html",
        desk.workspace(workspace_id),
        "evidence",
        about=found,
        deployment_id=deployment_id,
        deployments=desk.services.listed(desk.actor, workspace_id),
        period=period,
        controls=controls,
        problem=problem,
        jobs=jobs[:_SHOWN],
        tones=TONES,
        values={
            "sample": "25",
            "seed": "1",
            **form.values,
            "since": since,
            "until": until,
        },
        errors=form.errors,
        anchor=f"/api/v1/workspaces/{workspace_id}/trust-anchor",
        status=422 if form.errors else 200,
    )


def _check(desk: Desk, workspace_id: str, deployment_id: str) -> Deployment | None:
    if deployment_id:
        return desk.deployment(Permission.EVIDENCE, workspace_id, deployment_id)
    require(desk.actor, Permission.EVIDENCE, workspace_id)
    return None


def _controls(
    desk: Desk, workspace_id: str, period: Period, deployment_id: str
) -> tuple[ControlMap | None, str]:
    """The controls, or why nobody can say how they stand."""
    try:
        found = evidence.controls(desk.services, desk.actor, workspace_id, period, deployment_id)
    except KvrunError as error:
        return None, error.diagnostics()
    return found, ""


def _request(desk: Desk, form: Form) -> Request | None:
    """What the form asks for; where it asks for nothing, the last whole month."""
    usual = month_before(desk.services.now())
    since = form.text("since", "The first day", limit=10) or usual.since
    until = form.text("until", "The day after the period", limit=10) or usual.until
    sample = form.number("sample", "The sample", 0, MAX_SAMPLE)
    seed = form.text("seed", "The seed", limit=100) or "1"
    if form.errors:
        return None
    try:
        return Request(
            parse_period(since, until),
            sample=25 if sample is None else sample,
            seed=seed,
            full=form.flag("full"),
        )
    except KvrunError as error:
        form.errors["since"] = error.diagnostics()
        return None


def _period(since: str, until: str) -> Period | None:
    try:
        return parse_period(since, until)
    except KvrunError:
        return None
