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


class PolicySweepView(BaseModel):
    """What had to leave since the revision came into force, by tier."""

    model_config = ConfigDict(from_attributes=True)

    revision: str
    done: bool = Field(description="Nothing is left to be looked for.")
    sessions: int = Field(description="From which something left.")
    blocks: dict[str, int]
    size_bytes: dict[str, int]


class PolicyStateView(BaseModel):
    """Which policy a deployment follows and runs. Times in seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    mode: str = Field(description="enforce, warn or off.")
    repository: str | None
    ref: str
    region: str = Field(description="Of the instance, as declared.")
    region_seen: str = Field(description="What the cloud says; empty where nobody said.")
    region_standing: str = Field(description="unverified, verified or mismatch: what was seen.")
    storage_region: str = Field(description="Of the Storage, as declared.")
    storage_seen: str = Field(description="What the object store says; empty where it did not.")
    storage_standing: str = Field(description="unverified, verified or mismatch: what was seen.")
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
    sweep: PolicySweepView | None = Field(description="Null where nobody answers.")
    last: PolicyLookView | None
    history: list[PolicyLookView]


@router.get("/deployments/{deployment_id}/policy", summary="See a deployment's residency policy")
def get_policy(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> PolicyStateView:
    """Active revision, author, signature, drift, and what was refused before."""
    found = services.find(actor, Permission.VIEW, deployment_id)
    return PolicyStateView.model_validate(policy_view(services.deployments.config_of(found.id)))
