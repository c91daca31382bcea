"""The scheduler's half of the cache: who may use it, and which blocks exist.

One ``Match`` a request goes to the daemon when the request arrives; until the answer is there the
request waits, and past a deadline it goes on without any cache. An admission says for each block
whether, and in which tier, the daemon holds it. Nothing here blocks the engine, but for
the milliseconds that ``poll`` is told to wait.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvrun.engines.claims import AnnouncedClaims
from kvrun.instance.claim_messages import Announced
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import (
    Finished,
    Match,
    Matched,
    Revoked,
    Scrub,
    Scrubbed,
    Started,
    Verdict,
)

KEY_DESTROYED = "the session's key was destroyed"
"""The reason of an admission that ended because its session was erased or expired."""

_SUSPECT_AFTER = 3
_MAX_FAILED_LOADS = 3


class State(enum.Enum):
    """Where a request's admission stands."""

    PENDING = "pending"
    ADMITTED = "admitted"
    DENIED = "denied"


@dataclass(slots=True)
class Admission:
    """One request's right to the cache and what it may find there.

    ``tiers[group][index]`` is 0 for a block that does not exist, else its tier's number.
    """

    number: int
    state: State
    deadline: float = 0.0
    handle: int = 0
    reason: str = ""
    tiers: tuple[bytes, ...] = ()
    stored: set[tuple[int, int]] = field(default_factory=set)
    engine_tokens: int = 0
    started: bool = False
    failed_loads: int = 0

    def tier(self, group: int, index: int) -> int:
        """The tier that holds a block, or 0."""
        if self.state is not State.ADMITTED or group >= len(self.tiers):
            return 0
        tiers = self.tiers[group]
        return tiers[index] if 0 <= index < len(tiers) else 0

    @property
    def may_store(self) -> bool:
        """Whether blocks of this request may be sealed."""
        return self.state is State.ADMITTED and self.handle != 0


class Admissions:
    """Every request's admission, and the scheduler's connection to the daemon."""

    def __init__(
        self,
        connection: Connection,
        reconnector: Reconnector,
        clock: Callable[[], float],
        announced: AnnouncedClaims | None = None,
    ) -> None:
        """``announced`` takes in the claims that come ahead of their requests."""
        self._announced = announced
        self._connection: Connection | None = None
        self._reconnector = reconnector
        self._clock = clock
        self.stateless = False
        self.deadline_s = 0.0
        self._numbers = itertools.count(1)
        self._requests: dict[str, Admission] = {}
        self._waiting: dict[int, str] = {}
        self._silent = 0
        self._scrubs: list[Scrub] = []
        self.connections = 0
        self._adopt(connection)

    @property
    def connected(self) -> bool:
        """Whether the daemon can be asked."""
        return self._connection is not None and not self._connection.closed

    @property
    def pending(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._waiting)

    def get(self, request_id: str) -> Admission | None:
        """The admission of a request that began and did not finish."""
        return self._requests.get(request_id)

    def begin(
        self,
        request_id: str,
        claim: str,
        salt: str,
        hashes: Sequence[bytes],
        prompt_tokens: int,
        traceparent: str = "",
    ) -> Admission:
        """Ask for a new request; without a daemon it is denied at once."""
        admission = Admission(number=next(self._numbers), state=State.PENDING)
        self._requests[request_id] = admission
        self._ask(request_id, admission, claim, salt, hashes, prompt_tokens, traceparent)
        return admission

    def deny(self, request_id: str, reason: str) -> Admission:
        """Record a request that may not use the cache, without asking."""
        admission = Admission(number=next(self._numbers), state=State.DENIED, reason=reason)
        self._requests[request_id] = admission
        return admission

    def ask_again(self, request_id: str, hashes: Sequence[bytes]) -> None:
        """Refresh an admitted request after preemption."""
        admission = self._requests.get(request_id)
        if admission is None or not admission.may_store:
            return
        admission.number = next(self._numbers)
        admission.state = State.PENDING
        self._ask(request_id, admission, "", "", hashes, 0)

    def load_failed(self, request_id: str, hashes: Sequence[bytes]) -> None:
        """Refresh an admitted request after a failed load.

        The daemon may list blocks that it cannot open at the moment: after a few attempts the
        request goes on without the cache instead of trying for ever.
        """
        admission = self._requests.get(request_id)
        if admission is None or not admission.may_store:
            return
        admission.failed_loads += 1
        if admission.failed_loads < _MAX_FAILED_LOADS:
            self.ask_again(request_id, hashes)
            return
        admission.state = State.DENIED
        admission.reason = f"its blocks could not be opened in {_MAX_FAILED_LOADS} attempts"

    def start(self, request_id: str, engine_tokens: int, loaded_tokens: int) -> None:
        """Tell the daemon what a request reused when it was first scheduled."""
        admission = self._requests.get(request_id)
        if admission is None or admission.started or not admission.may_store:
            return
        admission.started = True
        self._send(Started(admission.handle, engine_tokens, loaded_tokens))

    def finish(self, request_id: str) -> None:
        """The request ended: give its handle back."""
        admission = self._requests.pop(request_id, None)
        if admission is None:
            return
        self._waiting.pop(admission.number, None)
        if admission.handle:
            self._send(Finished(admission.handle))

    def poll(self, wait_s: float = 0.0) -> list[str]:
        """Take answers in; the requests that were denied or got no answer in time.

        ``wait_s`` bounds a wait for the first answer, for a step in which the engine has nothing
        else to do.
        """
        denied: list[str] = []
        connection = self._connection
        if connection is None:
            self._adopt(self._reconnector.poll())
        else:
            for message in connection.poll(wait_s if self._waiting else 0.0):
                if isinstance(message, Matched):
                    self._answered(message, denied)
                elif isinstance(message, Revoked):
                    self._revoked(message, denied)
                elif isinstance(message, Scrub):
                    self._scrubs.append(message)
                elif isinstance(message, Announced) and self._announced is not None:
                    self._announced.add(message, self._clock())
            if connection.closed:
                self._lost(denied)
        self._expire(denied)
        return denied

    def has_mail(self, wait_s: float = 0.0) -> bool:
        """Whether a poll would find something; may be asked from any thread.

        ``wait_s`` bounds a wait for it; without a connection there is none.
        """
        connection = self._connection
        return self._reconnector.found if connection is None else connection.has_mail(wait_s)

    def take_scrubs(self) -> list[Scrub]:
        """What the daemon asked to be scrubbed since the last call."""
        taken, self._scrubs = self._scrubs, []
        return taken

    def report_scrub(self, report: Scrubbed) -> None:
        """Tell the daemon how far a scrub is."""
        self._send(report)

    def close(self) -> None:
        """Close the connection."""
        self._reconnector.close()
        if self._connection is not None:
            self._connection.close()

    def _ask(
        self,
        request_id: str,
        admission: Admission,
        claim: str,
        salt: str,
        hashes: Sequence[bytes],
        prompt_tokens: int,
        traceparent: str = "",
    ) -> None:
        asked = self._send(
            Match(
                request=admission.number,
                claim=claim,
                salt=salt,
                hash_bytes=len(hashes[0]) if hashes else 0,
                hashes=b"".join(hashes),
                prompt_tokens=prompt_tokens,
                handle=admission.handle,
                traceparent=traceparent,
            )
        )
        # A daemon that stopped answering is still asked, so that its next answer heals it, but
        # no request waits for it.
        if not asked or self._silent >= _SUSPECT_AFTER:
            admission.state = State.DENIED
            admission.reason = "the instance daemon does not answer"
        if asked:
            self._waiting[admission.number] = request_id
            admission.deadline = self._clock() + self.deadline_s

    def _answered(self, message: Matched, denied: list[str]) -> None:
        self._silent = 0
        request_id = self._waiting.pop(message.request, None)
        admission = self._requests.get(request_id) if request_id is not None else None
        if (
            request_id is None
            or admission is None
            or admission.number != message.request
            or admission.state is not State.PENDING
        ):
            if message.handle and (admission is None or admission.handle != message.handle):
                self._send(Finished(message.handle))
            return
        admission.handle = message.handle
        admission.reason = message.reason
        if message.verdict is Verdict.ADMITTED:
            admission.state = State.ADMITTED
            admission.tiers = message.tiers
        else:
            admission.state = State.DENIED
            denied.append(request_id)

    def _revoked(self, message: Revoked, denied: list[str]) -> None:
        gone = set(message.handles)
        for request_id, admission in self._requests.items():
            if admission.handle in gone:
                admission.state = State.DENIED
                admission.handle = 0
                admission.reason = KEY_DESTROYED
                denied.append(request_id)

    def _lost(self, denied: list[str]) -> None:
        # Looked for at once: an engine without requests takes no further step by itself.
        self._connection = None
        self._adopt(self._reconnector.poll())
        self._waiting.clear()
        for request_id, admission in self._requests.items():
            admission.handle = 0
            if admission.state is not State.DENIED:
                admission.state = State.DENIED
                admission.reason = "the instance daemon went away"
                denied.append(request_id)

    def _adopt(self, connection: Connection | None) -> None:
        if connection is not None:
            self._connection = connection
            self.connections += 1
            self._scrubs.clear()
            self._silent = 0
            self.stateless = connection.welcome.stateless
            self.deadline_s = connection.welcome.match_deadline_ms / 1000

    def _expire(self, denied: list[str]) -> None:
        if not self._waiting:
            return
        now = self._clock()
        for number, request_id in list(self._waiting.items()):
            admission = self._requests.get(request_id)
            if admission is None or admission.number != number:
                del self._waiting[number]
            elif admission.state is State.PENDING and now >= admission.deadline:
                self._silent += 1
                admission.state = State.DENIED
                admission.reason = "the instance daemon did not answer in time"
                denied.append(request_id)

    def _send(self, message: Match | Started | Finished | Scrubbed) -> bool:
        return self._connection is not None and self._connection.send(message)
