"""Erasures over several deployments: a person, tenants with a label, a workspace, an account."""

from typing import Annotated, Literal

from fastapi import APIRouter, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.api import joint_erasures
from kvrun.api.dependencies import ActorNow, ServicesNow, WorkspaceId
from kvrun.api.erasures import Reasons
from kvrun.api.joint_erasures import JointPlan, JointScope
from kvrun.api.joint_targets import DeploymentPlan
from kvrun.api.routes.erasures import (
    MAX_LISTED,
    ApprovalView,
    Id,
    PlanView,
    TierView,
    Token,
    approval_view,
    plan_view,
)
from kvrun.api.services import Services
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import add_tiers
from kvrun.launch.joint_erasures import JointErased

router = APIRouter(tags=["erasures"])
_PLACE = "/workspaces/{workspace_id}/erasures"
_MAX_TOKEN = 400_000
_Tokens = Annotated[str, Field(max_length=_MAX_TOKEN)]


class Wide(BaseModel):
    """What is to be erased at once."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["tenants", "workspace", "account"] = Field(
        description="Those end users that have a label, every deployment of the workspace, or of "
        "every workspace of the account that owns it."
    )
    label: str = Field(
        default="", max_length=320, description="Of `tenants`: `name=value`, as you labelled them."
    )

    also: list[Annotated[str, Field(max_length=200)]] = Field(
        default=[],
        max_length=200,
        description="Of `account`: API keys of its other workspaces; each is of one workspace.",
    )

    def scope(self, services: Services) -> JointScope:
        """As erasures have it. Raises ScopeNotServedError and UnauthenticatedError."""
        others = tuple(services.accounts.authenticate_key(key) for key in self.also)
        return JointScope(RequestKind(self.kind), self.label, others)


class WideToken(Wide):
    """A plan of it."""

    token: _Tokens = Field(min_length=1, description="Of the plan to agree to.")


class WideAsked(Wide):
    """The erasure of it."""

    confirm: _Tokens = Field(default="", description="The plan's token.")
    reference: str = Field(default="", max_length=200, description="Yours, such as DSAR-123.")
    legal_basis: str = Field(default="", max_length=200, description="Such as GDPR Art. 17.")
    certify_pending: bool = Field(
        default=False, description="Certify although a deployment fails; it is listed as pending."
    )


class UserScope(BaseModel):
    """One person."""

    model_config = ConfigDict(extra="forbid")

    user: str = Field(min_length=1, max_length=128, description="The id, as in X-KV-Tenant.")


class DeploymentPlanView(BaseModel):
    """One deployment's part."""

    deployment_id: str
    name: str
    plan: PlanView | None
    problem: str = Field(description="Why it cannot be planned.")


class UserPlanView(BaseModel):
    """What erasing a person would reach, by deployment."""

    deployments: list[DeploymentPlanView]


class WidePlanView(BaseModel):
    """What an erasure over several deployments would reach now."""

    kind: str
    subject: str = Field(description="What its certificate is about: `kvrun verify --subject`.")
    tenants: int
    sessions: int
    requests: int = Field(description="Running ones; they would be ended.")
    tiers: list[TierView]
    deployments: list[DeploymentPlanView]
    token: str = Field(description="Confirms this plan for ten minutes.")
    needs_approval: bool = Field(description="A second person has to agree.")


class UserErasureAsked(UserScope):
    """The erasure of one person everywhere in a workspace."""

    confirm: dict[Id, Token] = Field(
        max_length=MAX_LISTED, description="The plans' tokens by deployment id."
    )
    reference: str = Field(default="", max_length=200)
    legal_basis: str = Field(default="", max_length=200)
    certify_pending: bool = Field(
        default=False, description="Certify although a deployment fails; it is listed as pending."
    )


class ChildView(BaseModel):
    """What became of it in one deployment."""

    deployment: str
    outcome: str
    certificate_id: str
    problem: str


class JointErasedView(BaseModel):
    """An erasure over several deployments, with one certificate over all."""

    id: str = Field(description="Of the certificate over all.")
    deployments: list[ChildView]
    openings: dict[str, str] = Field(
        description="By certificate id; they are in this answer and nowhere else."
    )


@router.post("/workspaces/{workspace_id}/user-erasures/plan", summary="Plan to erase a person")
def plan_user_erasure(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: UserScope
) -> UserPlanView:
    """In every deployment of the workspace, stopped ones included."""
    found = joint_erasures.plan_user(services, actor, workspace_id, asked.user)
    return UserPlanView(deployments=[_part(item) for item in found])


@router.post(
    "/workspaces/{workspace_id}/user-erasures",
    summary="Erase a person",
    status_code=status.HTTP_201_CREATED,
)
def erase_user(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: UserErasureAsked
) -> JointErasedView:
    """A certificate for each deployment and one over all. Asked again with the same reference it
    goes on where it was cut short."""
    with joint_erasures.erasing_person(
        services,
        actor,
        workspace_id,
        asked.user,
        confirm=asked.confirm,
        reasons=Reasons(asked.reference, asked.legal_basis),
        certify_pending=asked.certify_pending,
    ) as done:
        return _erased(done)


@router.post(_PLACE + "/plan", summary="Plan an erasure over several deployments")
def plan_wide_erasure(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: Wide
) -> WidePlanView:
    """Counts what it would reach, stopped deployments too; nothing is erased.

    404 where nothing can be held: no end user has the label, no deployment was ever started.
    """
    scope = asked.scope(services)
    return _wide(scope, joint_erasures.plan_joint(services, actor, workspace_id, scope))


@router.post(_PLACE + "/approvals", summary="Ask a second person about such a plan")
def ask_wide_approval(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: WideToken
) -> list[ApprovalView]:
    """In every workspace that it reaches and that has one. It holds for 24 hours and one use."""
    found = joint_erasures.ask_joint_approval(
        services, actor, workspace_id, asked.scope(services), asked.token
    )
    return [approval_view(item) for item in found]


@router.post(_PLACE, summary="Erase over several deployments", status_code=status.HTTP_201_CREATED)
def erase_wide(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: WideAsked
) -> JointErasedView:
    """A certificate for each deployment and one over all. Deployments go on serving, cold.

    Of a workspace or an account every log is collected first; 409 where one cannot be. Asked again
    with the same reference it goes on where it was cut short.
    """
    with joint_erasures.erasing_scope(
        services,
        actor,
        workspace_id,
        asked.scope(services),
        confirm=asked.confirm,
        reasons=Reasons(asked.reference, asked.legal_basis),
        certify_pending=asked.certify_pending,
    ) as done:
        return _erased(done)


def _part(item: DeploymentPlan) -> DeploymentPlanView:
    return DeploymentPlanView(
        deployment_id=item.deployment.id,
        name=item.deployment.spec.name,
        plan=plan_view(item.plan) if item.plan is not None else None,
        problem=item.problem,
    )


def _wide(scope: JointScope, found: JointPlan) -> WidePlanView:
    plans = found.plans
    tiers = add_tiers(tier for plan in plans for tier in plan.tiers)
    return WidePlanView(
        kind=scope.kind.value,
        subject=found.subject,
        tenants=sum(plan.tenants for plan in plans),
        sessions=sum(plan.sessions for plan in plans),
        requests=sum(plan.requests for plan in plans),
        tiers=[TierView.model_validate(tier) for tier in tiers],
        deployments=[_part(item) for item in found.deployments],
        token=found.token,
        needs_approval=found.needs_approval,
    )


def _erased(done: JointErased) -> JointErasedView:
    return JointErasedView(
        id=done.parent.id,
        deployments=[
            ChildView(
                deployment=child.deployment,
                outcome=child.outcome.value,
                certificate_id=child.certificate_id,
                problem=done.problems.get(child.deployment, ""),
            )
            for child in done.children
        ],
        openings=done.openings,
    )
