"""What the cache tells the daemon: counts per session, never one event a block.

The daemon turns these into audit records. Counts gather between two drains, so a burst of
evictions is one event a session and tier.
"""

import threading
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Tier(IntEnum):
    """Where a sealed block is found; the values are the bytes that ``match`` answers."""

    MISS = 0
    MEMORY = 1
    DISK = 2
    OBJECT = 3


class CacheEventKind(StrEnum):
    """What happened to some blocks of a session, or to a tier."""

    EVICTED = "evicted"
    PERSISTED = "persisted"
    RESTORED = "restored"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"
    PERSIST_DENIED = "persist_denied"
    PERSIST_SKIPPED = "persist_skipped"
    LOST = "lost"
    EXPIRED = "expired"
    DISK_UNAVAILABLE = "disk_unavailable"
    DISK_AVAILABLE = "disk_available"
    OBJECTS_UNAVAILABLE = "objects_unavailable"
    OBJECTS_AVAILABLE = "objects_available"


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One aggregated fact.

    ``tier`` is the tier that the blocks left (evicted, expired, dropped, quarantined, lost), were
    read from (restored: memory keeps them now) or went to (persisted and its refusals).
    ``tenant_ref`` and ``session_ref`` are empty for events about a whole tier. ``bytes`` counts
    sealed bytes. ``revision`` is the policy's by which it was decided, empty where none was asked.
    """

    kind: CacheEventKind
    tier: Tier
    tenant_ref: str = ""
    session_ref: str = ""
    blocks: int = 0
    bytes: int = 0
    reason: str = ""
    revision: str = ""


_Kind = tuple[CacheEventKind, Tier, str, str, str, str]


class EventCounter:
    """Gathers counts until they are drained. Thread-safe; never calls out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[_Kind, tuple[int, int]] = {}

    def add(
        self,
        kind: CacheEventKind,
        tier: Tier,
        tenant_ref: str = "",
        session_ref: str = "",
        *,
        blocks: int = 0,
        size: int = 0,
        reason: str = "",
        revision: str = "",
    ) -> None:
        """Adds ``blocks`` blocks of ``size`` bytes in total to what the next drain reports."""
        key = (kind, tier, tenant_ref, session_ref, reason, revision)
        with self._lock:
            had_blocks, had_bytes = self._counts.get(key, (0, 0))
            self._counts[key] = (had_blocks + blocks, had_bytes + size)

    def drain(self) -> list[CacheEvent]:
        """Takes everything gathered, in order of first occurrence."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return [
            CacheEvent(kind, tier, tenant_ref, session_ref, blocks, size, reason, revision)
            for (kind, tier, tenant_ref, session_ref, reason, revision), (blocks, size) in (
                counts.items()
            )
        ]
