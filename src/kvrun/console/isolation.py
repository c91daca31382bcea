"""Isolation self-tests of a deployment: started, followed, and their results."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Response

from kvrun.accounts.permissions import Permission
from kvrun.api import isolation
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.api.isolation_schedule import schedule_of
from kvrun.console.desk import ChangeNow, Desk, DeskNow, go, page_router, place_of
from kvrun.console.frame import section_page
from kvrun.console.runs import Certified, Result
from kvrun.deployments.model import Deployment, DeploymentState, LauncherKind
from kvrun.isolation.report import FOLDER_NAME, Outcome
from kvrun.isolation.run import Options

router = page_router()
_PATH = "/workspaces/{workspace_id}/deployments/{deployment_id}/isolation"
_SHOWN = 20
_SAID = {
    Outcome.PASS: "Passed: nobody reached another's cache.",
    Outcome.FAIL: "Failed: something leaks. The result says what.",
    Outcome.INCONCLUSIVE: "Inconclusive: something was tried and shows nothing. That is no pass.",
    Outcome.SKIPPED: "Nothing could be tried.",
}


@router.get(_PATH)
def get_isolation(
    desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """The results so far, and the button."""
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "isolation",
        "deployment_isolation.html",
        results=isolation.results(desk.services, desk.actor, found.id)[:_SHOWN],
        may_run=_may_run(desk, found),
        may_restart=found.launcher is LauncherKind.LOCAL,
        schedule=schedule_of(desk.services, found.id),
        folder=f"deployments/{found.id}/{FOLDER_NAME}/",
        object_address=f"/api/v1/workspaces/{quote(workspace_id, safe='')}/storage/object",
    )


@router.post(_PATH)
def post_isolation(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Begin one; its page follows it."""
    desk = change.desk
    found = desk.deployment(Permission.DEPLOY, workspace_id, deployment_id)
    options = Options(restart=change.form.flag("restart"))
    run = desk.runs.start(
        desk.actor,
        found.id,
        f"Isolation self-test of {found.spec.name}",
        lambda: _run(desk, found, options),
        section="isolation",
    )
    return go(f"{place_of(found)}/runs/{run.id}")


def _run(desk: Desk, found: Deployment, options: Options) -> Result:
    stored = isolation.run(desk.services, desk.actor, found.id, options)
    notes = [
        f"{check.name}: {check.outcome.value}: {check.detail}"
        for check in stored.result.checks
        if check.outcome is not Outcome.PASS
    ]
    certificates = tuple(Certified(item, found.id) for item in stored.result.erased)
    return Result(_SAID[stored.result.outcome], tuple(notes), certificates)


def _may_run(desk: Desk, found: Deployment) -> bool:
    runs = found.state is DeploymentState.RUNNING
    return runs and desk.may(Permission.DEPLOY, found.workspace_id, found.id)
