"""The residency policy of a deployment."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow
from kvrun.deployments.policy_view import policy_view

router = APIRouter(tags=["insight"])


class PolicyLookView(BaseModel):
    """How one look at the repository ended."""

    model_config = ConfigDict(from_attributes=True)

    at: float = Field(description="Seconds since 1970.")
    outcome: str = Field(description="unchanged, activated, rejected or unreachable.")
    revision: str
    problems: list[str] = Field(description="What was wrong, with file, line and column.")


class PolicyStateView(BaseModel):
    """Which policy a deployment follows and runs. Times in seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    mode: str = Field(description="enforce, warn or off.")
    repository: str | None
    ref: str
    region: str = Field(description="As declared; it is not checked.")
    storage_region: str = Field(description="As declared; it is not checked.")
    revision: str = Field(description="What should be in force: a commit, or builtin-1.")
    author: str
    subject: str
    signed_by: str
    activated_at: float | None
    confirmed_at: float | None
    running: str | None = Field(description="What the instance runs; null where nobody answers.")
    standing: str
    drift: str = Field(description="Why the two differ; empty where they do not.")
    refused: int | None = Field(description="Placements refused since the instance started.")
    last: PolicyLookView | None
    history: list[PolicyLookView]


@router.get("/deployments/{deployment_id}/policy", summary="See a deployment's residency policy")
def get_policy(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> PolicyStateView:
    """Active revision, author, signature, drift, and what was refused before."""
    found = services.find(actor, Permission.VIEW, deployment_id)
    return PolicyStateView.model_validate(policy_view(services.deployments.config_of(found.id)))
