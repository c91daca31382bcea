"""Comparing and trying out residency policies, and what a deployment's policy did not allow."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow
from kvrun.deployments import policy_work

router = APIRouter(tags=["insight"])
_POLICY = "/deployments/{deployment_id}/policy"
_MAX_TENANTS = 100
Hours = Annotated[int, Query(ge=1, le=policy_work.MAX_HOURS, description="How far back.")]
RevisionName = Annotated[
    str,
    Query(
        min_length=1,
        max_length=200,
        description="`active`, a commit, or a branch or tag, which is fetched.",
    ),
]


class KnownRevisionView(BaseModel):
    """A revision that was in force, or was refused."""

    model_config = ConfigDict(from_attributes=True)

    revision: str
    at: float = Field(description="When it was made, or looked at; seconds since 1970.")
    author: str
    subject: str
    active: bool
    refused: str = Field(description="Why it was not taken; empty where it was.")


class KnownRevisionsView(BaseModel):
    """Revisions, the active one first."""

    items: list[KnownRevisionView]


class DecisionView(BaseModel):
    """Whether blocks may be in a tier, by which policy and why."""

    model_config = ConfigDict(from_attributes=True)

    allowed: bool
    why: str
    rule: str
    where: str = Field(description="File and line of the policy.")
    reason: str
    ttl_s: int | None
    max_bytes: int | None


class ChangedDecisionView(BaseModel):
    """Tenants of whom a decision changes."""

    model_config = ConfigDict(from_attributes=True)

    tier: str
    before: DecisionView
    after: DecisionView
    tenants: int
    example: str = Field(description="One of them, by reference; empty: who is not known.")


class ChangedPolicyView(BaseModel):
    """A policy that came, went or changed."""

    model_config = ConfigDict(from_attributes=True)

    rule: str
    kind: str
    before: str
    after: str
    fields: list[str]


class ChangedFileView(BaseModel):
    """A file that came, went or changed."""

    model_config = ConfigDict(from_attributes=True)

    path: str
    kind: str
    lines: list[str] = Field(description="A unified diff, without its head.")
    cut: bool = Field(description="There are too many lines to show.")


class ComparisonView(BaseModel):
    """What differs between two revisions; decisions are this deployment's."""

    model_config = ConfigDict(from_attributes=True)

    before: str
    after: str
    files: list[ChangedFileView]
    changes: list[ChangedPolicyView]
    decisions: list[ChangedDecisionView]


class SimulatedGroupView(BaseModel):
    """Placements that would have come out differently, alike in tier, policy and why."""

    tier: str
    rule: str
    where: str
    why: str
    now_allowed: bool
    placements: int
    blocks: int
    size_bytes: int
    tenant_count: int
    tenants: list[str] = Field(description=f"References; the first {_MAX_TENANTS}.")


class SimulationView(BaseModel):
    """What a revision would have decided."""

    revision: str
    hours: int
    complete: bool = Field(description="False: only the newest records were looked at.")
    placements: int
    refused: int
    changes: list[SimulatedGroupView]


class ViolationView(BaseModel):
    """Alike placements of one tenant that the policy does not allow."""

    model_config = ConfigDict(from_attributes=True)

    kind: str = Field(description="misplaced, warned, denied or taken_away.")
    tenant_ref: str
    tier: str
    region: str
    rule: str
    where: str
    why: str
    reason: str
    revision: str
    times: int
    blocks: int
    size_bytes: int
    at: float = Field(description="The last time, seconds since 1970; 0: now.")


class ViolationsView(BaseModel):
    """What the policy refused, and what is misplaced."""

    hours: int
    complete: bool = Field(description="False: only the newest records were looked at.")
    items: list[ViolationView]
    unrecorded: int = Field(description="Refusals that have no record of their own.")
    more: int = Field(description="Entries that are left out.")


@router.get(_POLICY + "/revisions", summary="List a deployment's policy revisions")
def list_policy_revisions(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> KnownRevisionsView:
    """The active one, those before it, and those that were refused."""
    found = services.find(actor, Permission.VIEW, deployment_id)
    known = policy_work.known_revisions(services.deployments.config_of(found.id))
    return KnownRevisionsView(items=[KnownRevisionView.model_validate(item) for item in known])


@router.get(_POLICY + "/diff", summary="Compare two policy revisions")
def compare_policies(
    services: ServicesNow,
    actor: ActorNow,
    deployment_id: DeploymentId,
    after: RevisionName,
    before: RevisionName = "active",
) -> ComparisonView:
    """Which files, policies and decisions differ. Nothing comes into force by that."""
    # Not for whoever may look: it reads any branch with the deployment's own credentials.
    found = services.find(actor, Permission.AUDIT_READ, deployment_id)
    config = services.deployments.config_of(found.id)
    return ComparisonView.model_validate(policy_work.compared(config, before, after))


@router.get(_POLICY + "/simulation", summary="Simulate a policy revision")
def simulate_policy(
    services: ServicesNow,
    actor: ActorNow,
    deployment_id: DeploymentId,
    revision: RevisionName = "active",
    hours: Hours = 24,
) -> SimulationView:
    """What it would have decided about the placements on record. The reading is on record too."""
    found = services.read_log(actor, deployment_id, "policy simulate")
    config = services.deployments.config_of(found.id)
    done = policy_work.simulation(config, revision, hours, services.now())
    groups = [
        SimulatedGroupView(
            tier=group.tier,
            rule=group.rule,
            where=group.where,
            why=group.why,
            now_allowed=group.now_allowed,
            placements=group.placements,
            blocks=group.blocks,
            size_bytes=group.size_bytes,
            tenant_count=len(group.tenants),
            tenants=sorted(group.tenants)[:_MAX_TENANTS],
        )
        for group in done.simulation.changes
    ]
    return SimulationView(
        revision=done.revision,
        hours=done.hours,
        complete=done.complete,
        placements=done.simulation.placements,
        refused=done.simulation.refused,
        changes=groups,
    )


@router.get(_POLICY + "/violations", summary="List what a deployment's policy did not allow")
def list_policy_violations(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, hours: Hours = 24
) -> ViolationsView:
    """Refused, done all the same, taken away, or misplaced now: by pseudonym, with policy and
    reason. The reading is on record."""
    found = services.read_log(actor, deployment_id, "policy violations")
    config = services.deployments.config_of(found.id)
    seen = policy_work.misplaced_or_denied(config, hours, services.now())
    return ViolationsView(
        hours=seen.hours,
        complete=seen.complete,
        items=[ViolationView.model_validate(item) for item in seen.found.entries],
        unrecorded=seen.found.unrecorded,
        more=seen.found.more,
    )
