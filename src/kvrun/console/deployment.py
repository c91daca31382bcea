"""A deployment's overview, cache and settings, and what moves on its pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated

from fastapi import Query, Response

from kvrun.accounts.errors import NotFoundError
from kvrun.accounts.permissions import Permission
from kvrun.api import finetunes
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.console.charts import Part
from kvrun.console.desk import Desk, DeskNow, WatchingDesk, page_router, place_of
from kvrun.console.frame import LAUNCHERS, section_page
from kvrun.console.live import stream
from kvrun.deployments.errors import DeploymentNotFoundError
from kvrun.deployments.machine import Command, allowed
from kvrun.deployments.model import Deployment, LauncherKind
from kvrun.deployments.service import PROCESSES
from kvrun.deployments.views import Overview

router = page_router()
PLACE = "/workspaces/{workspace_id}/deployments/{deployment_id}"
_FEW_USERS = 10
_POINTS = 200
"""Of the line of new requests: five minutes."""
_ACTS = (
    (Command.START, "Start", ""),
    (Command.DRAIN, "Drain", "plain"),
    (Command.STOP, "Stop", "plain"),
    (Command.RESTART, "Restart", "plain"),
    (Command.REBUILD, "Rebuild", "plain"),
)


@router.get(PLACE)
def get_overview(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """State, numbers, and examples to copy."""
    workspace = desk.workspace(workspace_id)
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    view = desk.services.views.overview(found.id)
    return section_page(
        desk,
        workspace,
        found,
        "overview",
        "overview.html",
        live=True,
        view=view,
        parts=_parts(view),
        history=[],
        acts=_acts(desk, found),
        may_make_keys=desk.may(Permission.KEYS, workspace_id),
        served=finetunes.served(found),
    )


@router.get(PLACE + "/cache")
def get_cache(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """The tiers, how each is protected, and why one is off or bounded."""
    workspace = desk.workspace(workspace_id)
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    view = desk.services.views.cache(found.id)
    users = None if found.read_only else desk.services.views.users(found.id, per_page=_FEW_USERS)
    return section_page(
        desk, workspace, found, "cache", "deployment_cache.html", live=True, view=view, users=users
    )


@router.get(PLACE + "/settings")
def get_settings(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """What the deployment was made with, where it is, and how to end it."""
    workspace = desk.workspace(workspace_id)
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    may_deploy = desk.may(Permission.DEPLOY, workspace_id, found.id)
    # Its deletion destroys its keys; forgetting one that somebody else runs does not.
    attached = found.launcher is LauncherKind.ATTACHED
    may_end = attached or desk.may(Permission.ERASE_WIDE, workspace_id, found.id)
    deletable = found.launcher is not LauncherKind.OWN and not found.read_only
    return section_page(
        desk,
        workspace,
        found,
        "settings",
        "deployment_settings.html",
        live=True,
        may_deploy=may_deploy,
        may_delete=may_deploy and may_end and deletable,
        attached=attached,
        errors={},
    )


@router.get(PLACE + "/logs")
def get_logs(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    process: Annotated[str, Query(max_length=20)] = "up",
) -> Response:
    """The end of what a process of the deployment printed; not the audit log."""
    workspace = desk.workspace(workspace_id)
    found = desk.deployment(Permission.DEPLOY, workspace_id, deployment_id)
    if process not in PROCESSES:
        raise NotFoundError("there is no such process")
    try:
        text = desk.services.deployments.logs(found.id, process)
    except DeploymentNotFoundError:
        text = ""  # it has printed nothing yet
    return section_page(
        desk,
        workspace,
        found,
        "settings",
        "deployment_logs.html",
        process=process,
        processes=PROCESSES,
        text=text,
    )


@router.get(PLACE + "/events")
def get_events(
    desk: WatchingDesk,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    section: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """What changes on a deployment's page."""
    desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    counts: deque[int] = deque(maxlen=_POINTS)

    def fragments() -> Mapping[str, str]:
        found = desk.services.deployments.get(deployment_id)
        view = desk.services.views.overview(found.id) if section == "overview" else None
        if view is not None and view.requests is not None:
            counts.append(view.requests)
        return _fragments(desk, found, view, _new_requests(counts))

    return stream(desk, fragments)


def _fragments(
    desk: Desk, found: Deployment, view: Overview | None, history: Sequence[int]
) -> Mapping[str, str]:
    values = {
        "deployment": found,
        "place": place_of(found),
        "launchers": LAUNCHERS,
        "csrf": desk.session.csrf_token,
    }
    sent = {"state": desk.pages.text("deployment_state.html", values)}
    if view is not None:
        numbers = {**values, "view": view, "parts": _parts(view), "history": history}
        sent["numbers"] = desk.pages.text("overview_numbers.html", numbers)
        sent["facts"] = desk.pages.text("overview_facts.html", {**values, "view": view})
        acts = {**values, "acts": _acts(desk, found)}
        sent["acts"] = desk.pages.text("overview_acts.html", acts)
    return sent


def _acts(desk: Desk, found: Deployment) -> list[tuple[str, str, str]]:
    """What this person may ask of the deployment now: command, label, kind of button."""
    may = desk.may(Permission.DEPLOY, found.workspace_id, found.id)
    possible = allowed(found.state) if may and found.launcher is LauncherKind.LOCAL else ()
    return [(name.value, label, kind) for name, label, kind in _ACTS if name in possible]


def _new_requests(counts: Sequence[int]) -> list[int]:
    """How many requests came in each interval; a restart begins to count anew."""
    return [max(0, after - before) for before, after in pairwise(counts)]


def _parts(view: Overview) -> list[Part]:
    """Where prompt tokens came from, as parts of a bar."""
    reuse = view.reuse
    if reuse is None:
        return []
    tiers = ((view.engine_memory, reuse.gpu_tokens), ("Memory tier", reuse.memory_tokens),
             ("Persistent tier", reuse.disk_tokens), ("Storage", reuse.object_tokens))  # fmt: skip
    parts = [Part(name, tokens, number) for number, (name, tokens) in enumerate(tiers)]
    computed = max(0, reuse.prompt_tokens - sum(tokens for _, tokens in tiers))
    return [*parts, Part("Computed anew", computed, 5)]
