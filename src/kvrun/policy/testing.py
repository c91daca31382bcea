"""Inline tests of a revision, and why a decision is what it is. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvrun.policy.compile import CompiledRevision, Decision
from kvrun.policy.document import InlineTest, Tier
from kvrun.policy.errors import Problem
from kvrun.policy.matching import InstanceFacts, Matched, Place, Tenant, refusal
from kvrun.policy.revision import Revision, Rule


@dataclass(frozen=True, slots=True)
class InlineRun:
    """What came of the inline tests."""

    passed: int
    failures: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """One document's part in a decision; ``refuses`` is empty where it allows."""

    rule: str
    where: str
    matched: Matched
    refuses: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision and the documents that were about it."""

    decision: Decision
    traces: tuple[Trace, ...]


def run_tests(revision: Revision, clock: Callable[[], float] = time.thread_time) -> InlineRun:
    """Run every inline test against the whole revision.

    Raises PolicyRejectedError where a condition takes too long.
    """
    passed = 0
    failures: list[Problem] = []
    for rule in revision.rules:
        for number, (test, at) in enumerate(zip(rule.policy.tests, rule.tests_at, strict=True)):
            decision = _decision(revision, test, clock)
            if decision.allowed == (test.expect == "allow"):
                passed += 1
            else:
                failures.append(Problem(rule.file, *at, _failure(rule, number, test, decision)))
    return InlineRun(passed, tuple(failures))


def explain(
    revision: Revision,
    facts: InstanceFacts,
    tenant: Tenant,
    tier: Tier,
    clock: Callable[[], float] = time.thread_time,
) -> Explanation:
    """Why blocks of a tenant may or may not be in a tier of an instance."""
    compiled = CompiledRevision(revision, facts, clock)
    place = facts.place(tier)
    traces = [
        Trace(rule.name, rule.where, matched, refusal(rule, tier, place) or "", rule.policy.reason)
        for rule, matched in compiled.about(tenant)
    ]
    return Explanation(compiled.row(tenant)[tier], tuple(traces))


def _decision(revision: Revision, test: InlineTest, clock: Callable[[], float]) -> Decision:
    tier = Tier[test.tier.upper()]
    region = test.instance_region if test.region is None else test.region
    facts = InstanceFacts(
        workspace=test.workspace,
        deployment=test.deployment,
        model=test.model,
        engine=test.engine,
        region=test.instance_region,
        places={tier: Place(region, test.storage_class)},
    )
    tenant = Tenant(
        test.tenant.tenant_class, test.tenant.region, tuple(sorted(test.tenant.labels.items()))
    )
    return CompiledRevision(revision, facts, clock).row(tenant)[tier]


def _failure(rule: Rule, number: int, test: InlineTest, decision: Decision) -> str:
    named = test.name or f"{rule.name} number {number + 1}"
    was = "allowed" if decision.allowed else f"denied ({decision.why.value})"
    by = f" by {decision.rule} at {decision.where}" if decision.rule else ""
    return f"test {named!r}: expected {test.expect}, but it is {was}{by}"
