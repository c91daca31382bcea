"""Where sealed blocks are: memory, disk and Storage, and the index over them.

Nothing here knows a key or opens a block. A block is an opaque run of sealed bytes under a
16-byte keyed name, and it belongs to exactly one session of one tenant.
"""

from kvrun.cache.disk import DiskTier
from kvrun.cache.errors import CacheBusyError, CacheFolderError, SessionDroppedError
from kvrun.cache.events import CacheEvent, CacheEventKind, Tier
from kvrun.cache.handles import DropReport, Reservation, SealedView
from kvrun.cache.memory import MemoryTier, TenantUsage
from kvrun.cache.placement import OPEN_GATE, Gate, OpenGate
from kvrun.cache.session import CacheSession
from kvrun.cache.store import CacheStats, CacheStore

__all__ = [
    "OPEN_GATE",
    "CacheBusyError",
    "CacheEvent",
    "CacheEventKind",
    "CacheFolderError",
    "CacheSession",
    "CacheStats",
    "CacheStore",
    "DiskTier",
    "DropReport",
    "Gate",
    "MemoryTier",
    "OpenGate",
    "Reservation",
    "SealedView",
    "SessionDroppedError",
    "TenantUsage",
    "Tier",
]
