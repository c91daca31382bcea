"""How a log is written: mode and limits."""

from dataclasses import dataclass
from enum import Enum

# The share of the quota at which to warn.
QUOTA_WARNING = 0.8


class AuditMode(Enum):
    """What happens while the log cannot be written."""

    REQUIRE = "require"
    BEST_EFFORT = "best_effort"


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """When to commit, sign, roll and stop. Sizes in bytes, times in seconds.

    ``group_seconds``: how long a record that nobody commits stays in memory at most.
    """

    group_seconds: float = 0.01
    checkpoint_records: int = 10_000
    checkpoint_seconds: float = 5.0
    heartbeat_seconds: float = 60.0
    segment_bytes: int = 64 * 1024 * 1024
    segment_seconds: float = 3600.0
    retry_seconds: float = 1.0
    quota_bytes: int = 16 * 1024 * 1024 * 1024
