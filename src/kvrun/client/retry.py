"""When a request is sent again, and after how long: pure."""

from dataclasses import dataclass

_PASSING = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request that may be repeated is sent, and the waits in between (seconds).

    ``tries`` counts the first one; 1 means never again. Waits double from ``first_wait_s`` up to
    ``longest_wait_s``, each shortened at random so that clients do not come back all at once.
    """

    tries: int = 4
    first_wait_s: float = 0.25
    longest_wait_s: float = 8.0

    def wait_s(
        self, done: int, *, status: int | None, retry_after: str | None, chance: float
    ) -> float | None:
        """How long to wait before the next try after ``done`` ones; None: there is no next try.

        ``status`` is the last answer's, None where none came; ``retry_after`` its header, in
        seconds. A server that asks for longer than ``longest_wait_s`` is not asked again.
        ``chance`` is a random number from 0 to 1.
        """
        if done >= self.tries or (status is not None and status not in _PASSING):
            return None
        wait = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (done - 1)) * (1 + chance) / 2
        if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
            asked = int(retry_after[:9])
            return None if asked > self.longest_wait_s else max(wait, float(asked))
        return wait
