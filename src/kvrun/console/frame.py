"""What every page of one deployment has: its name, state, warnings and sections."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response

from kvrun.accounts.permissions import Permission
from kvrun.accounts.records import Workspace
from kvrun.console.desk import Desk, place_of
from kvrun.deployments.model import Deployment

LAUNCHERS: Mapping[str, str] = {
    "local": "This control plane, on this machine",
    "attached": "Somebody else, who registered it",
    "own": "The kvrun up that started this control plane",
}
SECTIONS = (
    ("overview", "Overview", Permission.VIEW),
    ("cache", "KV cache", Permission.VIEW),
    ("policy", "Residency", Permission.VIEW),
    ("users", "Users and sessions", Permission.VIEW),
    ("audit", "Audit log", Permission.AUDIT_READ),
    ("storage", "Storage", Permission.AUDIT_READ),
    ("certificates", "Certificates", Permission.CERTIFICATES),
    ("isolation", "Isolation", Permission.VIEW),
    ("settings", "Settings", Permission.VIEW),
)


def frame(
    desk: Desk, workspace: Workspace, found: Deployment, section: str, *, live: bool = False
) -> dict[str, object]:
    """What the templates of a deployment's pages use. ``live``: the page is sent its changes."""
    titles = {name: label for name, label, _ in SECTIONS}
    return {
        **desk.values(workspace, "deployments"),
        "deployment": found,
        "place": place_of(found),
        "section": section,
        "section_title": titles.get(section, "Deployment"),
        "sections": [
            (name, label)
            for name, label, permission in SECTIONS
            if desk.may(permission, workspace.id, found.id)
        ],
        "may_evidence": desk.may(Permission.EVIDENCE, workspace.id, found.id),
        "gone": found.read_only,
        "live": live and not found.read_only,
        "launchers": LAUNCHERS,
        "root_warning": desk.services.views.root_warning(found),
    }


def section_page(
    desk: Desk,
    workspace: Workspace,
    found: Deployment,
    section: str,
    template: str,
    more: Mapping[str, object] | None = None,
    *,
    live: bool = False,
    status: int = 200,
    **values: object,
) -> Response:
    """One page of a deployment; ``more`` and ``values`` are what its template uses besides."""
    given = {**frame(desk, workspace, found, section, live=live), **(more or {}), **values}
    return desk.pages.answer(template, given, status=status)
