"""What is said of residency policies. Times in seconds since 1970."""

import msgspec


class PolicyRevision(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that was in force, or was refused: ``refused`` then says why."""

    revision: str
    at: float
    author: str
    subject: str
    active: bool
    refused: str


class PolicyRevisions(msgspec.Struct, frozen=True, kw_only=True):
    """Revisions, the active one first."""

    items: list[PolicyRevision]


class PolicyDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether blocks may be in a tier, by which policy (``where``: file and line) and why."""

    allowed: bool
    why: str
    rule: str
    where: str
    reason: str
    ttl_s: int | None
    max_bytes: int | None


class ChangedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants of whom a decision changes: how many, and one's reference (empty: not known)."""

    tier: str
    before: PolicyDecision
    after: PolicyDecision
    tenants: int
    example: str


class ChangedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was added, removed or changed, and where it stands."""

    rule: str
    kind: str
    before: str
    after: str
    fields: list[str]


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was added, removed or changed; ``lines`` are a unified diff without its head."""

    path: str
    kind: str
    lines: list[str]
    cut: bool


class PolicyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two revisions; decisions are the deployment's."""

    before: str
    after: str
    files: list[ChangedFile]
    changes: list[ChangedPolicy]
    decisions: list[ChangedDecision]


class SimulatedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Placements that would have come out differently, alike in tier, policy and why.

    ``tenants`` are references, the first hundred of ``tenant_count``.
    """

    tier: str
    rule: str
    where: str
    why: str
    now_allowed: bool
    placements: int
    blocks: int
    size_bytes: int
    tenant_count: int
    tenants: list[str]


class PolicySimulation(msgspec.Struct, frozen=True, kw_only=True):
    """What a revision would have decided. Not ``complete``: only the newest records were read."""

    revision: str
    hours: int
    complete: bool
    placements: int
    refused: int
    changes: list[SimulatedGroup]


class PolicyViolation(msgspec.Struct, frozen=True, kw_only=True):
    """Alike placements of one tenant that the policy does not allow.

    ``kind``: misplaced (there now, ``at`` is 0), warned (done all the same), denied (not done), or
    taken_away (left when a stricter revision came).
    """

    kind: str
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
    at: float


class PolicyViolations(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy did not allow. ``unrecorded`` refusals have no record of their own."""

    hours: int
    complete: bool
    items: list[PolicyViolation]
    unrecorded: int
    more: int
