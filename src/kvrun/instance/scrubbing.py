"""Asking connected engines to evict and zero the pages of erased sessions."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from kvrun.audit.record import format_time
from kvrun.erasure.targets import ScrubOutcome
from kvrun.instance.erasing import process_runs
from kvrun.instance.known_engines import KnownEngines, OwedPages
from kvrun.instance.protocol import Scrub, Scrubbed

Send = Callable[[Scrub], None]
_OWNERS_A_CALL = 50_000


@dataclass(slots=True)
class _Engine:
    """A connected scheduler. ``send`` may be called from any thread."""

    pid: int
    software: str
    scrubs: bool
    send: Send


@dataclass(eq=False, slots=True)
class _Report:
    """Whom to tell when every engine answered all of these questions, and what was told last."""

    tell: Callable[[ScrubOutcome], None]
    notes: tuple[str, ...]
    calls: list[_Call] = field(default_factory=list)
    told: ScrubOutcome | None = None


@dataclass(slots=True)
class _Call:
    """One question, and who still owes its answer: peers that were asked, or processes that were
    away.

    ``counted``: pages evicted and zeroed that are in no answer any more. ``expired``: it is about
    sessions whose keys expired; no certificate waits for it.
    """

    message: Scrub
    asked: dict[Hashable, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    answers: dict[int, Scrubbed] = field(default_factory=dict)
    counted: list[tuple[int, int]] = field(default_factory=list)
    waiting: bool = True
    expired: bool = False
    report: _Report | None = None

    @property
    def owed(self) -> bool:
        return bool(self.asked or self.away)


class SchedulerScrubber:
    """An ``EngineScrubber`` over the schedulers of one daemon. Thread-safe.

    ``on_late(call, outcome)`` is called, from a thread of its own, when an engine confirms after
    the deadline. Nobody is waited for before ``listening`` is set. ``known`` remembers engines
    over a restart: one that runs but is not connected owes its answer like one that was asked.
    """

    def __init__(
        self,
        *,
        deadline_s: float,
        known: KnownEngines | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.on_late: Callable[[int, ScrubOutcome], None] = lambda call, outcome: None
        self.listening = False
        self._deadline_s = deadline_s
        self._known = known
        self._wall = wall
        self._changed = threading.Condition()
        self._engines: dict[Hashable, _Engine] = {}
        self._calls: dict[int, _Call] = {}
        self._reports: list[_Report] = []
        self._writing = threading.Lock()
        for owed in known.owed() if known is not None else ():
            message = _new_call(owed.owners, everything=owed.everything)
            call = _Call(message, away=set(owed.pids), waiting=False, expired=True)
            self._calls[call.message.call] = call

    def connected(
        self, peer: Hashable, *, pid: int, software: str, scrubs: bool, send: Send
    ) -> None:
        """A scheduler said hello: it is asked what its process still owes."""
        if self._known is not None:
            self._known.add(pid, software, scrubs=scrubs)
        with self._changed:
            self._engines[peer] = _Engine(pid, software, scrubs, send)
            if not scrubs:
                return
            for call in self._calls.values():
                last = call.answers.get(pid)
                if last is not None and last.held:
                    # It counts anew on a new connection, and may have forgotten what it held.
                    call.counted.append((last.evicted, last.scrubbed))
                    call.answers[pid] = Scrubbed(last.call, 0, 0, last.held)
                    call.away.add(pid)
                if pid in call.away:
                    call.away.discard(pid)
                    call.asked[peer] = pid
                    send(call.message)

    def disconnected(self, peer: Hashable) -> None:
        """A scheduler is gone; if its process lives on, it owes its answers still."""
        with self._changed:
            self._engines.pop(peer, None)
            for call in self._calls.values():
                pid = call.asked.pop(peer, None)
                if pid is not None:
                    call.away.add(pid)
            self._changed.notify_all()

    def answered(self, peer: Hashable, message: Scrubbed) -> None:
        """A scheduler confirmed."""
        with self._changed:
            call = self._calls.get(message.call)
            if call is None:
                return
            pid = call.asked.pop(peer, None)
            engine = self._engines.get(peer)
            if pid is None and engine is not None:
                pid = engine.pid  # an addendum: what was held is zeroed now
            if pid is None:
                return
            call.answers[pid] = message
            self._changed.notify_all()
            if call.waiting:
                return
            outcome = self._outcome(call)
            if not call.owed and not outcome.held:
                del self._calls[message.call]
            expired, due = call.expired, self._due([call])

        def tell() -> None:
            if expired:
                self._keep_owed()
                _tell(due)
            else:
                self.on_late(message.call, outcome)

        threading.Thread(target=tell, name="kvrun-scrubbed", daemon=True).start()

    def expired(
        self,
        owners: Sequence[bytes],
        *,
        everything: bool = False,
        tell: Callable[[ScrubOutcome], None] = lambda outcome: None,
    ) -> None:
        """The keys of these page owners are gone: engines are asked, and nobody waits for them.

        ``everything``: nobody knows whose a page is, so all pages are meant, whoever is named.
        ``tell`` is called when all of them answered, and again when pages that were held are zero.
        """
        with self._changed:
            report = _Report(tell, tuple(self._blind()))
            for first in range(0, max(len(owners), int(everything)), _OWNERS_A_CALL):
                message = _new_call(owners[first : first + _OWNERS_A_CALL], everything=everything)
                call = _Call(message, waiting=False, expired=True, report=report)
                report.calls.append(call)
                self._ask(call)
                if call.owed:
                    self._calls[message.call] = call
            due = self._due(report.calls) if report.calls else [(report, ScrubOutcome())]
            if not due:
                self._reports.append(report)
        self._keep_owed()
        _tell(due)

    def look(self) -> None:
        """See which engines ended that owed an answer; call it every now and then."""
        with self._changed:
            if not self._reports:
                return
            self._expired()
            calls = [call for report in self._reports for call in report.calls]
            for call in calls:
                call.away = {pid for pid in call.away if process_runs(pid)}
            due = self._due(calls)
            self._reports = [r for r in self._reports if r.told is None or r.told.held]
        if due:
            self._keep_owed()
        _tell(due)

    def owed(self) -> list[bytes]:
        """See :class:`kvrun.erasure.targets.EngineScrubber`."""
        with self._changed:
            return sorted({owner for call in self._expired() for owner in call.message.owners})

    def expect(
        self,
        call: int,
        owners: Sequence[bytes],
        pids: Sequence[int],
        *,
        everything: bool,
        before: ScrubOutcome,
    ) -> None:
        """See :class:`kvrun.erasure.targets.EngineScrubber`."""
        message = Scrub(call, tuple(owners), everything=everything)
        counted = [(before.evicted, before.scrubbed)]
        with self._changed:
            self._calls[call] = _Call(message, away=set(pids), counted=counted, waiting=False)

    def stop(self) -> None:
        """The daemon stops: wait for nobody any more."""
        with self._changed:
            self.listening = False
            self._changed.notify_all()

    def engines(self) -> list[int]:
        """See :class:`kvrun.erasure.targets.EngineScrubber`."""
        with self._changed:
            return sorted(
                {engine.pid for engine in self._engines.values() if engine.scrubs}
                | self._away(scrubs=True).keys()
            )

    def scrub(
        self, call: int, owners: Sequence[bytes], *, everything: bool, engines: Sequence[int]
    ) -> ScrubOutcome:
        """See :class:`kvrun.erasure.targets.EngineScrubber`."""
        message = Scrub(call, tuple(owners), everything=everything)
        asked = _Call(message)
        deadline = time.monotonic() + self._deadline_s
        with self._changed:
            notes = self._blind()
            self._ask(asked)
            here = {engine.pid for engine in self._engines.values()}
            asked.away |= {pid for pid in engines if pid not in here and process_runs(pid)}
            self._calls[call] = asked
            while asked.owed and self.listening:
                rest = deadline - time.monotonic()
                if rest <= 0 or not self._changed.wait(rest):
                    break
                asked.away = {pid for pid in asked.away if process_runs(pid)}
            asked.waiting = False
            outcome = self._outcome(asked)
            if not asked.owed and not outcome.held:
                del self._calls[call]
        return ScrubOutcome(
            outcome.evicted, outcome.scrubbed, outcome.held, outcome.unacknowledged, tuple(notes)
        )

    def _blind(self) -> list[str]:
        """What engines that zero no pages leave."""
        blind = self._away(scrubs=False)
        blind |= {e.pid: e.software for e in self._engines.values() if not e.scrubs}
        return sorted(
            f"Pages in engine memory ({software}, process {pid}): this engine"
            " zeroes none. Nothing can find them, and they are overwritten when reused."
            for pid, software in blind.items()
        )

    def _due(self, calls: Sequence[_Call]) -> list[tuple[_Report, ScrubOutcome]]:
        """Reports on these questions that can be made now, and were not yet."""
        due = []
        for report in {call.report for call in calls if call.report is not None}:
            if any(call.owed for call in report.calls):
                continue
            found = [self._outcome(call) for call in report.calls]
            outcome = ScrubOutcome(
                sum(one.evicted for one in found),
                sum(one.scrubbed for one in found),
                sum(one.held for one in found),
                notes=report.notes,
            )
            if outcome != report.told:
                report.told = outcome
                due.append((report, outcome))
        return due

    def _ask(self, call: _Call) -> None:
        for peer, engine in self._engines.items():
            if engine.scrubs:
                call.asked[peer] = engine.pid
                engine.send(call.message)
        call.away = set(self._away(scrubs=True))

    def _expired(self) -> list[_Call]:
        """The questions about expired sessions that processes that still run have to answer."""
        for call in [call for call in self._calls.values() if call.expired]:
            call.away = {pid for pid in call.away if process_runs(pid)}
            if not call.owed and not self._outcome(call).held:
                del self._calls[call.message.call]
        return [call for call in self._calls.values() if call.expired]

    def _keep_owed(self) -> None:
        if self._known is None:
            return
        with self._writing:
            with self._changed:
                owed = [
                    OwedPages(
                        [*call.message.owners],
                        sorted({*call.asked.values(), *call.away, *call.answers}),
                        call.message.everything,
                    )
                    for call in self._expired()
                ]
            self._known.keep_owed(owed)

    def _away(self, *, scrubs: bool) -> dict[int, str]:
        """Process and software of known engines that run and are not connected."""
        here = {engine.pid for engine in self._engines.values()}
        return {
            engine.pid: engine.software
            for engine in (self._known.running() if self._known is not None else ())
            if engine.scrubs == scrubs and engine.pid not in here
        }

    def _outcome(self, call: _Call) -> ScrubOutcome:
        answers = call.answers.values()
        since = format_time(self._wall())
        owed = sorted({*call.asked.values(), *call.away})
        return ScrubOutcome(
            sum(answer.evicted for answer in answers) + sum(evicted for evicted, _ in call.counted),
            sum(answer.scrubbed for answer in answers) + sum(zeroed for _, zeroed in call.counted),
            sum(answer.held for pid, answer in call.answers.items() if process_runs(pid)),
            tuple(f"engine process {pid}: not confirmed at {since}" for pid in owed),
        )


def _new_call(owners: Sequence[bytes], *, everything: bool = False) -> Scrub:
    return Scrub(secrets.randbits(60), tuple(owners), everything=everything)


def _tell(due: Sequence[tuple[_Report, ScrubOutcome]]) -> None:
    for report, outcome in due:
        report.tell(outcome)
