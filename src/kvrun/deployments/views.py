"""What a deployment's page shows of its cache, its users and its use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from kvrun.config import KvrunConfig
from kvrun.deployments import asking, examples
from kvrun.deployments.cache_view import CacheView, cache_view, engine_memory
from kvrun.deployments.errors import UnreachableError
from kvrun.deployments.kept_indexes import KeptIndexes
from kvrun.deployments.latency import Latency, first_byte
from kvrun.deployments.model import Deployment, LauncherKind
from kvrun.deployments.registry import TenantNote
from kvrun.deployments.root_warning import root_warning
from kvrun.deployments.service import Deployments
from kvrun.engines.vllm.installed import installed_engine
from kvrun.errors import KvrunError
from kvrun.instance.usage import SessionUsage, TenantUsage, Usage

PER_PAGE = 50
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ReuseByTier:
    """Prompt tokens that were not computed, by the tier that they came from, since the start."""

    prompt_tokens: int
    gpu_tokens: int
    memory_tokens: int
    disk_tokens: int
    object_tokens: int

    @property
    def rate(self) -> float:
        """The share of all prompt tokens that was reused; 0 where there were none."""
        below = self.disk_tokens + self.object_tokens
        reused = self.gpu_tokens + self.memory_tokens + below
        return reused / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Overview:
    """The first tab. ``engine`` is the software that said hello; numbers are None where nobody
    answers. ``requests`` are those admitted to the cache since the start; ``warnings`` stand on
    every page. ``engine_memory`` is what the engine's own memory is called."""

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
    engine_memory: str


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
    tenant_class: str
    region: str
    labels: Mapping[str, str]


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
    object_blocks: int
    object_bytes: int
    created_at: float
    last_used_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where one deployment has something of a person. ``unknown`` says why it cannot tell.

    ``tiers`` is sealed bytes by tier. GPU memory is not counted: what of a person is there goes
    with the request or is reused under the same key.
    """

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
        self._kept = KeptIndexes()

    def overview(self, deployment_id: str) -> Overview:
        """State, endpoint, examples to copy, and live numbers."""
        deployment, config, used = self._look(deployment_id)
        name = examples.model_name(config)
        return Overview(
            deployment=deployment,
            engine=used.engine if used is not None else "",
            endpoint=f"{deployment.endpoint}/v1",
            model_name=name,
            curl=examples.curl(deployment.endpoint, name, config.gateway),
            python=examples.python(deployment.endpoint, name, config.gateway),
            requests=used.admitted_requests if used is not None else None,
            running_requests=used.running_requests if used is not None else None,
            reuse=_reuse(used),
            first_byte=first_byte(config) if used is not None else None,
            protections=asking.protections(config) if used is not None else {},
            warnings=self.warnings(deployment),
            engine_memory=engine_memory(_on_cpu(deployment, config)),
        )

    def warnings(self, deployment: Deployment) -> tuple[str, ...]:
        """What stands on every page of it, from its creation on."""
        root = self.root_warning(deployment)
        return (*_shared_gpus(deployment), root) if root else _shared_gpus(deployment)

    def root_warning(self, deployment: Deployment) -> str:
        """Why erasures of it end in no certificate; empty where they do, or nobody can tell yet."""
        if not deployment.read_only:
            with suppress(KvrunError, OSError):
                return root_warning(self._deployments.config_of(deployment.id))
        return ""

    def cache(self, deployment_id: str) -> CacheView:
        """The tier table, and why something is off or bounded."""
        deployment, config, used = self._look(deployment_id)
        cpu = _on_cpu(deployment, config)
        return cache_view(config, used, cpu=cpu, shared=deployment.shares_gpu)

    def users(
        self,
        deployment_id: str,
        query: str = "",
        page: int = 1,
        *,
        per_page: int = PER_PAGE,
        reveal: str = "",
    ) -> UserPage:
        """End users. ``query``: a tenant's exact id, or the beginning of a reference.

        With ``reveal`` (why somebody wants to know) their ids are shown, each look-up on record in
        the deployment's log first. Raises LookUpError for a reason that cannot be logged.
        """
        config = self._deployments.config_of(deployment_id)
        page = max(1, page)
        asked = {
            "query": query.strip(),
            "offset": str((page - 1) * per_page),
            "limit": str(per_page),
            "reason": reveal,
        }
        try:
            found = asking.tenants(config, asked, self._kept)
        except UnreachableError as error:
            return UserPage((), 0, 1, 1, error.message)
        notes = self._deployments.tenants.of(deployment_id, [row.tenant_ref for row in found.rows])
        quota = config.keys.max_sessions_per_tenant
        rows = tuple(_user(row, notes.get(row.tenant_ref), quota) for row in found.rows)
        return UserPage(rows, found.total, page, max(1, math.ceil(found.total / per_page)))

    def sessions(
        self, deployment_id: str, tenant: str, *, reveal: str = "", page: int = 1
    ) -> tuple[SessionRow, ...]:
        """Some sessions of a tenant, the last used first; ``tenant`` is its id or its reference.

        Raises UnreachableError, and LookUpError as ``users`` does.
        """
        config = self._deployments.config_of(deployment_id)
        window = {"offset": str((max(1, page) - 1) * PER_PAGE), "limit": str(PER_PAGE)}
        asked = {**window, "reason": reveal}
        found = asking.sessions(config, {**asked, "tenant": tenant}, self._kept)
        if not found.total:
            found = asking.sessions(config, {**asked, "ref": tenant}, self._kept)
        return tuple(map(_session, found.rows))

    def where_is(self, workspace_id: str, tenant: str) -> tuple[Place, ...]:
        """What every deployment of a workspace has of a person, stopped ones included."""
        living = self._deployments.list(workspace_id, deleted=False)
        # Each waits for a daemon, or for the disk where a stopped one's keys are.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return tuple(pool.map(lambda deployment: self._place(deployment, tenant), living))

    def _place(self, deployment: Deployment, tenant: str) -> Place:
        try:
            config = self._deployments.config_of(deployment)
            found = asking.all_sessions(config, tenant, self._kept)
        except KvrunError as error:
            # One that cannot be asked, whatever is wrong with it, hides no other.
            return _nothing(deployment, error.message)
        if not found.rows:
            return _nothing(deployment, "")
        note = self._deployments.tenants.of(deployment.id, [found.tenant_ref])
        region = note[found.tenant_ref].region if found.tenant_ref in note else ""
        return Place(
            deployment=deployment,
            tenant_ref=found.tenant_ref,
            sessions=found.total,
            tiers={
                "memory": sum(row.memory_bytes for row in found.rows),
                "disk": sum(row.disk_bytes for row in found.rows),
                "object": sum(row.object_bytes for row in found.rows),
            },
            region=region or deployment.spec.labels.get("region", ""),
            last_used_at=max(row.last_used_at for row in found.rows),
            expires_at=max(row.expires_at for row in found.rows),
        )

    def _look(self, deployment_id: str) -> tuple[Deployment, KvrunConfig, Usage | None]:
        deployment = self._deployments.get(deployment_id)
        config = self._deployments.config_of(deployment)
        return deployment, config, None if deployment.read_only else asking.usage(config)


def _on_cpu(deployment: Deployment, config: KvrunConfig) -> bool | None:
    """Whether its engine computes on a CPU; None where nobody here can tell."""
    section = config.engine
    if section.kind == "llama.cpp":
        # The packaged build knows no GPU; another one decides for itself.
        return None if section.llama_server is not None else True
    if deployment.launcher is LauncherKind.ATTACHED:
        # What somebody else runs has an installation of its own.
        return None
    engine = installed_engine()
    return engine.cpu if engine is not None else None


def _nothing(deployment: Deployment, unknown: str) -> Place:
    region = deployment.spec.labels.get("region", "")
    return Place(deployment, "", 0, {}, region, None, None, unknown)


def _reuse(used: Usage | None) -> ReuseByTier | None:
    if used is None:
        return None
    return ReuseByTier(
        used.prompt_tokens,
        used.gpu_tokens,
        used.memory_tokens,
        used.disk_tokens,
        used.object_tokens,
    )


def _shared_gpus(deployment: Deployment) -> tuple[str, ...]:
    said = []
    for note in deployment.gpu_notes:
        others = ", ".join(f"process {item.pid} ({item.name})" for item in note.foreign)
        if others:
            said.append(
                f"GPU {note.index} is shared: {others} used it when this deployment started, so "
                "its memory is not reserved for this deployment alone."
            )
    return tuple(said)


def _user(row: TenantUsage, note: TenantNote | None, quota: int) -> UserRow:
    return UserRow(
        tenant_ref=row.tenant_ref,
        tenant=row.tenant or None,
        sessions=row.sessions,
        blocks=row.memory_blocks + row.disk_blocks + row.object_blocks,
        size_bytes=row.memory_bytes + row.disk_bytes + row.object_bytes,
        quota_sessions=quota,
        last_used_at=row.last_used_at,
        expires_at=row.expires_at,
        tenant_class=note.tenant_class if note else "",
        region=note.region if note else "",
        labels=note.labels if note else {},
    )


def _session(row: SessionUsage) -> SessionRow:
    return SessionRow(
        session_ref=row.session_ref,
        session=row.session or None,
        generation=row.generation,
        memory_blocks=row.memory_blocks,
        memory_bytes=row.memory_bytes,
        disk_blocks=row.disk_blocks,
        disk_bytes=row.disk_bytes,
        object_blocks=row.object_blocks,
        object_bytes=row.object_bytes,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        expires_at=row.expires_at,
    )
