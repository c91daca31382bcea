"""From a revision to the table that a placement looks up. Pure.

Documents only narrow each other: a placement is allowed where at least one document is about the
tenant and every one that is allows it. What a document asks for and nobody knows of a tenant makes
it open: then nothing but GPU memory is allowed, and only where a document allows it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvrun.policy.condition import Budget, ConditionError
from kvrun.policy.document import Tier
from kvrun.policy.errors import PolicyRejectedError, Problem
from kvrun.policy.matching import (
    InstanceFacts,
    Matched,
    Tenant,
    Why,
    matches_instance,
    matches_tenant,
    refusal,
)
from kvrun.policy.revision import Revision, Rule

BUILTIN_REVISION = "builtin-1"
NO_REVISION = "none"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether blocks may be in a tier, by which rule and why; the limits that hold there."""

    allowed: bool
    why: Why = Why.ALLOWED
    rule: str = ""
    where: str = ""
    reason: str = ""
    ttl_s: int | None = None
    max_bytes: int | None = None

    def code(self) -> str:
        """The decision as a short text for a record: why, then the rule."""
        return f"{self.why.value} {self.rule}".strip()


Row = tuple[Decision, Decision, Decision, Decision]
"""The decisions of one tenant, by tier."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The decisions about one tenant by one revision: what a request keeps from begin to end."""

    revision: str
    row: Row

    def allows(self, tier: int) -> bool:
        """Whether blocks may be in a tier."""
        return self.row[tier].allowed


class PolicyEngine(Protocol):
    """Who answers where blocks may be. ``PolicyTable`` does, whichever engine made it (``engine``);
    another can take its place."""

    @property
    def revision(self) -> str:
        """What every decision is recorded with."""

    def row(self, tenant_ref: str) -> Row:
        """The decisions about one tenant. Must not wait: requests do."""


class PolicyTable:
    """Decisions by tenant reference; ``default`` is for tenants of whom nothing is known."""

    __slots__ = ("default", "revision", "rows")

    def __init__(self, revision: str, default: Row, rows: Mapping[str, Row] | None = None) -> None:
        self.revision = revision
        self.default = default
        self.rows = dict(rows or {})

    def row(self, tenant_ref: str) -> Row:
        """See PolicyEngine."""
        return self.rows.get(tenant_ref, self.default)

    def decide(self, tenant_ref: str, tier: Tier) -> Decision:
        """One placement."""
        return self.rows.get(tenant_ref, self.default)[tier]


class CompiledRevision:
    """A revision for one instance; ``table`` gives the decisions for the tenants that are known.

    Raises PolicyRejectedError where a condition takes too long for some tenant: each call has its
    own time.
    """

    def __init__(
        self,
        revision: Revision,
        facts: InstanceFacts,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.revision = revision
        self.facts = facts
        self._clock = clock
        rules = [rule for rule in revision.rules if matches_instance(rule, facts)]
        # By class where a document lists classes without a star: most do, and most are for others.
        self._exact: dict[str, list[int]] = {}
        self._general: list[int] = []
        self._rules = rules
        for number, rule in enumerate(rules):
            classes = rule.policy.match.classes
            if classes is None or any(name.endswith("*") for name in classes):
                self._general.append(number)
                continue
            for name in set(classes):
                self._exact.setdefault(name, []).append(number)
        self._keys = _label_keys(rules)
        self._by_tenant: dict[Tenant, Row] = {}
        self._by_rules: dict[tuple[tuple[int, ...], tuple[int, ...]], Row] = {}

    def row(self, tenant: Tenant) -> Row:
        """The decisions about a tenant with these attributes."""
        return self._known_row(tenant, Budget(self._clock))

    def table(self, tenants: Mapping[str, Tenant]) -> PolicyTable:
        """The table for tenants by reference."""
        budget = Budget(self._clock)
        rows = {ref: self._known_row(tenant, budget) for ref, tenant in tenants.items()}
        return PolicyTable(self.revision.id, self._known_row(Tenant(), budget), rows)

    def at(self, facts: InstanceFacts) -> CompiledRevision:
        """The same revision for another instance, or the same one elsewhere."""
        return CompiledRevision(self.revision, facts, self._clock)

    def about(self, tenant: Tenant) -> list[tuple[Rule, Matched]]:
        """The documents that are, or may be, about a tenant."""
        budget = Budget(self._clock)
        return [
            (self._rules[number], matched)
            for number in self._candidates(tenant)
            if (matched := self._matched(number, tenant, budget)) is not Matched.NO
        ]

    def _known_row(self, tenant: Tenant, budget: Budget) -> Row:
        tenant = self._relevant(tenant)
        found = self._by_tenant.get(tenant)
        if found is None:
            found = self._by_tenant[tenant] = self._row(tenant, budget)
        return found

    def _candidates(self, tenant: Tenant) -> Sequence[int]:
        if not tenant.tenant_class:
            return range(len(self._rules))
        return sorted([*self._general, *self._exact.get(tenant.tenant_class, ())])

    def _relevant(self, tenant: Tenant) -> Tenant:
        """The tenant without labels that no document asks for: many are then the same."""
        if self._keys is None or not tenant.labels:
            return tenant
        keys = self._keys
        return replace(tenant, labels=tuple(item for item in tenant.labels if item[0] in keys))

    def _matched(self, number: int, tenant: Tenant, budget: Budget) -> Matched:
        rule = self._rules[number]
        try:
            return matches_tenant(rule, self.facts, tenant, budget)
        except ConditionError as error:
            problem = Problem(rule.file, *rule.when_at, f"when: {error.message}")
            raise PolicyRejectedError([problem]) from None

    def _row(self, tenant: Tenant, budget: Budget) -> Row:
        certain: list[int] = []
        open_: list[int] = []
        for number in self._candidates(tenant):
            matched = self._matched(number, tenant, budget)
            if matched is Matched.YES:
                certain.append(number)
            elif matched is Matched.OPEN:
                open_.append(number)
        key = (tuple(certain), tuple(open_))
        row = self._by_rules.get(key)
        if row is None:
            sure = [self._rules[number] for number in certain]
            unsure = [self._rules[number] for number in open_]
            row = self._by_rules[key] = _row(
                [_decide(sure, unsure, self.facts, tier) for tier in Tier]
            )
        return row


def builtin_table() -> PolicyTable:
    """What applies until a repository is connected: everything, where the instance is."""
    allowed = Decision(allowed=True, rule=BUILTIN_REVISION)
    return PolicyTable(BUILTIN_REVISION, (allowed,) * 4)


BUILTIN_PLACEMENT = Placement(BUILTIN_REVISION, builtin_table().default)


def closed_table(facts: InstanceFacts, tenants: Mapping[str, Tenant]) -> PolicyTable:
    """What applies while a repository is connected and there is no valid policy.

    GPU memory only; and not for a tenant that the registry says belongs to another region.
    """
    gpu = Decision(allowed=True)
    away = Decision(allowed=False, why=Why.OTHER_REGION)
    no = Decision(allowed=False, why=Why.NO_POLICY)
    rows = {
        ref: (away, no, no, no)
        for ref, tenant in tenants.items()
        if tenant.region and tenant.region != facts.region
    }
    return PolicyTable(NO_REVISION, (gpu, no, no, no), rows)


def aged_table(table: PolicyTable) -> PolicyTable:
    """What is left of a policy that is too old to be believed: where a tenant is processed."""
    no = Decision(allowed=False, why=Why.TOO_OLD)
    done: dict[int, Row] = {}

    def only_gpu(row: Row) -> Row:
        if id(row) not in done:
            done[id(row)] = (row[Tier.GPU], no, no, no)
        return done[id(row)]

    rows = {ref: only_gpu(row) for ref, row in table.rows.items()}
    return PolicyTable(table.revision, only_gpu(table.default), rows)


def warned_table(table: PolicyTable) -> PolicyTable:
    """The same decisions without effect: everything is allowed, for any time and of any size, and
    why it would not be stays."""
    done: dict[int, Row] = {}

    def allowed(row: Row) -> Row:
        if id(row) not in done:
            free = [replace(of, allowed=True, ttl_s=None, max_bytes=None) for of in row]
            done[id(row)] = _row(free)
        return done[id(row)]

    rows = {ref: allowed(row) for ref, row in table.rows.items()}
    return PolicyTable(table.revision, allowed(table.default), rows)


def _decide(
    certain: Sequence[Rule], open_: Sequence[Rule], facts: InstanceFacts, tier: Tier
) -> Decision:
    place = facts.place(tier)
    for rule in certain:
        why = refusal(rule, tier, place)
        if why is not None:
            return _denied(why, rule)
    if tier is Tier.GPU and not certain:
        for rule in open_:
            if refusal(rule, tier, place) is None:
                return _allowed([rule])
    elif tier is not Tier.GPU and open_:
        return _denied(Why.UNKNOWN_TENANT, open_[0])
    return _allowed(certain) if certain else Decision(allowed=False, why=Why.NO_MATCH)


def _allowed(rules: Sequence[Rule]) -> Decision:
    ttls = [rule.policy.allow.ttl for rule in rules if rule.policy.allow.ttl is not None]
    sizes = [r.policy.allow.max_bytes for r in rules if r.policy.allow.max_bytes is not None]
    first = rules[0]
    return Decision(
        allowed=True,
        rule=first.name,
        where=first.where,
        reason=first.policy.reason,
        ttl_s=min(ttls, default=None),
        max_bytes=min(sizes, default=None),
    )


def _denied(why: Why, rule: Rule) -> Decision:
    return Decision(
        allowed=False, why=why, rule=rule.name, where=rule.where, reason=rule.policy.reason
    )


def _row(decisions: Sequence[Decision]) -> Row:
    gpu, memory, disk, object_ = decisions
    return gpu, memory, disk, object_


def _label_keys(rules: Sequence[Rule]) -> frozenset[str] | None:
    """The labels that matter; None for all, where a condition looks at labels."""
    if any(rule.condition is not None and "labels" in rule.condition.text for rule in rules):
        return None
    return frozenset(key for rule in rules for key in (rule.policy.match.labels or ()))
