"""Erasures: planned, confirmed, agreed to by a second person, followed, certified."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.records import Approval
from kvrun.api import erasures
from kvrun.api.dependencies import ActorNow, DeploymentId, ItemId, ServicesNow, WorkspaceId
from kvrun.api.erasures import Reasons
from kvrun.api.paging import Cursor, Limit, Page, cut
from kvrun.erasure.plan import ErasureScope, Plan, erasure_scope
from kvrun.instance.erasures import ErasureResult

router = APIRouter(tags=["erasures"])
_ERASURES = "/deployments/{deployment_id}/erasures"
_APPROVALS = "/workspaces/{workspace_id}/approvals"
Id = Annotated[str, Field(max_length=128)]
Token = Annotated[str, Field(max_length=512)]
MAX_LISTED = 1000


class Scope(BaseModel):
    """What is to be erased of a deployment."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["session", "tenant", "user", "deployment"]
    tenant: Id = Field(default="", description="The end user's id, as in X-KV-Tenant.")
    session: Id = Field(default="", description="The session's id, as in X-KV-Session.")

    def scope(self) -> ErasureScope:
        """As erasures have it. Raises ScopeNotServedError."""
        return erasure_scope(self.kind, self.tenant, self.session)


class TierView(BaseModel):
    """What a tier holds of it."""

    model_config = ConfigDict(from_attributes=True)

    tier: str
    blocks: int
    bytes: int


class PlanView(BaseModel):
    """What an erasure would reach now."""

    model_config = ConfigDict(from_attributes=True)

    kind: str
    tenants: int
    sessions: int
    requests: int = Field(description="Running ones; they would be ended.")
    tiers: list[TierView]
    claim_class: str = Field(description="What the key root can prove.")
    token: str = Field(
        description="Confirms this plan for ten minutes; empty where none is needed."
    )
    needs_approval: bool = Field(default=False, description="A second person has to agree.")


class ErasureAsked(Scope):
    """An erasure."""

    confirm: Token = Field(default="", description="The plan's token; a session needs none.")
    reference: str = Field(default="", max_length=200, description="Yours, such as DSAR-123.")
    legal_basis: str = Field(default="", max_length=200, description="Such as GDPR Art. 17.")


class ErasedView(BaseModel):
    """A finished erasure."""

    id: str = Field(description="Of the erasure and of its certificate.")
    claim_class: str
    sessions: int = Field(description="How many sessions' keys were destroyed.")
    unacknowledged: list[str] = Field(
        description="Engines and daemons that have not confirmed yet."
    )
    opening: str = Field(
        description="Proves whom the certificate is about. It is in this answer and nowhere else."
    )

    @classmethod
    def of(cls, done: ErasureResult) -> "ErasedView":
        """As the API shows it."""
        return cls(
            id=done.id,
            claim_class=done.claim_class,
            sessions=len(done.erased) + done.more,
            unacknowledged=done.unacknowledged,
            opening=done.opening,
        )


class ErasureView(BaseModel):
    """An erasure in a list."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    state: str = Field(description="`certified` once it has its certificate.")
    kind: str
    requested_at: str
    issued_at: str
    reference: str
    claim_class: str
    keys: int


class StepView(BaseModel):
    """A step that was taken."""

    name: str
    at: str


class ErasureProgress(ErasureView):
    """How far an erasure has come."""

    steps: list[StepView]
    unacknowledged: list[str]
    certificates: list[str] = Field(description="Its certificate and addenda.")


class ApprovalAsked(BaseModel):
    """A request for a second person's word."""

    model_config = ConfigDict(extra="forbid")

    deployment_id: Id
    token: str = Field(min_length=1, max_length=200, description="Of the plan to agree to.")


class Refusal(BaseModel):
    """Why a second person does not agree."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(
        default="", max_length=500, description="One line for whoever asked; no end user's id."
    )


class ApprovalView(BaseModel):
    """A request for a second person's word. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    workspace_id: str
    deployment_id: str | None
    operation: str
    subject: str = Field(description="The label that it is about, of an erasure by label.")
    asked_by: str
    asked_at: int
    expires_at: int
    decided_by: str | None
    decided_at: int | None
    agreed: bool | None
    taken_at: int | None
    tenants: int | None = Field(description="What the plan would reach when it was asked for.")
    sessions: int | None
    reason: str = Field(description="Why it was refused, where that was said.")


@router.post(_ERASURES + "/plan", summary="Plan an erasure")
def plan_erasure(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: Scope
) -> PlanView:
    """Counts what it would reach; nothing is erased. Stopped deployments too."""
    counted = erasures.plan(services, actor, deployment_id, asked.scope())
    wide = asked.kind == "deployment"
    second = wide and erasures.needs_approval(services, actor, deployment_id)
    return plan_view(counted, needs_approval=second)


@router.post(_ERASURES, summary="Erase", status_code=status.HTTP_201_CREATED)
def erase(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: ErasureAsked
) -> ErasedView:
    """Destroys the keys, and answers when it is certified; its steps can be followed meanwhile.

    409 where the plan's token is missing or too old, 403 where a second person has to agree.
    """
    done = erasures.erase(
        services,
        actor,
        deployment_id,
        asked.scope(),
        confirm=asked.confirm,
        reasons=Reasons(asked.reference, asked.legal_basis),
    )
    return ErasedView.of(done)


@router.get(_ERASURES, summary="List a deployment's erasures")
def list_erasures(
    services: ServicesNow,
    actor: ActorNow,
    deployment_id: DeploymentId,
    reference: Annotated[str, Query(max_length=200)] = "",
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[ErasureView]:
    """Those under way first, then the latest first."""
    found = erasures.listed(services, actor, deployment_id, reference=reference)
    items, after = cut(found, limit, cursor)
    return Page(items=[ErasureView.model_validate(item) for item in items], next=after)


@router.get(_ERASURES + "/{erasure_id}", summary="Follow an erasure")
def get_erasure(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, erasure_id: ItemId
) -> ErasureProgress:
    """Its state, its steps, and which engines have not confirmed."""
    found = erasures.status(services, actor, deployment_id, erasure_id)
    return ErasureProgress.model_validate(
        {
            **ErasureView.model_validate(found.row).model_dump(),
            "steps": [{"name": name, "at": at} for name, at in found.steps],
            "unacknowledged": found.unacknowledged,
            "certificates": found.certificates,
        }
    )


@router.post(_APPROVALS, summary="Ask a second person", status_code=status.HTTP_201_CREATED)
def ask_approval(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: ApprovalAsked
) -> ApprovalView:
    """To agree to the erasure of a whole deployment. It holds for 24 hours and for one use.

    409 where the token is none of a plan to erase this deployment, or too old.
    """
    found = erasures.ask_approval(services, actor, workspace_id, asked.deployment_id, asked.token)
    return approval_view(found)


@router.get(_APPROVALS, summary="List requests for a second person")
def list_approvals(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[ApprovalView]:
    """The newest first."""
    items, after = cut(services.accounts.list_approvals(actor, workspace_id), limit, cursor)
    return Page(items=[approval_view(item) for item in items], next=after)


@router.post(_APPROVALS + "/{approval_id}/approve", summary="Agree as the second person")
def approve(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, approval_id: ItemId
) -> ApprovalView:
    """For a person who did not ask, signed in here or logged in on a command line."""
    return approval_view(services.accounts.approve(actor, workspace_id, approval_id))


@router.post(_APPROVALS + "/{approval_id}/refuse", summary="Refuse as the second person")
def refuse_approval(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    approval_id: ItemId,
    asked: Refusal | None = None,
) -> ApprovalView:
    """Whoever asked may take the request back so."""
    reason = asked.reason if asked is not None else ""
    return approval_view(
        services.accounts.refuse_approval(actor, workspace_id, approval_id, reason)
    )


def plan_view(counted: Plan, *, needs_approval: bool = False) -> PlanView:
    """A plan as the API shows it."""
    return PlanView(
        kind=counted.kind.value,
        tenants=counted.tenants,
        sessions=counted.sessions,
        requests=counted.requests,
        tiers=[TierView.model_validate(tier) for tier in counted.tiers],
        claim_class=counted.claim_class,
        token=counted.token,
        needs_approval=needs_approval,
    )


def approval_view(found: Approval) -> ApprovalView:
    """An approval as the API shows it."""
    return ApprovalView.model_validate(found)
