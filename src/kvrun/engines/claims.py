"""Claims that came ahead of their requests, found by the requests' salts.

Some engines give a connector nothing of a request but its tokens and its salt. The gateway then
announces each claim through the daemon before it passes the request on; the next requests with
that salt take it, as many as it is for. All claims of a salt are of one session, so two requests
that swap theirs swap no more than a request id. The newest goes first: one whose request never came
is left over, and would shift all that follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvrun.instance.claim_messages import Announced

_MAX_CLAIMS = 65_536
_LIFETIME_S = 300.0
_AMBIGUOUS = ""


@dataclass(frozen=True, slots=True)
class TakenClaim:
    """One request's claim, the salt that it is for, and its place in a trace."""

    salt: str
    claim: str
    traceparent: str


@dataclass(slots=True)
class _Waiting:
    message: Announced
    uses: int
    until: float


class AnnouncedClaims:
    """The claims whose requests have not come yet; the oldest go first where there are too many.

    ``salt_id`` is the engine's own number for a salt, for engines that tell only that.
    """

    def __init__(
        self,
        salt_id: Callable[[str], int] | None = None,
        *,
        max_claims: int = _MAX_CLAIMS,
        lifetime_s: float = _LIFETIME_S,
    ) -> None:
        self._salt_id = salt_id
        self._max_claims = max_claims
        self._lifetime_s = lifetime_s
        self._order: deque[_Waiting] = deque()
        self._by_salt: dict[str, deque[_Waiting]] = {}
        self._salts: dict[int, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_salt.values()))

    def add(self, message: Announced, now: float) -> None:
        """A claim was announced."""
        if not message.salt or message.uses < 1:
            return
        waiting = _Waiting(message, message.uses, now + self._lifetime_s)
        self._order.append(waiting)
        self._by_salt.setdefault(message.salt, deque()).append(waiting)
        if self._salt_id is not None:
            number = self._salt_id(message.salt)
            known = self._salts.setdefault(number, message.salt)
            if known != message.salt:
                # Two sessions that the engine cannot tell apart: neither may use the cache.
                self._salts[number] = _AMBIGUOUS
        self._forget(now)

    def take(self, salt: str, now: float) -> TakenClaim | None:
        """The next claim of a salt, or None."""
        self._forget(now)
        waiting = self._by_salt.get(salt)
        if not waiting:
            return None
        newest = waiting[-1]
        newest.uses -= 1
        if not newest.uses:
            waiting.pop()
            self._drop_empty(salt)
        return TakenClaim(salt, newest.message.claim, newest.message.traceparent)

    def take_by_id(self, number: int, now: float) -> TakenClaim | None:
        """The next claim of the salt with this number, or None."""
        return self.take(self._salts.get(number, _AMBIGUOUS), now)

    def _forget(self, now: float) -> None:
        while self._order and (
            not self._order[0].uses
            or self._order[0].until <= now
            or len(self._order) > self._max_claims
        ):
            oldest = self._order.popleft()
            if oldest.uses:
                # The oldest of its salt too: both queues are in the order of arrival.
                salt = oldest.message.salt
                self._by_salt[salt].popleft()
                self._drop_empty(salt)

    def _drop_empty(self, salt: str) -> None:
        if not self._by_salt[salt]:
            del self._by_salt[salt]
            if self._salt_id is not None and self._salts.get(self._salt_id(salt)) == salt:
                del self._salts[self._salt_id(salt)]
