"""What a policy did not allow: who, where, by which rule and why, from a log's records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from kvrun.audit.decisions import AT_BOUND, UNRECORDED, DecisionCount, decision_of
from kvrun.audit.record import Event, Outcome, Record, format_time, parse_time
from kvrun.policy.compile import Decision, PolicyEngine
from kvrun.policy.document import TIER_NAMES, Tier
from kvrun.policy.held import Held
from kvrun.policy.matching import InstanceFacts, Why
from kvrun.policy.observed import placed

MAX_SHOWN = 1000


class ViolationKind(StrEnum):
    """What became of it."""

    MISPLACED = "misplaced"
    """It is there now and may not be."""
    WARNED = "warned"
    """It was done all the same: the policy only warns."""
    DENIED = "denied"
    """It was not done."""
    TAKEN_AWAY = "taken_away"
    """It was there, and left when a stricter revision came."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Alike placements of one tenant. ``at``: the last time, in seconds since 1970; 0 for what is
    misplaced now. ``blocks`` and ``size_bytes`` are 0 where the records do not say."""

    kind: ViolationKind
    tenant_ref: str
    tier: str
    region: str
    rule: str
    why: str
    revision: str
    where: str = ""
    reason: str = ""
    times: int = 0
    blocks: int = 0
    size_bytes: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Violations:
    """The newest first within each kind; ``unrecorded`` refusals have no record of their own, and
    ``more`` entries are left out."""

    entries: tuple[Violation, ...]
    unrecorded: int = 0
    more: int = 0


InForce = Callable[[InstanceFacts], PolicyEngine | None]
"""Who decides about what is at these places now; None: nothing is misplaced."""
Explained = Callable[[str, str], tuple[str, str]]
"""Where a rule of a revision stands and the reason that it gives; empty where nobody knows."""


def violations(
    records: Iterable[Record],
    facts: InstanceFacts,
    in_force: InForce,
    since: float = 0.0,
    explained: Explained = lambda revision, rule: ("", ""),
) -> Violations:
    """What was refused or taken away since a time, and what is misplaced at the records' end.

    ``facts`` are those of the configuration. Places are where the last ``policy_activated`` record
    before says that decisions put them: a bucket may be elsewhere than it is declared to be.
    """
    found: dict[Violation, Violation] = {}
    held, unrecorded, first = Held(), 0, format_time(since)
    for record in records:
        held.apply(record)
        if record.event is Event.POLICY_ACTIVATED:
            facts = placed(facts, record.reason)
        if record.ts < first:
            continue
        said = decision_of("", record.policy_revision, record.tier, "", record.reason)
        if said is None:
            continue
        if said.why == UNRECORDED:
            unrecorded += said.placements
        elif kind := _kind(record, said.why):
            _add(found, _alike(kind, record, said, facts), record, said.placements)
    entries = list(found.values())
    if (engine := in_force(facts)) is not None:
        entries += _misplaced(held, facts, engine)
    entries = [_with_words(entry, explained) for entry in entries]
    order = list(ViolationKind)
    entries.sort(key=lambda entry: (order.index(entry.kind), -entry.at, -entry.blocks))
    return Violations(tuple(entries[:MAX_SHOWN]), unrecorded, max(0, len(entries) - MAX_SHOWN))


def _kind(record: Record, why: str) -> ViolationKind | None:
    if record.tier not in TIER_NAMES or why == AT_BOUND:
        return None
    if record.event is Event.EVICTED:
        return ViolationKind.TAKEN_AWAY
    if record.event is not Event.DENIED:
        return None
    return ViolationKind.WARNED if record.outcome is Outcome.OK else ViolationKind.DENIED


def _alike(
    kind: ViolationKind, record: Record, said: DecisionCount, facts: InstanceFacts
) -> Violation:
    """What a record says, without counts: alike ones are added up."""
    region = facts.place(Tier(TIER_NAMES.index(record.tier))).region
    return Violation(
        kind,
        record.tenant_ref,
        record.tier,
        region,
        said.rule,
        said.why,
        record.policy_revision,
    )


def _add(found: dict[Violation, Violation], alike: Violation, record: Record, times: int) -> None:
    before = found.get(alike, alike)
    found[alike] = replace(
        before,
        times=before.times + times,
        blocks=before.blocks + record.blocks,
        size_bytes=before.size_bytes + record.bytes,
        at=max(before.at, parse_time(record.ts)),
    )


def _misplaced(held: Held, facts: InstanceFacts, engine: PolicyEngine) -> list[Violation]:
    found: dict[tuple[str, Tier, Decision], Violation] = {}
    for session in held.sessions.values():
        for tier in Tier:
            blocks = session.blocks.get(TIER_NAMES[tier], 0)
            decision = engine.row(session.tenant_ref)[tier]
            if not blocks or decision.why is Why.ALLOWED:
                continue
            key = (session.tenant_ref, tier, decision)
            before = found.get(key) or Violation(
                ViolationKind.MISPLACED,
                session.tenant_ref,
                TIER_NAMES[tier],
                facts.place(tier).region,
                decision.rule,
                decision.why.value,
                engine.revision,
                decision.where,
                decision.reason,
            )
            found[key] = replace(
                before,
                times=before.times + 1,
                blocks=before.blocks + blocks,
                size_bytes=before.size_bytes + session.size_bytes.get(TIER_NAMES[tier], 0),
            )
    return list(found.values())


def _with_words(entry: Violation, explained: Explained) -> Violation:
    if not entry.rule or entry.where:
        return entry
    where, reason = explained(entry.revision, entry.rule)
    return replace(entry, where=where, reason=reason)
