"""What was where at a time, from the records of a log: bytes and users by region and tier. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvrun.audit.record import Event, Record, as_line
from kvrun.policy.document import TIER_NAMES, Tier
from kvrun.policy.held import Held, HeldSession
from kvrun.policy.matching import InstanceFacts
from kvrun.policy.observed import places_of

KEYS, LOGS = "keys", "log"


@dataclass(frozen=True, slots=True)
class Holding:
    """What one tier holds in one region. ``users`` are tenants with blocks or keys there.

    ``recorded``: the region is what the log says of that time, and not of the configuration now.
    """

    region: str
    tier: str
    users: int
    blocks: int
    size_bytes: int
    recorded: bool = False


def holdings(records: Iterable[Record], facts: InstanceFacts, at: str = "") -> list[Holding]:
    """What the log says was where before ``at`` (as a record's time is written; empty: its end).

    Regions are those of the last ``policy_activated`` record before ``at``, as decisions rested on
    them; without one those of ``facts``. Plaintext in GPU memory has no bytes in the log and is
    left out.
    """
    places: tuple[str, str] | None = None
    held = Held()
    log_records = log_bytes = 0
    for record in records:
        if at and record.ts >= at:
            break
        log_records += 1
        log_bytes += len(as_line(record)) + 1
        if record.event is Event.POLICY_ACTIVATED:
            places = places_of(record.reason) or places
        held.apply(record)
    recorded = places is not None
    here, storage = places or (facts.region, facts.place(Tier.OBJECT).region)
    sessions = list(held.sessions.values())
    found = [
        _held(sessions, TIER_NAMES[tier], storage if tier is Tier.OBJECT else here)
        for tier in Tier
        if tier is not Tier.GPU
    ]
    keys = {session.tenant_ref for session in sessions if session.has_key}
    count = sum(session.has_key for session in sessions)
    found.append(Holding(here, KEYS, len(keys), count, 0))
    found.append(Holding(here, LOGS, 0, log_records, log_bytes))
    return [replace(holding, recorded=recorded) for holding in found]


def _held(sessions: list[HeldSession], tier: str, region: str) -> Holding:
    holding = [session for session in sessions if session.blocks.get(tier)]
    return Holding(
        region,
        tier,
        len({session.tenant_ref for session in holding}),
        sum(session.blocks[tier] for session in holding),
        sum(session.size_bytes.get(tier, 0) for session in holding),
    )
