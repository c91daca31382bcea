"""How many keys there may be and how long they live."""

from dataclasses import dataclass

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Bounds of one key service. Times in seconds; ``None`` means no limit."""

    max_sessions_per_tenant: int | None = 10_000
    max_sessions: int | None = 100_000
    idle_timeout_s: float | None = 7 * DAY_S
    absolute_timeout_s: float | None = 30 * DAY_S
    max_open_handles: int = 4096
    """Handles that the service keeps ready; further ones live while somebody holds them."""

    def expired(self, created: float, used: float, now: float) -> str:
        """Why a key made and last used then is too old now: ``absolute``, ``idle`` or ""."""
        if self.absolute_timeout_s is not None and now - created >= self.absolute_timeout_s:
            return "absolute"
        if self.idle_timeout_s is not None and now - used >= self.idle_timeout_s:
            return "idle"
        return ""

    def expires_at(self, created: float, used: float) -> float:
        """When such a key is too old, in seconds since 1970; 2^53 for never."""
        ends = [float(2**53)]
        if self.absolute_timeout_s is not None:
            ends.append(created + self.absolute_timeout_s)
        if self.idle_timeout_s is not None:
            ends.append(used + self.idle_timeout_s)
        return min(ends)
