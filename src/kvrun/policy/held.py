"""What each session holds in each tier, added up from the records of a log. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvrun.audit.record import Event, Record
from kvrun.policy.compile import PolicyEngine
from kvrun.policy.document import TIER_NAMES

_ENDS = (Event.ERASED, Event.EXPIRED, Event.KEY_DESTROYED)
_TIERS = frozenset(TIER_NAMES)


@dataclass(slots=True)
class HeldSession:
    """What one session holds: ``blocks`` and ``size_bytes`` by the name of a tier."""

    tenant_ref: str
    has_key: bool = False
    blocks: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, tier: str, blocks: int, size_bytes: int) -> None:
        """Count what came to a tier, or what left it where the numbers are negative."""
        # Evictions may be written later than what they made room for: never below nothing.
        self.blocks[tier] = max(0, self.blocks.get(tier, 0) + blocks)
        self.size_bytes[tier] = max(0, self.size_bytes.get(tier, 0) + size_bytes)


def would_leave(engine: PolicyEngine, sessions: Iterable[HeldSession]) -> dict[str, int]:
    """Blocks, by tier, that are where a revision does not allow them."""
    found: dict[str, int] = {}
    for session in sessions:
        row = engine.row(session.tenant_ref)
        for name, blocks in session.blocks.items():
            if blocks and name in _TIERS and not row[TIER_NAMES.index(name)].allowed:
                found[name] = found.get(name, 0) + blocks
    return found


class Held:
    """The living sessions, by tenant and session reference, after the records so far."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, str], HeldSession] = {}

    def apply(self, record: Record) -> None:
        """Take in the next record."""
        if record.event is Event.LOG_OPENED:
            for session in self.sessions.values():
                session.blocks.pop("memory", None)
                session.size_bytes.pop("memory", None)
        elif record.session_ref:
            self._apply(record)

    def _apply(self, record: Record) -> None:
        key = (record.tenant_ref, record.session_ref)
        if record.event in _ENDS and not record.tier:
            self.sessions.pop(key, None)
            return
        session = self.sessions.get(key)
        if session is None:
            session = self.sessions[key] = HeldSession(record.tenant_ref)
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
