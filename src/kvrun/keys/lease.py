"""Leases: the right to use keys until a moment that needs nobody's agreement to pass.

Times are seconds of CLOCK_BOOTTIME, which goes on while a machine or a process is suspended and
which nobody sets. A lease counts from before it was asked for, so that the giver, who counts from
later, is never the first to think it over.
"""

MAX_LEASE_S = 30.0
RENEWALS_A_LEASE = 3


class Lease:
    """One unbroken right. Once it ended it stays ended: keys may have been destroyed since."""

    __slots__ = ("until",)

    def __init__(self, asked_at: float, duration_s: float = MAX_LEASE_S) -> None:
        self.until = asked_at + min(duration_s, MAX_LEASE_S)

    @classmethod
    def unlimited(cls) -> "Lease":
        """For a holder that nobody else could take keys from, a benchmark for example."""
        lease = cls(0.0)
        lease.until = float("inf")
        return lease

    def holds(self, now: float) -> bool:
        """Whether keys may be used at ``now``."""
        return now < self.until

    def renew(self, asked_at: float, now: float, duration_s: float = MAX_LEASE_S) -> bool:
        """Prolong a lease that still holds at ``now``; False when it ended before."""
        if not self.holds(now):
            return False
        self.until = max(self.until, asked_at + min(duration_s, MAX_LEASE_S))
        return True

    def end(self) -> None:
        """Give the right up now."""
        self.until = float("-inf")
