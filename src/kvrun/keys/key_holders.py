"""Who may still have which keys: what an erasure has to wait for, and what it hears later."""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kvrun.keys.daemon_state import DaemonReport, DaemonState, Pages
from kvrun.keys.lease_keeper import boottime

_LOOK_EVERY_S = 0.05
_KEPT_S = 600.0
_TELLERS = 64
_APART = 64
_MOST_OWED = 100_000
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Told:
    """One ``end`` that a daemon was told. ``had`` one of the keys; ``due``: when no lease from
    before it holds any more, in seconds of CLOCK_BOOTTIME; None while it is being told."""

    number: int
    key_ids: frozenset[bytes]
    owners: tuple[bytes, ...]
    erasures: set[str]
    had: bool
    due: float | None = None
    answered: bool = False
    pages: Pages | None = None
    over_at: float = 0.0

    @property
    def let_go(self) -> bool:
        """Whether its process has none of the keys."""
        return self.answered or not self.had

    @property
    def is_over(self) -> bool:
        """Whether nothing is owed any more."""
        return self.answered and self.pages is not None and not self.pages.held


@dataclass(eq=False, slots=True)
class Holder:
    """A daemon that was lent keys. Times are seconds of CLOCK_BOOTTIME.

    ``name`` has the process in it. ``tell(number, key_ids, owners)`` has it let go of keys; False
    where it cannot be told any more. ``is_gone`` says that its process ended, and its memory with
    it, where that is ``seen``; ``left`` that it said goodbye. ``successor`` is the same process,
    connected anew.
    """

    name: str
    pid: int
    tell: Callable[[int, list[bytes], list[bytes]], bool]
    is_gone: Callable[[], bool]
    seen: bool = True
    lease_until: float = 0.0
    keys: set[bytes] = field(default_factory=set)
    told: list[Told] = field(default_factory=list)
    left: bool = False
    successor: "Holder | None" = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will be heard of it."""
        return self.left or self.is_gone()


@dataclass(eq=False, slots=True)
class _Waiting:
    erasure: str
    daemons: list[str]
    pages_until: float
    answer: Callable[[list[DaemonState]], object]


class KeyHolders:
    """All of them. Thread-safe. One thread watches for everybody who waits.

    ``strangers_until``: before that, daemons that were lent keys by an earlier process of this
    service, and have not come back, may still use them.
    """

    def __init__(
        self, *, strangers_until: float = 0.0, clock: Callable[[], float] = boottime
    ) -> None:
        self._strangers_until = strangers_until
        self._clock = clock
        self._changed = threading.Condition()
        self._holders: set[Holder] = set()
        self._waiting: list[_Waiting] = []
        self._number = 0
        self._closed = False
        # A daemon that does not read keeps its own teller only.
        self._tellers = ThreadPoolExecutor(_TELLERS, thread_name_prefix="kvrun-keys-tell")
        threading.Thread(target=self._watch, name="kvrun-keys-settle", daemon=True).start()

    def __len__(self) -> int:
        """How many there are."""
        with self._changed:
            return len(self._holders)

    def greet(self, holder: Holder, key_ids: Collection[bytes], until: float) -> None:
        """A daemon is here, with keys from before: the only ones that its process has.

        What the same process was told on an earlier connection, and has not confirmed, it is told
        again by ``retell``.
        """
        with self._changed:
            holder.keys.update(key_ids)
            holder.lease_until = until
            for earlier in [h for h in self._holders if h.name == holder.name]:
                if not earlier.ended:
                    earlier.successor = holder
                    holder.told += earlier.told
                    self._holders.discard(earlier)
            self._holders.add(holder)

    def retell(self, holder: Holder) -> None:
        """Tell a daemon again what it owes, on its new connection, before it gets a lease there."""
        with self._changed:
            owed = [told for told in holder.told if not told.is_over]
            for told in owed:
                self._number += 1
                told.number = self._number
        for told in owed:
            self._tell_one(holder, told)

    def lent(self, holder: Holder, key_ids: Iterable[bytes]) -> None:
        """Before a key is sent: it has it."""
        with self._changed:
            holder = _latest(holder)
            self._holders.add(holder)
            holder.keys.update(key_ids)

    def prolong(self, holder: Holder, until: float) -> None:
        """Its lease was renewed."""
        with self._changed:
            holder = _latest(holder)
            holder.lease_until = max(holder.lease_until, until)

    def confirmed(self, holder: Holder, number: int) -> None:
        """It let go of what it was told of under this number."""
        self._note(holder, number, None)

    def cleared(self, holder: Holder, number: int, pages: Pages) -> None:
        """Its engines answered."""
        self._note(holder, number, pages)

    def leave(self, holder: Holder) -> None:
        """It has no key any more, and nothing more is heard of it."""
        with self._changed:
            holder.left = True
            holder.keys.clear()
            self._changed.notify_all()

    def end(
        self,
        key_ids: Iterable[bytes],
        *,
        but: Holder | None = None,
        erasure: str = "",
        owners: Collection[bytes] = (),
    ) -> list[tuple[int, str]]:
        """Tell everybody who has one of the keys, ``but`` one, which ended them itself.

        With an ``erasure`` or page ``owners`` everybody is told: engines may have pages of keys
        that are forgotten.
        Returns whom it has to wait for, by process id and name; who has not confirmed the same keys
        yet is among them. The same erasure may come again: who was told of it is not told again.
        """
        gone = frozenset(key_ids)
        if not gone:
            return []
        asked: list[tuple[Holder, Told]] = []
        with self._changed:
            self._forget()
            but = None if but is None else _latest(but)
            for holder in self._holders:
                ids, holder.keys = holder.keys & gone, holder.keys - gone
                if holder is but:
                    continue
                for told in holder.told:
                    if erasure and not told.is_over and told.key_ids & gone:
                        told.erasures.add(erasure)
                new = not _of(holder, erasure) if erasure else bool(owners)
                if ids or (new and not holder.ended):
                    self._number += 1
                    told = Told(
                        self._number,
                        frozenset(ids or gone),
                        tuple(owners),
                        {erasure} if erasure else set(),
                        had=bool(ids),
                    )
                    holder.told.append(told)
                    asked.append((holder, told))
                    asked += [(holder, told) for told in self._merged(holder)]
            found = sorted((h.pid, h.name) for h in self._holders if erasure and _of(h, erasure))
        self._tell(asked)
        return found

    def settle(
        self,
        erasure: str,
        daemons: list[str],
        pages_within_s: float | None,
        answer: Callable[[list[DaemonState]], object],
    ) -> None:
        """Have ``answer`` called with the state of each, now or later: see wire.Settle."""
        if pages_within_s is None:
            with self._changed:
                states = self._states(erasure, daemons)
            answer(states)
            return
        until = self._clock() + pages_within_s
        with self._changed:
            self._waiting.append(_Waiting(erasure, daemons, until, answer))
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._tellers.shutdown(wait=False, cancel_futures=True)

    def _merged(self, holder: Holder) -> list[Told]:
        """Keep what a silent daemon owes of expired keys in bounds: told as one, or dropped."""
        now = self._clock()
        owed = [t for t in holder.told if not t.erasures and not t.is_over and _is_due(t, now)]
        if len(owed) <= _APART:
            return []
        holder.told = [told for told in holder.told if told not in owed]
        self._number += 1
        one = Told(
            self._number,
            frozenset(key_id for told in owed for key_id in told.key_ids),
            tuple(dict.fromkeys(owner for told in owed for owner in told.owners)),
            set(),
            had=any(told.had for told in owed),
        )
        if len(one.key_ids) > _MOST_OWED:
            _log.warning(
                "%s confirmed nothing of %d keys that were too old, and is not asked any more: "
                "restart it and its engines",
                holder.name,
                len(one.key_ids),
            )
            return []
        holder.told.append(one)
        return [one]

    def _note(self, holder: Holder, number: int, pages: Pages | None) -> None:
        with self._changed:
            for told in _latest(holder).told:
                if told.number == number:
                    if pages is None:
                        told.answered = True
                    else:
                        told.pages = pages
                    told.over_at = self._clock()
            self._changed.notify_all()

    def _tell(self, asked: list[tuple[Holder, Told]]) -> None:
        """Without the lock: one that does not read must not keep the others waiting."""
        with contextlib.suppress(RuntimeError):  # it is being closed
            for holder, told in asked:
                self._tellers.submit(self._tell_one, holder, told)

    def _tell_one(self, holder: Holder, told: Told) -> None:
        holder.tell(told.number, sorted(told.key_ids), list(told.owners))
        with self._changed:
            # A lease that was granted before this was told holds until then; what is granted later
            # reaches a daemon that has let go.
            if told.due is None:
                told.due = holder.lease_until
            self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                settled = [w for w in self._waiting if self._is_settled(w)]
                self._waiting = [w for w in self._waiting if w not in settled]
                answers = [(w.answer, self._states(w.erasure, w.daemons)) for w in settled]
                if not answers:
                    self._changed.wait(_LOOK_EVERY_S if self._waiting else None)
            with contextlib.suppress(RuntimeError):  # it is being closed
                for answer, states in answers:
                    self._tellers.submit(answer, states)

    def _is_settled(self, waiting: _Waiting) -> bool:
        now = self._clock()
        if now < self._strangers_until:
            return False
        for holder in self._holders:
            if holder.name not in waiting.daemons:
                continue
            told = _of(holder, waiting.erasure)
            if holder.ended or all(t.let_go and t.pages is not None for t in told):
                continue
            if any(not t.let_go and (t.due is None or t.due > now) for t in told):
                return False
            # For one that stands still nobody waits longer than for its lease.
            if not _is_silent(holder, now) and now < waiting.pages_until:
                return False
        return True

    def _states(self, erasure: str, daemons: list[str]) -> list[DaemonState]:
        here = {name: [h for h in self._holders if h.name == name] for name in daemons}
        return [_state(name, erasure, here[name]) for name in daemons]

    def _forget(self) -> None:
        """Those that ended, and old answers; where no end is seen, whose lease is long over."""
        now = self._clock()
        for holder in self._holders:
            ended = holder.ended
            holder.told = [told for told in holder.told if not _is_old(told, now, ended=ended)]
        over = [
            holder
            for holder in self._holders
            if not holder.told
            and (holder.ended or (not holder.seen and now - holder.lease_until > _KEPT_S))
        ]
        self._holders.difference_update(over)


def _latest(holder: Holder) -> Holder:
    while holder.successor is not None:
        holder = holder.successor
    return holder


def _is_old(told: Told, now: float, *, ended: bool) -> bool:
    if told.is_over:
        return now - told.over_at > _KEPT_S
    return ended and told.due is not None and now - told.due > _KEPT_S


def _is_due(told: Told, now: float) -> bool:
    return told.due is not None and told.due <= now


def _is_silent(holder: Holder, now: float) -> bool:
    """Whether it let a lease run out without an answer."""
    return any(not told.answered and _is_due(told, now) for told in holder.told)


def _of(holder: Holder, erasure: str) -> list[Told]:
    return [told for told in holder.told if erasure in told.erasures]


def _state(name: str, erasure: str, holders: list[Holder]) -> DaemonState:
    for holder in holders:
        if not (told := _of(holder, erasure)):
            continue
        spoken = [t.pages for t in told if t.pages is not None]
        pages = _sum(spoken) if len(spoken) == len(told) else None
        let_go = all(t.let_go for t in told)
        if holder.ended and not all(t.is_over for t in told):
            return DaemonState(name, DaemonReport.ENDED, pages)
        return DaemonState(name, DaemonReport.LET_GO if let_go else DaemonReport.TOLD, pages)
    if any(not holder.ended for holder in holders):
        return DaemonState(name, DaemonReport.UNTOLD)
    return DaemonState(name, DaemonReport.ENDED if holders else DaemonReport.ABSENT)


def _sum(pages: list[Pages]) -> Pages:
    return Pages(
        sum(p.evicted for p in pages),
        sum(p.scrubbed for p in pages),
        sum(p.held for p in pages),
        sorted({note for p in pages for note in p.notes}),
    )
