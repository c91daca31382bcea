"""Placements that policy refused, gathered so that no flood of them fills the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvrun.policy.compile import Decision, Placement
from kvrun.policy.document import TIER_NAMES
from kvrun.policy.matching import Why

PER_MINUTE = 120
"""Records a minute; what is above is counted, and the count is recorded."""
_MAX_KINDS = 10_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """So many placements of one session's blocks in one tier that a revision refused, and why.

    With ``warned`` they were made all the same: the policy's mode is ``warn``.
    """

    tenant_ref: str
    session_ref: str
    tier: str
    code: str
    revision: str
    warned: bool
    count: int


class Refusals:
    """Counts until they are taken. ``now`` in seconds. Thread-safe; never calls out."""

    def __init__(self, now: Callable[[], float], per_minute: int = PER_MINUTE) -> None:
        self._now = now
        self._per_minute = per_minute
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, int, Decision, str], int] = {}
        self._minute = float("-inf")
        self._left = 0
        self._unrecorded = 0
        self.total = 0

    def judge(self, placement: Placement, tenant_ref: str, session_ref: str, tier: int) -> bool:
        """Whether these decisions allow a tier; what they do not, or would not, is counted."""
        decision = placement.row[tier]
        if decision.why is not Why.ALLOWED:
            self.add(tenant_ref, session_ref, tier, decision, placement.revision)
        return decision.allowed

    def add(
        self, tenant_ref: str, session_ref: str, tier: int, decision: Decision, revision: str
    ) -> None:
        """One more placement that ``decision`` refuses, or would."""
        key = (tenant_ref, session_ref, tier, decision, revision)
        with self._lock:
            self.total += 1
            if key not in self._counts and len(self._counts) >= _MAX_KINDS:
                self._unrecorded += 1
                return
            self._counts[key] = self._counts.get(key, 0) + 1

    def take(self) -> tuple[list[Refusal], int]:
        """What is to be recorded now, and how many placements no record of the last minute names.

        The second number is 0 until a minute is over.
        """
        with self._lock:
            counts, self._counts = self._counts, {}
            unrecorded = 0
            if self._now() - self._minute >= 60:
                self._minute, self._left = self._now(), self._per_minute
                unrecorded, self._unrecorded = self._unrecorded, 0
            taken = list(counts.items())[: self._left]
            self._left -= len(taken)
            self._unrecorded += sum(list(counts.values())[len(taken) :])
        return [
            Refusal(
                tenant_ref,
                session_ref,
                TIER_NAMES[tier],
                decision.code(),
                revision,
                decision.allowed,
                count,
            )
            for (tenant_ref, session_ref, tier, decision, revision), count in taken
        ], unrecorded
