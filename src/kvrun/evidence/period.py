"""A period of whole UTC days, half-open, in the spelling of a record's time. Pure."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from kvrun.evidence.errors import EvidenceError

FIRST_YEAR, LAST_YEAR = 1980, 2107
"""What the times of a zip's entries can say."""


@dataclass(frozen=True, slots=True)
class Period:
    """From the beginning of ``first`` up to but without the beginning of ``end``."""

    first: date
    end: date

    @property
    def since(self) -> str:
        """Where it begins, as it compares with a record's ``ts``."""
        return self.first.isoformat()

    @property
    def until(self) -> str:
        """Where it ends; no record of this day is in it."""
        return self.end.isoformat()

    def has(self, ts: str) -> bool:
        """Whether a record's time, or a day, is in it."""
        return self.since <= ts < self.until

    def __str__(self) -> str:
        return f"{self.since} to {self.until}"


def parse_period(since: str, until: str) -> Period:
    """The period between two days such as ``2026-01-01``. Raises EvidenceError."""
    first, end = _day(since), _day(until)
    if first >= end:
        raise EvidenceError(
            f"the period from {since} to {until} has no day",
            hint="--to is the first day that is not part of it.",
        )
    return Period(first, end)


def month_before(now: float) -> Period:
    """The last calendar month that is over at ``now`` (seconds since 1970)."""
    end = datetime.fromtimestamp(now, UTC).date().replace(day=1)
    return Period((end - timedelta(days=1)).replace(day=1), end)


def _day(text: str) -> date:
    try:
        found = date.fromisoformat(text)
        if len(text) != 10 or not FIRST_YEAR <= found.year <= LAST_YEAR:
            raise ValueError
    except ValueError:
        raise EvidenceError(
            f"{text[:40]!r} is not a day", hint="Write days in UTC, such as 2026-01-31."
        ) from None
    return found
