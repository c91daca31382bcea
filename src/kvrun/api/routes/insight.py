"""What a deployment does: its use, its cache, its end users and their sessions, process logs."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission, require
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, Page, cut
from kvrun.api.routes.deployments import DeploymentView
from kvrun.deployments.views import PER_PAGE

router = APIRouter(tags=["insight"])
_Reason = Annotated[
    str,
    Field(
        default="",
        max_length=300,
        description="Why the ids are wanted; it is put on record, and the ids are shown.",
    ),
]


class ReuseView(BaseModel):
    """Prompt tokens that were not computed, by tier, since the start."""

    model_config = ConfigDict(from_attributes=True)

    prompt_tokens: int
    gpu_tokens: int
    memory_tokens: int
    disk_tokens: int
    object_tokens: int
    rate: float


class LatencyView(BaseModel):
    """Seconds to the first byte of answers since the start."""

    model_config = ConfigDict(from_attributes=True)

    count: int
    p50_s: float
    p90_s: float
    p99_s: float


class OverviewView(BaseModel):
    """A deployment at a glance; numbers are null where nobody answers."""

    model_config = ConfigDict(from_attributes=True)

    engine: str
    endpoint: str
    model_name: str
    curl: str = Field(description="To copy.")
    python: str = Field(description="To copy.")
    requests: int | None
    running_requests: int | None
    reuse: ReuseView | None
    first_byte: LatencyView | None
    protections: dict[str, str]
    warnings: list[str]


class CacheTier(BaseModel):
    """A tier; numbers are null where nobody can tell."""

    model_config = ConfigDict(from_attributes=True)

    tier: str
    name: str
    holds: str
    protection: str
    size_bytes: int | None
    capacity_bytes: int | None
    blocks: int | None
    hit_rate: float | None
    off: str = Field(description="Why it is switched off; empty where it is on.")


class CacheTiersView(BaseModel):
    """The cache and its bounds."""

    model_config = ConfigDict(from_attributes=True)

    tiers: list[CacheTier]
    stateless: bool
    context_window: int | None
    context_why: str
    idle_timeout_s: int
    absolute_timeout_s: int
    max_sessions_per_tenant: int


class UserView(BaseModel):
    """An end user (tenant), by a pseudonym that dies with the user's key."""

    model_config = ConfigDict(from_attributes=True)

    tenant_ref: str
    tenant: str | None = Field(description="The id, where a reason was given and it can be told.")
    sessions: int
    blocks: int
    size_bytes: int
    quota_sessions: int
    last_used_at: float
    expires_at: float
    tenant_class: str
    region: str
    labels: dict[str, str] | None


class UsersView(BaseModel):
    """End users, the last used first."""

    items: list[UserView]
    total: int
    next: str | None = None
    unavailable: str = Field(description="Why there can be none now.")


class SessionView(BaseModel):
    """A session, by its pseudonym."""

    model_config = ConfigDict(from_attributes=True)

    session_ref: str
    session: str | None
    generation: int
    memory_blocks: int
    memory_bytes: int
    disk_blocks: int
    disk_bytes: int
    object_blocks: int
    object_bytes: int
    created_at: float
    last_used_at: float
    expires_at: float


class UsersAsked(BaseModel):
    """Which end users. In a body, since an id has no place in an address."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(default="", max_length=128, description="An id, or a reference's beginning.")
    reason: _Reason
    limit: int = Field(default=50, ge=1, le=200)
    cursor: str = Field(default="", max_length=10, pattern=r"^[0-9]*$")


class SessionsAsked(BaseModel):
    """Whose sessions."""

    model_config = ConfigDict(extra="forbid")

    tenant: str = Field(min_length=1, max_length=128, description="The id or the reference.")
    reason: _Reason
    cursor: str = Field(default="", max_length=10, pattern=r"^[0-9]*$")


class PersonAsked(BaseModel):
    """Who is looked for."""

    model_config = ConfigDict(extra="forbid")

    user: str = Field(min_length=1, max_length=128, description="The id, as in X-KV-Tenant.")


class PlaceView(BaseModel):
    """What one deployment has of a person."""

    model_config = ConfigDict(from_attributes=True)

    deployment: DeploymentView
    tenant_ref: str
    found: bool
    sessions: int
    tiers: dict[str, int] = Field(description="Bytes by tier.")
    region: str
    last_used_at: float | None
    expires_at: float | None
    unknown: str = Field(description="Why it cannot tell.")


@router.get("/deployments/{deployment_id}/overview", summary="See how a deployment does")
def get_overview(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> OverviewView:
    """Requests, reuse by tier, time to the first byte, and examples to copy."""
    found = services.find(actor, Permission.VIEW, deployment_id)
    return OverviewView.model_validate(services.views.overview(found.id))


@router.get("/deployments/{deployment_id}/cache", summary="See what a deployment's cache holds")
def get_cache(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> CacheTiersView:
    """The tiers, how each is protected, and why one is off or bounded."""
    found = services.find(actor, Permission.VIEW, deployment_id)
    return CacheTiersView.model_validate(services.views.cache(found.id))


@router.get(
    "/deployments/{deployment_id}/logs/{process}",
    summary="Read the end of a process's log",
    response_class=PlainTextResponse,
)
def get_process_log(
    services: ServicesNow,
    actor: ActorNow,
    deployment_id: DeploymentId,
    process: Literal["up", "instance", "engine", "gateway", "collector"],
    tail_bytes: Annotated[int, Query(ge=1, le=2**20)] = 65_536,
) -> str:
    """Not the audit log: what the process printed."""
    found = services.find(actor, Permission.DEPLOY, deployment_id)
    return services.deployments.logs(found.id, process, tail_bytes=tail_bytes)


@router.post("/deployments/{deployment_id}/users/search", summary="List end users")
def search_users(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: UsersAsked
) -> UsersView:
    """By pseudonym; a search or a reason needs the permission `whois`."""
    wanted = Permission.WHOIS if asked.query or asked.reason else Permission.VIEW
    found = services.find(actor, wanted, deployment_id)
    page = int(asked.cursor or 1)
    listed = services.views.users(
        found.id, asked.query, page, per_page=asked.limit, reveal=asked.reason
    )
    return UsersView(
        items=[UserView.model_validate(row) for row in listed.rows],
        total=listed.total,
        next=str(page + 1) if page < listed.pages else None,
        unavailable=listed.unavailable,
    )


@router.post("/deployments/{deployment_id}/sessions/search", summary="List a user's sessions")
def search_sessions(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: SessionsAsked
) -> Page[SessionView]:
    """By pseudonym; needs the permission `whois`, since an id leads to a pseudonym here."""
    found = services.find(actor, Permission.WHOIS, deployment_id)
    page = int(asked.cursor or 1)
    rows = services.views.sessions(found.id, asked.tenant, reveal=asked.reason, page=page)
    return Page(
        items=[SessionView.model_validate(row) for row in rows],
        next=str(page + 1) if len(rows) == PER_PAGE else None,
    )


@router.post("/workspaces/{workspace_id}/where-is", summary="Find where a person's data is")
def where_is(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    asked: PersonAsked,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[PlaceView]:
    """Every deployment of the workspace, stopped ones included: tiers, region, expiry."""
    require(actor, Permission.WHOIS, workspace_id)
    items, after = cut(services.views.where_is(workspace_id, asked.user), limit, cursor)
    return Page(
        items=[
            PlaceView(
                deployment=DeploymentView.of(item.deployment),
                tenant_ref=item.tenant_ref,
                found=item.found,
                sessions=item.sessions,
                tiers=dict(item.tiers),
                region=item.region,
                last_used_at=item.last_used_at,
                expires_at=item.expires_at,
                unknown=item.unknown,
            )
            for item in items
        ],
        next=after,
    )
