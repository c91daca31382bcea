"""Erasures, certificates, logs, alerts and Storage. Times are seconds or RFC 3339, as said."""

import msgspec


class TierCount(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier holds of something."""

    tier: str
    blocks: int
    bytes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure would reach now.

    ``token`` confirms it for ten minutes and is empty where none is needed; ``needs_approval``: a
    second person has to agree. ``claim_class`` is what the key root can prove.
    """

    kind: str
    tenants: int
    sessions: int
    requests: int
    tiers: list[TierCount]
    claim_class: str
    token: str
    needs_approval: bool = False


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """A finished erasure; ``id`` is also its certificate's.

    ``opening`` proves whom the certificate is about: keep it, it is in this answer and nowhere
    else. ``unacknowledged`` names engines and daemons that have not confirmed.
    """

    id: str
    claim_class: str
    sessions: int
    unacknowledged: list[str]
    opening: str


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure; ``state`` is ``certified`` once it has its certificate. Times RFC 3339."""

    id: str
    state: str
    kind: str
    requested_at: str
    issued_at: str
    reference: str
    claim_class: str
    keys: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of an erasure that was taken, at a time (RFC 3339)."""

    name: str
    at: str


class ErasureProgress(Erasure, frozen=True, kw_only=True):
    """How far an erasure has come; ``certificates`` are its certificate and addenda."""

    steps: list[Step]
    unacknowledged: list[str]
    certificates: list[str]


class DeploymentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment's part of a person's erasure; ``problem`` says why there is no plan."""

    deployment_id: str
    name: str
    plan: Plan | None
    problem: str


class UserPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What erasing a person would reach, by deployment."""

    deployments: list[DeploymentPlan]

    def tokens(self) -> dict[str, str]:
        """The plans' tokens by deployment id, as ``erase_user`` takes them."""
        return {part.deployment_id: part.plan.token for part in self.deployments if part.plan}


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an erasure in one deployment."""

    deployment: str
    outcome: str
    certificate_id: str
    problem: str


class WidePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure over several deployments would reach now.

    ``subject`` is what its certificate is about; ``token`` confirms the plan for ten minutes;
    ``needs_approval``: a second person has to agree.
    """

    kind: str
    subject: str
    tenants: int
    sessions: int
    requests: int
    tiers: list[TierCount]
    deployments: list[DeploymentPlan]
    token: str
    needs_approval: bool


class JointErased(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure over deployments; ``id`` is that of the certificate over all of them.

    ``openings`` by certificate id are in this answer and nowhere else.
    """

    id: str
    deployments: list[Child]
    openings: dict[str, str]


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What a certificate states. RFC 3339.

    ``claim_class`` is empty where nothing was held, and in one over several deployments: that one
    lists ``children`` certificates.
    """

    id: str
    deployment_id: str
    kind: str
    reference: str
    requester: str
    issued_at: str
    complete_after: str
    claim_class: str
    keys: int
    unacknowledged: int
    children: int = 0


class Banner(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one log, ``text`` as a sentence. ``newer_records`` None: nobody can say."""

    log: str
    text: str
    verified_up_to: int
    at: float | None
    newer_records: int | None
    key_id: str
    witnesses: dict[str, int]
    alert: str
    retired: str


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a collected log. ``first`` is a segment's first record, None for other files."""

    log: str
    name: str
    first: int | None
    size_bytes: int


class AuditLog(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment's log; ``produces`` says what its engine can and cannot produce."""

    banners: list[Banner]
    segments: list[Segment]
    more_segments: bool
    produces: str
    collectable: bool


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record of an audit log; docs/spec/audit-log.md says what its fields mean."""

    v: int
    log: str
    epoch: int
    seq: int
    ts: str
    event: str
    outcome: str
    prev: str
    workspace: str
    deployment: str
    request_id: str
    tenant_ref: str
    session_ref: str
    tier: str
    tier_to: str
    blocks: int
    blocks_root: str
    bytes: int
    tokens: int
    lost: int
    key_id: str
    digest: str
    policy_revision: str
    reason: str


class CollectedLog(msgspec.Struct, frozen=True, kw_only=True):
    """What came of collecting one log; ``size`` records are verified now."""

    source: str
    outcome: str
    log: str
    size: int
    new_records: int
    stored_size: int
    alert: str
    message: str


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection did, and what it found beside."""

    logs: list[CollectedLog]
    findings: list[str]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert; without ``deployment_id`` it is about the control plane. Times in seconds."""

    id: str
    deployment_id: str
    deployment_name: str
    kind: str
    log: str
    seq: int
    detail: str
    raised_at: float
    stops: bool
    count: int
    files: list[str]
    acknowledged_at: float | None
    acknowledged_because: str


class StorageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A folder or an object of Storage; ``note`` says what it is and who could read it."""

    key: str
    name: str
    folder: bool
    size_bytes: int
    note: str


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement; ``state`` is ``present``, ``none_in_period``, or ``not_known_now`` where
    Storage cannot be used."""

    framework: str
    requirement: str
    title: str
    evidence: str
    state: str
    counted: dict[str, int]
    files: list[str]
    command: str


class Controls(msgspec.Struct, frozen=True, kw_only=True):
    """What the evidence of a period answers to."""

    statement: str
    controls: list[Control]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle and how far it is; ``state``: running, done, failed or interrupted. Times in seconds
    since 1970; without ``deployment_id`` it is of the whole workspace."""

    id: str
    workspace_id: str
    deployment_id: str
    since: str
    until: str
    sample: int
    seed: str
    full: bool
    asked_by: str
    asked_at: float
    state: str
    what: str
    done: int
    steps: int
    error: str
    size_bytes: int
    ended_at: float | None
