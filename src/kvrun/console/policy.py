"""Residency policies: what is in force in a workspace and in one deployment, and what is refused,
compared or tried out there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

from fastapi import Query, Response

from kvrun.accounts.permissions import Permission, require
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, go, page_router, place_of
from kvrun.console.forms import Form
from kvrun.console.frame import section_page
from kvrun.deployments import policy_work
from kvrun.deployments.each import read_each
from kvrun.deployments.model import Deployment
from kvrun.deployments.policy_view import PolicyLine, policy_line, policy_view
from kvrun.errors import KvrunError

router = page_router()
_POLICY = "/workspaces/{workspace_id}/deployments/{deployment_id}/policy"
_Text = Annotated[str, Query(max_length=200)]
_HOURS = (("24", "Last 24 hours"), ("168", "Last 7 days"), ("720", "Last 30 days"))
T = TypeVar("T")


@router.get("/workspaces/{workspace_id}/policies")
def get_policies(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """Which policy each deployment of the workspace follows."""
    require(desk.actor, Permission.VIEW, workspace_id)
    deployments = desk.services.deployments

    def read(found: Deployment) -> list[PolicyLine]:
        return [] if found.read_only else [policy_line(found, deployments.config_of(found))]

    lines, problems = read_each(deployments, workspace_id, read)
    return desk.page(
        "policies.html",
        desk.workspace(workspace_id),
        "policies",
        lines=lines,
        problems=problems,
    )


@router.get(_POLICY)
def get_policy(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """Active revision, author, signature, drift, and the looks at the repository."""
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    view = policy_view(desk.services.deployments.config_of(found.id))
    may_look = view.repository is not None and not found.read_only
    return _page(
        desk,
        found,
        "deployment_policy.html",
        "now",
        view=view,
        may_look=may_look and desk.may(Permission.DEPLOY, workspace_id, found.id),
    )


@router.post(_POLICY + "/sync")
def post_sync(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Have the repository looked at soon."""
    desk = change.desk
    found = desk.deployment(Permission.DEPLOY, workspace_id, deployment_id)
    policy_work.ask_for_look(desk.services.deployments.config_of(found.id))
    return go(f"{place_of(found)}/policy", "policy-look")


@router.get(_POLICY + "/diff")
def get_diff(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    before: _Text = "",
    after: _Text = "",
) -> Response:
    """What differs between two revisions: decisions, policies and files."""
    found = desk.deployment(Permission.AUDIT_READ, workspace_id, deployment_id)
    form = Form({"before": before.strip() or "active", "after": after.strip()}, {})
    config = desk.services.deployments.config_of(found.id)
    result = None
    if after.strip():
        names = form.values["before"], form.values["after"]
        result = _tried(form, "after", lambda: policy_work.compared(config, *names))
    return _page(desk, found, "policy_diff.html", "diff", form=form, result=result)


@router.get(_POLICY + "/simulate")
def get_simulation(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    revision: _Text = "",
    hours: _Text = "24",
) -> Response:
    """What a revision would have decided. The reading of the log is on record."""
    found = desk.deployment(Permission.AUDIT_READ, workspace_id, deployment_id)
    form = Form({"revision": revision.strip(), "hours": hours}, {})
    back = _hours(form)
    result = None
    if revision.strip() and not form.errors:
        desk.services.read_log(desk.actor, found.id, "policy simulate")
        config, now = desk.services.deployments.config_of(found.id), desk.services.now()
        name = form.values["revision"]
        result = _tried(form, "revision", lambda: policy_work.simulation(config, name, back, now))
    return _page(
        desk, found, "policy_simulation.html", "simulate", form=form, result=result, hours=_HOURS
    )


@router.get(_POLICY + "/violations")
def get_violations(
    desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId, hours: _Text = "24"
) -> Response:
    """Who was refused what, and what is misplaced. The reading of the log is on record."""
    found = desk.services.read_log(
        desk.actor,
        desk.deployment(Permission.AUDIT_READ, workspace_id, deployment_id).id,
        "policy violations",
    )
    form = Form({"hours": hours}, {})
    back = _hours(form)
    config, now = desk.services.deployments.config_of(found.id), desk.services.now()
    result = None
    if not form.errors:
        result = _tried(form, "hours", lambda: policy_work.misplaced_or_denied(config, back, now))
    return _page(
        desk,
        found,
        "policy_violations.html",
        "violations",
        form=form,
        result=result,
        hours=_HOURS,
        may_look_up=desk.may(Permission.WHOIS, workspace_id, found.id),
        kinds=_KINDS,
    )


def _page(desk: Desk, found: Deployment, template: str, tab: str, **values: object) -> Response:
    form = values.get("form")
    known = []
    if tab in ("diff", "simulate"):
        known = policy_work.known_revisions(desk.services.deployments.config_of(found.id))
    return section_page(
        desk,
        desk.workspace(found.workspace_id),
        found,
        "policy",
        template,
        values,
        status=422 if isinstance(form, Form) and form.errors else 200,
        tab=tab,
        known=known,
        why=said_why,
        may_read=desk.may(Permission.AUDIT_READ, found.workspace_id, found.id),
    )


def _hours(form: Form) -> int:
    return form.number("hours", "The time", 1, policy_work.MAX_HOURS) or 24


def _tried(form: Form, name: str, work: Callable[[], T]) -> T | None:
    """What came of it, or what was wrong beside the field of that name."""
    try:
        return work()
    except KvrunError as error:
        form.errors[name] = error.diagnostics()
        return None


def said_why(why: str) -> str:
    """A decision's code in words."""
    return _WHY.get(why) or why.replace("_", " ").capitalize()


_WHY: Mapping[str, str] = {
    "allowed": "Allowed",
    "tier_not_allowed": "It does not allow this tier",
    "region_not_allowed": "It does not allow this region",
    "storage_class_not_allowed": "It does not allow this storage class",
    "no_policy_matches": "No policy is about this user",
    "unknown_attributes": "It asks for something that is not known of this user",
    "no_valid_policy": "There is no valid policy",
    "policy_too_old": "The policy was not confirmed for too long",
    "tenant_of_another_region": "The user belongs to another region",
}
_KINDS: Mapping[str, tuple[str, str]] = {
    "misplaced": ("Misplaced now", "bad"),
    "warned": ("Done, with a warning", "open"),
    "denied": ("Refused", ""),
    "taken_away": ("Taken away", ""),
}
