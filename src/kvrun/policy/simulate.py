"""What a revision would have decided about placements that are on record. Pure.

A placement comes about where every decision on its way allows it: a user who is not served places
nothing, every sealed block begins in memory, and what comes from a tier has to be allowed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvrun.audit.decisions import DECISION_PREFIX
from kvrun.audit.record import Event, Outcome, Record, parse_time
from kvrun.policy.compile import Decision, PolicyEngine
from kvrun.policy.document import TIER_NAMES, Tier


@dataclass(frozen=True, slots=True)
class RecordedPlacement:
    """A placement that was made, or refused by policy: in the last of the tiers on its ``way``.

    ``at`` in seconds since 1970.
    """

    at: float
    tenant_ref: str
    way: tuple[Tier, ...]
    blocks: int
    size_bytes: int
    allowed: bool
    revision: str

    @property
    def tier(self) -> Tier:
        """Where the blocks came, or would have come."""
        return self.way[-1]


@dataclass(slots=True)
class Group:
    """Placements that would come out differently, alike in tier, rule and why."""

    tier: str
    rule: str
    where: str
    why: str
    now_allowed: bool
    placements: int = 0
    blocks: int = 0
    size_bytes: int = 0
    tenants: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Simulation:
    """How many placements were looked at and how many would be refused; what would change."""

    placements: int
    refused: int
    changes: tuple[Group, ...]


def placements(records: Iterable[Record], since: float = 0.0) -> Iterator[RecordedPlacement]:
    """The placements among records of an instance's log, from a time on."""
    for record in records:
        way = _way(record)
        if not way or not record.tenant_ref:
            continue
        at = parse_time(record.ts)
        if at >= since:
            yield RecordedPlacement(
                at,
                record.tenant_ref,
                way,
                record.blocks,
                record.bytes,
                record.event is not Event.DENIED or record.outcome is Outcome.OK,
                record.policy_revision,
            )


def simulate(engine: PolicyEngine, recorded: Iterable[RecordedPlacement]) -> Simulation:
    """Ask ``engine`` about each placement and gather what comes out differently."""
    groups: dict[tuple[Tier, Decision], Group] = {}
    looked_at = refused = 0
    for placement in recorded:
        looked_at += 1
        row = engine.row(placement.tenant_ref)
        on_the_way = (row[tier] for tier in placement.way if not row[tier].allowed)
        decision = next(on_the_way, row[placement.tier])
        refused += not decision.allowed
        if decision.allowed == placement.allowed:
            continue
        key = (placement.tier, decision)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(
                TIER_NAMES[placement.tier],
                decision.rule,
                decision.where,
                decision.why.value,
                decision.allowed,
            )
        group.placements += 1
        group.blocks += placement.blocks
        group.size_bytes += placement.size_bytes
        group.tenants.add(placement.tenant_ref)
    changes = sorted(groups.values(), key=lambda group: (group.now_allowed, -group.placements))
    return Simulation(looked_at, refused, tuple(changes))


def _way(record: Record) -> tuple[Tier, ...]:
    """The tiers that have to be allowed for a placement, the one that it is in last."""
    if record.event is Event.ALLOCATED:
        return (Tier.GPU,)
    names: tuple[str, ...] = ()
    if record.event is Event.SEALED:
        names = (record.tier,)
    elif record.event in (Event.PERSISTED, Event.RESTORED, Event.MOVED):
        names = (record.tier, record.tier_to)
    elif record.event is Event.DENIED and record.reason.startswith(DECISION_PREFIX):
        names = (record.tier,) if record.tier in ("gpu", "memory") else ("memory", record.tier)
    found = [_BY_NAME[name] for name in names if name in _BY_NAME]
    if not found or names[-1] not in _BY_NAME:
        return ()
    return (*(() if found[0] is Tier.GPU else (Tier.GPU,)), *found)


_BY_NAME = {name: Tier(number) for number, name in enumerate(TIER_NAMES)}
