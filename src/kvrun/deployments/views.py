"""What a deployment's page shows of its cache, its users and its use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvrun.deployments.model import Deployment
from kvrun.deployments.service import Deployments


@dataclass(frozen=True, slots=True)
class ReuseByTier:
    """Prompt tokens that were not computed, by the tier that they came from, since the start."""

    prompt_tokens: int
    gpu_tokens: int
    memory_tokens: int
    disk_tokens: int

    @property
    def rate(self) -> float:
        """The share of all prompt tokens that was reused; 0 where there were none."""
        reused = self.gpu_tokens + self.memory_tokens + self.disk_tokens
        return reused / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds to the first byte of an answer: quantiles of all answers since the start."""

    count: int
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Overview:
    """The first tab. ``engine`` is the software that said hello; numbers are None where nobody
    answers. ``warnings`` stand on every page."""

    deployment: Deployment
    engine: str
    endpoint: str
    model_name: str
    curl: str
    python: str
    requests: int | None
    running_requests: int | None
    reuse: ReuseByTier | None
    first_byte: Latency | None
    protections: Mapping[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TierRow:
    """A tier: what it holds and how that is protected; numbers None where nobody can tell.

    ``off`` says why it is switched off; empty where it is on. ``hit_rate`` is the share of all
    prompt tokens that came from this tier.
    """

    tier: str
    name: str
    holds: str
    protection: str
    size_bytes: int | None
    capacity_bytes: int | None
    blocks: int | None
    hit_rate: float | None
    off: str = ""


@dataclass(frozen=True, slots=True)
class CacheView:
    """The tab about the cache. ``context_window`` in tokens, None until an engine said it."""

    tiers: tuple[TierRow, ...]
    stateless: bool
    context_window: int | None
    context_why: str
    idle_timeout_s: int
    absolute_timeout_s: int
    max_sessions_per_tenant: int


@dataclass(frozen=True, slots=True)
class UserRow:
    """One end user (tenant). ``tenant`` is the id where it was asked for and can be told."""

    tenant_ref: str
    tenant: str | None
    sessions: int
    blocks: int
    size_bytes: int
    quota_sessions: int
    last_used_at: float
    expires_at: float
    tenant_class: str = ""
    region: str = ""
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class UserPage:
    """Some of the users, the last used first; ``unavailable`` says why there can be none."""

    rows: tuple[UserRow, ...]
    total: int
    page: int
    pages: int
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session of a tenant; ``session`` is its id where it was asked for."""

    session_ref: str
    session: str | None
    generation: int
    memory_blocks: int
    memory_bytes: int
    disk_blocks: int
    disk_bytes: int
    created_at: float
    last_used_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where one deployment has something of a person. ``unknown`` says why it cannot tell."""

    deployment: Deployment
    tenant_ref: str
    sessions: int
    tiers: Mapping[str, int]
    region: str
    last_used_at: float | None
    expires_at: float | None
    unknown: str = ""

    @property
    def found(self) -> bool:
        """Whether it has anything."""
        return self.sessions > 0


class DeploymentViews:
    """Reads what the pages show. Asks daemons; nothing here changes anything."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    def overview(self, deployment_id: str) -> Overview:
        """State, endpoint, examples to copy, and live numbers."""
        raise NotImplementedError

    def cache(self, deployment_id: str) -> CacheView:
        """The tier table, and why something is off or bounded."""
        raise NotImplementedError

    def users(
        self,
        deployment_id: str,
        query: str = "",
        page: int = 1,
        *,
        per_page: int = 50,
        reveal: str = "",
    ) -> UserPage:
        """End users. ``query``: a tenant's exact id, or the beginning of a reference.

        With ``reveal`` (why somebody wants to know) their ids are shown, each look-up on record in
        the deployment's log first.
        """
        raise NotImplementedError

    def sessions(
        self, deployment_id: str, tenant: str, *, reveal: str = ""
    ) -> tuple[SessionRow, ...]:
        """The sessions of a tenant, by its id or its reference."""
        raise NotImplementedError

    def where_is(self, workspace_id: str, tenant: str) -> tuple[Place, ...]:
        """What every deployment of a workspace has of a person, stopped ones included."""
        raise NotImplementedError
