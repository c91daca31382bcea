"""Erasures over several deployments as pages follow them: progress, certificates, openings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from fastapi import Path, Response

from kvrun.accounts.errors import NotFoundError
from kvrun.accounts.permissions import Permission, require
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import WorkspaceId
from kvrun.console import words
from kvrun.console.desk import Desk, DeskNow, WatchingDesk, base_of, page_router
from kvrun.console.live import stream
from kvrun.console.runs import Certified, Result
from kvrun.erasure.certificate import ChildOutcome
from kvrun.launch.joint_erasures import JointErased

router = page_router()
_RUN = "/workspaces/{workspace_id}/{section}/runs/{run_id}"
_Section = Annotated[str, Path(pattern="^(where|erase)$")]
_RunId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
_CertificateId = Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9_-]+$")]
_TITLES = {"where": "Where is this user?", "erase": "Erase many users"}


def joint_result(desk: Desk, workspace_id: str, done: JointErased) -> Result:
    """What came of one, as its page says it."""
    erased = sum(item.outcome is ChildOutcome.ERASED for item in done.children)
    left = [item.deployment for item in done.children if item.outcome is ChildOutcome.PENDING]
    return Result(
        f"Certified over {words.plural(len(done.children), 'deployment')};"
        f" keys were destroyed in {erased}.",
        tuple(f"Pending: {name}. {done.problems.get(name, '')}" for name in left),
        tuple(_certified(desk, workspace_id, done.parent.id)),
        done.openings,
    )


@router.get(_RUN)
def get_run(
    desk: DeskNow, workspace_id: WorkspaceId, section: _Section, run_id: _RunId
) -> Response:
    """How far it is, and what came of it."""
    require(desk.actor, Permission.VIEW, workspace_id)
    run = desk.runs.find(desk.actor, workspace_id, run_id).as_it_is()
    return desk.page(
        "where_run.html",
        desk.workspace(workspace_id),
        section,
        run=run,
        steps=[],
        place=f"{base_of(workspace_id)}/{section}",
        section_title=_TITLES[section],
    )


@router.get(_RUN + "/events")
def get_run_events(
    desk: WatchingDesk, workspace_id: WorkspaceId, section: _Section, run_id: _RunId
) -> Response:
    """The same as it changes."""
    require(desk.actor, Permission.VIEW, workspace_id)
    run = desk.runs.find(desk.actor, workspace_id, run_id)

    def fragments() -> Mapping[str, str]:
        base = base_of(workspace_id)
        values = {"run": run.as_it_is(), "steps": [], "base": base, "place": f"{base}/{section}"}
        return {"progress": desk.pages.text("run_progress.html", values)}

    return stream(desk, fragments, over=lambda: run.done)


@router.get(_RUN + "/openings/{certificate_id}")
def get_opening(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    section: _Section,
    run_id: _RunId,
    certificate_id: _CertificateId,
) -> Response:
    """The opening of a certificate that was made just now."""
    require(desk.actor, Permission.VIEW, workspace_id)
    opening = desk.runs.find(desk.actor, workspace_id, run_id).openings.get(certificate_id)
    if opening is None:
        raise NotFoundError("there is no such opening")
    headers = attachment(f"{certificate_id}.opening.json")
    return Response(opening, media_type="application/json", headers=headers)


def _certified(desk: Desk, workspace_id: str, certificate_id: str) -> Iterator[Certified]:
    """Where the certificate over all deployments is."""
    for row in desk.services.storage.certificates(workspace_id).rows:
        if row.certificate_id == certificate_id:
            yield Certified(certificate_id, row.deployment_id)
