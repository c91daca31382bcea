"""A deployment's residency policy: what is in force, who made it, and what was refused."""

from __future__ import annotations

from fastapi import Response

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.console.desk import DeskNow, page_router
from kvrun.console.frame import section_page
from kvrun.deployments.policy_view import policy_view

router = page_router()


@router.get("/workspaces/{workspace_id}/deployments/{deployment_id}/policy")
def get_policy(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """Active revision, author, signature, drift, and the looks at the repository."""
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    view = policy_view(desk.services.deployments.config_of(found.id))
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "policy",
        "deployment_policy.html",
        view=view,
    )
