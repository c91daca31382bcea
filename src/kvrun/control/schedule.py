"""When to collect next: regularly, later after failures, never all at the same moment. Pure."""

from __future__ import annotations

JITTER = 0.2
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 900.0


def next_delay(every_s: float, failures: int, chance: float) -> float:
    """Seconds until the next collection.

    ``failures`` counts the collections that failed since one succeeded: the wait doubles with each,
    up to ``LONGEST_RETRY_S`` or ``every_s``, whichever is longer. ``chance`` (0 to 1) moves the
    moment by up to ``JITTER``, so that many collectors do not ask together.
    """
    delay = every_s
    if failures:
        delay = min(FIRST_RETRY_S * 2 ** min(failures - 1, 20), max(every_s, LONGEST_RETRY_S))
    return delay * (1 + JITTER * (2 * chance - 1))
