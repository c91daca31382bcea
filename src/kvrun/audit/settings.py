"""How a log is written: mode and limits."""

from dataclasses import dataclass
from enum import Enum

import msgspec

# The share of the quota at which to warn.
QUOTA_WARNING = 0.8


class AuditMode(Enum):
    """What happens while the log cannot be written."""

    REQUIRE = "require"
    BEST_EFFORT = "best_effort"


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """When to commit, sign, roll and stop. Sizes in bytes, times in seconds.

    Records that nobody commits are written after ``group_seconds``, or once ``group_records`` wait.
    """

    group_seconds: float = 0.01
    group_records: int = 100
    checkpoint_records: int = 10_000
    checkpoint_seconds: float = 5.0
    heartbeat_seconds: float = 60.0
    segment_bytes: int = 64 * 1024 * 1024
    segment_seconds: float = 3600.0
    retry_seconds: float = 1.0
    quota_bytes: int = 16 * 1024 * 1024 * 1024


class LogHealth(msgspec.Struct, frozen=True):
    """How a log is doing, for people and scripts.

    ``why`` says what failed while it is not ``available``. ``stored_bytes`` is what was not let go
    of yet; at ``quota_bytes`` nothing more is written. ``lost`` counts records since the start.
    """

    available: bool
    why: str
    records: int
    stored_bytes: int
    quota_bytes: int
    lost: int

    @property
    def nearly_full(self) -> bool:
        """Whether to warn that the log should be collected."""
        return self.stored_bytes >= QUOTA_WARNING * self.quota_bytes
