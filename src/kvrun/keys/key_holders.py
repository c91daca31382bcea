"""Who may still have which keys: what an erasure has to wait for."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvrun.keys.lease_keeper import boottime


@dataclass(eq=False, slots=True)
class Holder:
    """A daemon that was lent keys. Times are seconds of CLOCK_BOOTTIME.

    ``tell(number, key_ids)`` has it let go of keys; False where it cannot be told any more.
    ``is_gone`` says that its process ended, and its memory with it.
    """

    name: str
    tell: Callable[[int, list[bytes]], bool]
    is_gone: Callable[[], bool]
    lease_until: float = 0.0
    keys: set[bytes] = field(default_factory=set)
    told: int = 0
    """The last number under which it was told."""
    heard: int = 0
    """The last number that it confirmed."""


class KeyHolders:
    """All of them. Thread-safe.

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
        self._number = 0

    def lent(self, holder: Holder, key_ids: Iterable[bytes]) -> None:
        """Before a key is sent: it has it."""
        with self._changed:
            self._holders.add(holder)
            holder.keys.update(key_ids)

    def prolong(self, holder: Holder, until: float) -> None:
        """Its lease was renewed."""
        with self._changed:
            holder.lease_until = max(holder.lease_until, until)

    def confirmed(self, holder: Holder, number: int) -> None:
        """It let go of what it was told of under this number, and before."""
        with self._changed:
            holder.heard = max(holder.heard, min(number, holder.told))
            self._changed.notify_all()

    def clear(self, holder: Holder) -> None:
        """It has no key any more."""
        with self._changed:
            holder.keys.clear()
            self._holders.discard(holder)
            self._changed.notify_all()

    def end(self, key_ids: Iterable[bytes], *, but: Holder | None = None) -> list[Holder]:
        """Tell everybody who has one of the keys, ``but`` one, which ended them itself.

        Whom to wait for: those, and who has not confirmed what it was told before, which may have
        been the same keys: an erasure is asked for again where nobody saw the end of the first.
        """
        gone = frozenset(key_ids)
        with self._changed:
            self._forget_idle()
            found = [(holder, sorted(holder.keys & gone)) for holder in self._holders]
            for holder in self._holders:
                holder.keys -= gone
            asked = [(holder, ids) for holder, ids in found if ids and holder is not but]
            for holder, _ in asked:
                self._number += 1
                holder.told = self._number
            numbers = [holder.told for holder, _ in asked]
            now, told = self._clock(), {holder for holder, _ in asked}
            earlier = [h for h in self._holders - told if h.heard < h.told and h.lease_until > now]
        # Without the lock: one that does not read must not keep the others waiting.
        for (holder, ids), number in zip(asked, numbers, strict=True):
            holder.tell(number, ids)
        return [*told, *(holder for holder in earlier if holder is not but)]

    def wait(self, asked: Iterable[Holder]) -> list[str]:
        """Until each confirmed, ended, or its lease is over; those that did not confirm, in words.

        Daemons of an earlier process of this service are waited for as well.
        """
        unconfirmed = []
        for holder in asked:
            if not self._settled(holder, holder.told):
                unconfirmed.append(holder.name)
        with self._changed:
            while (left := self._strangers_until - self._clock()) > 0:
                self._changed.wait(min(left, _LOOK_EVERY_S))
        return sorted(unconfirmed)

    def _settled(self, holder: Holder, number: int) -> bool:
        """Whether it let go; False where only its lease's end makes that so."""
        with self._changed:
            while holder.heard < number and not holder.is_gone():
                left = holder.lease_until - self._clock()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK_EVERY_S))
        return True

    def _forget_idle(self) -> None:
        """Those that are gone, or may use nothing any more and are not connected."""
        now = self._clock()
        over = [h for h in self._holders if h.is_gone() or (h.lease_until <= now and not h.keys)]
        self._holders.difference_update(over)


_LOOK_EVERY_S = 0.05
