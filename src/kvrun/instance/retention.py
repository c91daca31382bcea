"""What retention destroyed in one day, as one sentence for the log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from kvrun.keys.destruction import DestroyedKey


class RetentionDay:
    """Counts the keys that idle and absolute expiry destroyed, by UTC day. Not thread-safe.

    Each destruction is a record of its own; the summary is what an auditor reads first, and says
    also that a day went by without any.
    """

    def __init__(self, now: float) -> None:
        self._day = _day_of(now)
        self._counts: Counter[str] = Counter()

    def add(self, keys: Iterable[DestroyedKey]) -> None:
        """Count destroyed keys."""
        for key in keys:
            self._counts[key.reason if key.session_ref else "tenants"] += 1

    def summary(self, now: float, living: int, *, stopping: bool = False) -> str:
        """The day's summary once it is over, or the daemon stops; else "".

        ``living`` is the number of sessions with a key.
        """
        day = _day_of(now)
        counts = self._counts
        if day == self._day and not (stopping and counts):
            return ""
        text = (
            f"retention on {self._day}{' until the daemon stopped' if day == self._day else ''}: "
            f"{counts['idle']} idle and {counts['absolute']} old sessions, "
            f"{counts['tenants']} tenants without sessions; {living} sessions have a key"
        )
        self._day, self._counts = day, Counter()
        return text


def _day_of(now: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now))
