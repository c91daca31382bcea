"""Admissions of requests that carry no claim themselves: each waits for the one of its salt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrun.engines.admission import Admission, Admissions, State
from kvrun.engines.claims import AnnouncedClaims, TakenClaim

NO_SALT = "the request has no salt"
NO_CLAIM = "no claim was announced for the request's salt"


@dataclass(slots=True)
class _Unclaimed:
    take: Callable[[float], TakenClaim | None]
    hashes: Sequence[bytes]
    prompt_tokens: int
    deadline: float


class AnnouncedAdmissions:
    """One admission a request; until it is decided the request waits, at most two deadlines long.

    The first deadline is the claim's, the second one the daemon's.
    """

    def __init__(
        self, admissions: Admissions, announced: AnnouncedClaims, clock: Callable[[], float]
    ) -> None:
        self.admissions = admissions
        self._announced = announced
        self._clock = clock
        self._unclaimed: dict[str, _Unclaimed] = {}
        self._salts: dict[str, str] = {}

    def begin(
        self, request_id: str, salt: str | int | None, hashes: Sequence[bytes], prompt_tokens: int
    ) -> None:
        """Ask for a request with this salt (or the engine's number for it); once a request."""
        if self.known(request_id):
            return
        if salt is None or salt == "":
            self.admissions.deny(request_id, NO_SALT)
            return

        def take(now: float) -> TakenClaim | None:
            if isinstance(salt, int):
                return self._announced.take_by_id(salt, now)
            return self._announced.take(salt, now)

        deadline = self._clock() + self.admissions.deadline_s
        self._unclaimed[request_id] = _Unclaimed(take, hashes, prompt_tokens, deadline)
        self._advance(request_id)

    def known(self, request_id: str) -> bool:
        """Whether the request began and did not finish."""
        return request_id in self._unclaimed or self.admissions.get(request_id) is not None

    def get(self, request_id: str) -> Admission | None:
        """The request's admission once its claim is there, or it was denied without one."""
        return self.admissions.get(request_id)

    def state(self, request_id: str) -> State:
        """Where the request stands; one that never began is denied."""
        if request_id in self._unclaimed:
            return State.PENDING
        admission = self.admissions.get(request_id)
        return State.DENIED if admission is None else admission.state

    def salt(self, request_id: str) -> str:
        """The salt of the request's claim; empty without one."""
        return self._salts.get(request_id, "")

    def poll(self, wait_s: float = 0.0) -> list[str]:
        """Take in what came; the requests that were denied since the last call."""
        denied = self.admissions.poll(wait_s)
        for request_id in list(self._unclaimed):
            self._advance(request_id)
            if self.state(request_id) is State.DENIED:
                denied.append(request_id)
        return denied

    def finish(self, request_id: str) -> None:
        """The request ended."""
        self._unclaimed.pop(request_id, None)
        self._salts.pop(request_id, None)
        self.admissions.finish(request_id)

    def _advance(self, request_id: str) -> None:
        waiting = self._unclaimed[request_id]
        now = self._clock()
        claim = waiting.take(now)
        if claim is not None:
            del self._unclaimed[request_id]
            self._salts[request_id] = claim.salt
            self.admissions.begin(
                request_id,
                claim.claim,
                claim.salt,
                waiting.hashes,
                waiting.prompt_tokens,
                claim.traceparent,
            )
        elif now >= waiting.deadline or not self.admissions.connected:
            del self._unclaimed[request_id]
            self.admissions.deny(request_id, NO_CLAIM)
