"""Whether a document is about a tenant on an instance, and what it allows there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from kvrun.policy.condition import Budget
from kvrun.policy.document import TIER_NAMES, Tier
from kvrun.policy.revision import Rule


@dataclass(frozen=True, slots=True)
class Tenant:
    """What the registry says of a tenant; an attribute that is empty is not known."""

    tenant_class: str = ""
    region: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tier is. ``storage_class`` of the object tier only."""

    region: str = ""
    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """The instance that asks; ``places`` by tier, every other tier is in the instance's region."""

    workspace: str = "default"
    deployment: str = "default"
    model: str = ""
    engine: str = "vllm"
    region: str = ""
    places: Mapping[Tier, Place] = field(default_factory=dict)

    def place(self, tier: Tier) -> Place:
        """Where a tier is."""
        return self.places.get(tier) or Place(self.region)


class Matched(Enum):
    """Whether a document is about a tenant; OPEN where an attribute that it asks for is unknown."""

    NO = "no"
    OPEN = "unknown"
    YES = "yes"


class Why(StrEnum):
    """Why a placement is allowed or not."""

    ALLOWED = "allowed"
    TIER = "tier_not_allowed"
    REGION = "region_not_allowed"
    STORAGE_CLASS = "storage_class_not_allowed"
    NO_MATCH = "no_policy_matches"
    UNKNOWN_TENANT = "unknown_attributes"
    NO_POLICY = "no_valid_policy"
    TOO_OLD = "policy_too_old"
    OTHER_REGION = "tenant_of_another_region"


def matches_pattern(patterns: Iterable[str] | None, value: str) -> bool:
    """Whether a value is one of the patterns; None matches everything."""
    if patterns is None:
        return True
    return any(
        value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
        for pattern in patterns
    )


def matches_instance(rule: Rule, facts: InstanceFacts) -> bool:
    """Whether a document can be about any tenant of an instance."""
    match = rule.policy.match
    return (
        matches_pattern(match.workspaces, facts.workspace)
        and matches_pattern(match.deployments, facts.deployment)
        and matches_pattern(match.models, facts.model)
        and matches_pattern(match.engines, facts.engine)
        and matches_pattern(match.instance_regions, facts.region)
    )


def matches_tenant(rule: Rule, facts: InstanceFacts, tenant: Tenant, budget: Budget) -> Matched:
    """Whether a document that matches the instance is about a tenant.

    Raises ConditionError where its condition takes too long.
    """
    match = rule.policy.match
    result = Matched.YES
    asked: list[tuple[Iterable[str] | None, str]] = [
        (match.classes, tenant.tenant_class),
        (match.tenant_regions, tenant.region),
    ]
    if match.labels:
        labels = dict(tenant.labels)
        asked += [(patterns, labels.get(key, "")) for key, patterns in match.labels.items()]
    for patterns, value in asked:
        if patterns is None:
            continue
        if not value:
            result = Matched.OPEN
        elif not matches_pattern(patterns, value):
            return Matched.NO
    if rule.condition is None:
        return result
    holds = rule.condition.holds(variables(facts, tenant), budget)
    if holds is None:
        return Matched.OPEN
    return result if holds else Matched.NO


def variables(facts: InstanceFacts, tenant: Tenant) -> dict[str, object]:
    """What a condition can ask about."""
    return {
        "tenant": {
            "class": tenant.tenant_class,
            "region": tenant.region,
            "labels": dict(tenant.labels),
        },
        "workspace": facts.workspace,
        "deployment": facts.deployment,
        "model": facts.model,
        "engine": facts.engine,
        "instance": {"region": facts.region},
    }


def refusal(rule: Rule, tier: Tier, place: Place) -> Why | None:
    """Why a document that is about a tenant does not allow a tier; None where it does."""
    allow = rule.policy.allow
    if TIER_NAMES[tier] not in allow.tiers:
        return Why.TIER
    if not matches_pattern(allow.regions, place.region):
        return Why.REGION
    if tier is Tier.OBJECT and not matches_pattern(allow.storage_classes, place.storage_class):
        return Why.STORAGE_CLASS
    return None
