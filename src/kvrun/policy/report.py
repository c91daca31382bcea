"""What was where at a time, from the records of a log: bytes and users by region and tier. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvrun.audit.record import Event, Record, as_line
from kvrun.policy.document import TIER_NAMES, Tier
from kvrun.policy.matching import InstanceFacts

KEYS, LOGS = "keys", "log"
_ENDS = (Event.ERASED, Event.EXPIRED, Event.KEY_DESTROYED)
_TIERS = frozenset(TIER_NAMES)


@dataclass(frozen=True, slots=True)
class Holding:
    """What one tier holds in one region. ``users`` are tenants with blocks or keys there."""

    region: str
    tier: str
    users: int
    blocks: int
    size_bytes: int


@dataclass(slots=True)
class _Session:
    tenant_ref: str
    has_key: bool = False
    blocks: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, tier: str, blocks: int, size_bytes: int) -> None:
        # Evictions may be written later than what they made room for: never below nothing.
        self.blocks[tier] = max(0, self.blocks.get(tier, 0) + blocks)
        self.size_bytes[tier] = max(0, self.size_bytes.get(tier, 0) + size_bytes)


def holdings(records: Iterable[Record], facts: InstanceFacts, at: str = "") -> list[Holding]:
    """What the log says was where before ``at`` (as a record's time is written; empty: its end).

    Plaintext in GPU memory has no bytes in the log and is left out.
    """
    sessions: dict[tuple[str, str], _Session] = {}
    log_records = log_bytes = 0
    for record in records:
        if at and record.ts >= at:
            break
        log_records += 1
        log_bytes += len(as_line(record)) + 1
        if record.event is Event.LOG_OPENED:
            for session in sessions.values():
                session.blocks.pop("memory", None)
                session.size_bytes.pop("memory", None)
        elif record.session_ref:
            _apply(sessions, record)
    found = [
        _held(list(sessions.values()), TIER_NAMES[tier], facts.place(tier).region)
        for tier in Tier
        if tier is not Tier.GPU
    ]
    keys = {session.tenant_ref for session in sessions.values() if session.has_key}
    count = sum(session.has_key for session in sessions.values())
    found.append(Holding(facts.region, KEYS, len(keys), count, 0))
    found.append(Holding(facts.region, LOGS, 0, log_records, log_bytes))
    return found


def _held(sessions: list[_Session], tier: str, region: str) -> Holding:
    holding = [session for session in sessions if session.blocks.get(tier)]
    return Holding(
        region,
        tier,
        len({session.tenant_ref for session in holding}),
        sum(session.blocks[tier] for session in holding),
        sum(session.size_bytes.get(tier, 0) for session in holding),
    )


def _apply(sessions: dict[tuple[str, str], _Session], record: Record) -> None:
    key = (record.tenant_ref, record.session_ref)
    if record.event in _ENDS and not record.tier:
        sessions.pop(key, None)
        return
    session = sessions.get(key)
    if session is None:
        session = sessions[key] = _Session(record.tenant_ref)
    event, blocks, size = record.event, record.blocks, record.bytes
    if event is Event.KEY_CREATED:
        session.has_key = True
    elif event is Event.SEALED:
        session.add(record.tier, blocks, size)
    elif event in (Event.EVICTED, Event.EXPIRED) and record.tier in _TIERS:
        session.add(record.tier, -blocks, -size)
    elif event in (Event.PERSISTED, Event.RESTORED):
        session.add(record.tier_to, blocks, size)
    elif event is Event.MOVED:
        session.add(record.tier, -blocks, -size)
        if record.tier_to:
            session.add(record.tier_to, blocks, size)
