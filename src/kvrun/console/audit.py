"""A deployment's audit log: verdict, records, segments, collecting now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Response

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.audit.record import Event, Outcome
from kvrun.console import words
from kvrun.console.desk import ChangeNow, DeskNow, page_router, place_of
from kvrun.console.frame import section_page
from kvrun.control.rounds import RoundReport
from kvrun.deployments.audit_view import Banner, RecordFilter, RecordPage
from kvrun.deployments.stored_segment import StoredAlteredError

router = page_router()
_AUDIT = "/workspaces/{workspace_id}/deployments/{deployment_id}/audit"
_Text = Annotated[str, Query(max_length=200)]
_SHOWN_SEGMENTS = 200
_RECORDS = 50


@router.get(_AUDIT)
def get_audit(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    event: _Text = "",
    outcome: _Text = "",
    tenant_ref: _Text = "",
    request_id: _Text = "",
    cursor: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    """Verdict, records and segments. The reading is on record."""
    wanted = RecordFilter(
        event=event if event in list(Event) else "",
        outcome=outcome if outcome in list(Outcome) else "",
        tenant_ref=tenant_ref.strip(),
        request_id=request_id.strip(),
    )
    return _page(desk, workspace_id, deployment_id, wanted, cursor)


@router.post(_AUDIT + "/collect")
def post_collect(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Collect, verify and store what is new, and say what came of it."""
    desk = change.desk
    found = desk.deployment(Permission.AUDIT_READ, workspace_id, deployment_id)
    report = desk.services.audit.collect_now(found.id)
    return _page(desk, workspace_id, deployment_id, RecordFilter(), "", report)


def _page(
    desk: DeskNow,
    workspace_id: str,
    deployment_id: str,
    wanted: RecordFilter,
    cursor: str,
    report: RoundReport | None = None,
) -> Response:
    found = desk.deployment(Permission.AUDIT_READ, workspace_id, deployment_id)
    view = desk.services.audit.audit(found.id)
    desk.services.read_log(desk.actor, found.id, "records")
    said = _collected(report) if report is not None else []
    altered = False
    try:
        page = desk.services.audit.records(found.id, wanted, cursor, limit=_RECORDS)
    except StoredAlteredError as error:
        page, altered = RecordPage((), ""), True
        said.append(("bad", "What is stored of the log was altered", error.diagnostics()))
    asked = {
        "event": wanted.event,
        "outcome": wanted.outcome,
        "tenant_ref": wanted.tenant_ref,
        "request_id": wanted.request_id,
    }
    filters = {name: value for name, value in asked.items() if value}
    older = f"{place_of(found)}/audit?{urlencode({**filters, 'cursor': page.cursor})}"
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "audit",
        "audit.html",
        view=view,
        segments=view.segments[-_SHOWN_SEGMENTS:],
        more_segments=len(view.segments) > _SHOWN_SEGMENTS,
        page=page,
        wanted=wanted,
        filtered=bool(filters),
        older=older,
        events=_options(Event),
        outcomes=_options(Outcome),
        tone_of=tone_of if not altered else lambda banner: "bad",
        collected=said,
        may_collect=not found.read_only and view.collectable,
        errors={},
    )


def tone_of(banner: Banner) -> str:
    """The colour of a verdict: red for a log that is not what is remembered of it, green only where
    nothing is in doubt; the verdict's text says what is."""
    if banner.alert:
        return "bad"
    if banner.at is None or not banner.witnesses or banner.retired or banner.doubts:
        return "open"
    return "good"


def _collected(report: RoundReport) -> list[tuple[str, str, str]]:
    """What a collection did, as tone, title and text of banners."""
    said = []
    for item in report.logs:
        tone = "bad" if item.alert else "good"
        if item.alert:
            title = "The log contradicts what is remembered of it"
        elif item.message:
            title = (
                f"{item.outcome.value.replace('_', ' ').capitalize()}: {item.log or item.source}"
            )
        else:
            title = f"Collected and verified: {words.plural(item.new_records, 'new record')}"
        said.append((tone if not item.message or item.alert else "open", title, item.message))
    said += [("open", "Finding", item.message) for item in report.findings]
    return said


def _options(names: Iterable[str]) -> list[tuple[str, str]]:
    return [("", "Any"), *((str(name), str(name).replace("_", " ")) for name in names)]
