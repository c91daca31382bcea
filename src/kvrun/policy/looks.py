"""When the repository is looked at next: every so often, and soon after somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable

from kvrun.policy.bundle import PolicyFolder

LEAST_BETWEEN_S = 5.0
"""However often it is asked for, so long passes between the beginnings of two looks."""


class NextLook:
    """``clock`` is monotonic, in seconds. Call ``begin`` before each look."""

    def __init__(self, folder: PolicyFolder, interval_s: float, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._clock = clock
        self._begun_at = float("-inf")
        self._asked = folder.look_asked_at()

    def begin(self) -> None:
        """A look begins: what was asked for until now is met by it."""
        self._begun_at = self._clock()
        self._asked = self._folder.look_asked_at()

    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        since = self._clock() - self._begun_at
        if since >= self._interval_s:
            return True
        return since >= LEAST_BETWEEN_S and self._folder.look_asked_at() != self._asked
