"""What records of a policy's decisions say: by which rule, why, and for how many each stands. Pure.

A policy's refusals are gathered before they are put on record, and above a cap only counted. The
text of such a record is ``residency: WHY RULE xN``; ``docs/spec/audit-log.md`` has the field.
"""

import re

import msgspec

from kvrun.audit.record import Count

DECISION_PREFIX = "residency: "
"""How the reason of what a policy decided begins in the log."""
BEYOND_BOUND = "beyond_max_bytes"
"""Why blocks left when a smaller bound came."""
AT_BOUND = "at_max_bytes"
"""Why blocks made room for others of their tenant, which has as much as it may."""
UNRECORDED = "no_record"
"""Why, where only the number of placements is on record."""
_TIMES = r"(?: x(?P<count>[0-9]{1,15}))?"
_ONE = re.compile(rf"(?P<why>[a-z_]+)(?: (?!x[0-9]+$)(?P<rule>\S+))?{_TIMES}")
_MANY = re.compile(r"([0-9]{1,15}) more placements have no record")


class DecisionCount(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """How many placements of one UTC day a rule refused in a tier, in so many ``records``.

    ``outcome`` is ``ok`` for those that were made all the same: the policy's mode is ``warn``.
    """

    day: str
    policy_revision: str
    rule: str
    why: str
    tier: str
    outcome: str
    placements: Count
    records: Count


def decision_of(
    day: str, policy_revision: str, tier: str, outcome: str, reason: str
) -> DecisionCount | None:
    """What one record counts for; None where no policy decided. For sums of what was refused, ask
    of records ``denied`` alone."""
    if not reason.startswith(DECISION_PREFIX):
        return None
    said = reason.removeprefix(DECISION_PREFIX)
    rule, why, count = "", said, 1
    if many := _MANY.fullmatch(said):
        why, count = UNRECORDED, int(many[1])
    elif one := _ONE.fullmatch(said):
        rule, why, count = one["rule"] or "", one["why"], int(one["count"] or 1)
    return DecisionCount(day, policy_revision, rule, why, tier, outcome, count, 1)


class Decisions:
    """Sums of decisions, in rising order."""

    def __init__(self) -> None:
        self._sums: dict[DecisionCount, tuple[int, int]] = {}

    def add(self, item: DecisionCount) -> None:
        """Count one, or a sum of some."""
        key = msgspec.structs.replace(item, placements=0, records=0)
        placements, records = self._sums.get(key, (0, 0))
        self._sums[key] = (placements + item.placements, records + item.records)

    @property
    def counts(self) -> list[DecisionCount]:
        """The sums so far."""
        return [
            msgspec.structs.replace(key, placements=placements, records=records)
            for key, (placements, records) in sorted(self._sums.items())
        ]
