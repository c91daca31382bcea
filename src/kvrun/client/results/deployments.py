"""Deployments and what they do. Times are seconds since 1970, sizes bytes."""

import msgspec


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What people choose of a deployment. ``context_window`` in tokens, None for the model's own.

    ``multi_tenant``: a product with customers in it, so that every request must name its end user.
    """

    name: str
    model: str
    engine: str
    multi_tenant: bool
    stateless: bool
    context_window: int | None
    memory_bytes: int
    disk_bytes: int
    labels: dict[str, str]
    gpu_ids: list[int]
    allow_shared_gpu: bool
    settings: dict[str, str | int | bool]


class ForeignProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU that is not the deployment's. ``memory_bytes`` 0: unknown."""

    pid: int
    name: str
    memory_bytes: int


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as it was found at the latest start."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    foreign: list[ForeignProcess]


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment.

    ``state`` is where it is, ``wanted`` what its people last asked for, ``reason`` why, where that
    is not plain, and ``commands`` what may be asked of it now. ``certificates`` are those of its
    deletion.
    """

    id: str
    workspace_id: str
    spec: DeploymentSpec
    state: str
    wanted: str
    reason: str
    launcher: str
    endpoint: str
    instance: int
    restarts: int
    created_at: float
    state_since: float
    started_at: float | None
    restart_at: float | None
    deleted_at: float | None
    gpu_notes: list[Gpu]
    shares_gpu: bool
    certificates: list[str]
    commands: list[str]


class MadeDeployment(Deployment, frozen=True, kw_only=True):
    """A deployment that was just made. ``warnings``: what to know before it is started."""

    warnings: list[str]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted deployment. ``openings`` by certificate id are in this answer and nowhere else."""

    deployment: Deployment
    certificates: list[str]
    openings: dict[str, str]


class AttachToken(msgspec.Struct, frozen=True, kw_only=True):
    """With it a deployment that somebody else runs is registered; it works once."""

    token: str


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens that were not computed, by tier, since the start."""

    prompt_tokens: int
    gpu_tokens: int
    memory_tokens: int
    disk_tokens: int
    object_tokens: int
    rate: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds to the first byte of answers since the start."""

    count: int
    p50_s: float
    p90_s: float
    p99_s: float


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment at a glance; numbers are None where nobody answers."""

    engine: str
    endpoint: str
    model_name: str
    curl: str
    python: str
    requests: int | None
    running_requests: int | None
    reuse: Reuse | None
    first_byte: Latency | None
    protections: dict[str, str]
    warnings: list[str]


class CacheTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier of the cache; ``off`` says why it is switched off, and is empty where it is on."""

    tier: str
    name: str
    holds: str
    protection: str
    size_bytes: int | None
    capacity_bytes: int | None
    blocks: int | None
    hit_rate: float | None
    off: str


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment's cache and its bounds. ``context_why`` says why the window is bounded."""

    tiers: list[CacheTier]
    stateless: bool
    context_window: int | None
    context_why: str
    idle_timeout_s: int
    absolute_timeout_s: int
    max_sessions_per_tenant: int


class PolicyLook(msgspec.Struct, frozen=True, kw_only=True):
    """How one look at a policy's repository ended, at ``at`` seconds since 1970."""

    at: float
    outcome: str
    revision: str
    problems: list[str]


class PolicySweep(msgspec.Struct, frozen=True, kw_only=True):
    """What had to leave since ``revision`` came into force, by tier, from so many sessions."""

    revision: str
    done: bool
    sessions: int
    blocks: dict[str, int]
    size_bytes: dict[str, int]


class PolicyState(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment's residency policy. ``running`` is what its instance has in force, None where
    nobody answers; ``drift`` says where that is not ``revision``. Regions are declared, beside each
    what was seen (empty: nobody said) and its standing: unverified, verified or mismatch."""

    mode: str
    repository: str | None
    ref: str
    region: str
    region_seen: str
    region_standing: str
    storage_region: str
    storage_seen: str
    storage_standing: str
    revision: str
    author: str
    subject: str
    signed_by: str
    activated_at: float | None
    confirmed_at: float | None
    running: str | None
    standing: str
    drift: str
    refused: int | None
    sweep: PolicySweep | None
    last: PolicyLook | None
    history: list[PolicyLook]


class EndUser(msgspec.Struct, frozen=True, kw_only=True):
    """An end user (tenant), by a pseudonym that dies with the user's key.

    ``tenant`` is the id, where a reason was given and the key still lives.
    """

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
    labels: dict[str, str] | None


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session of an end user, by its pseudonym."""

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


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What one deployment has of a person; ``unknown`` says why it cannot tell."""

    deployment: Deployment
    tenant_ref: str
    found: bool
    sessions: int
    tiers: dict[str, int]
    region: str
    last_used_at: float | None
    expires_at: float | None
    unknown: str


class TenantNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an end user, who is named by the log's reference."""

    tenant_ref: str
    tenant_class: str = ""
    region: str = ""
    labels: dict[str, str] = {}


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """How many notes were taken."""

    count: int


class ImportedList(msgspec.Struct, frozen=True, kw_only=True):
    """How many notes were taken, and the lines whose end user has no key there."""

    count: int
    unknown_lines: list[int]
