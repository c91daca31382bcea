"""Whose plaintext lies in which page of the engine's memory, and how it is zeroed.

A page keeps what was written to it after it was freed, also what no hash leads to any more: the
unfilled end of a prompt, a dropped duplicate, the rest of a page that another request fills only
in part. So the owners of a page are known from the block tables, and stay known until the page is
zeroed or full of another owner's tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

_MAX_OWNERS_A_PAGE = 16
_MAX_ERASED = 65_536
_MAX_FINISHED = 256
ANYONE = b""
"""An owner that every scrub means: a request that nobody can name any more, or a page with too many
owners to name."""


class Pages(Protocol):
    """The engine's pages as its scheduler sees them."""

    def is_free(self, page: int) -> bool:
        """Whether no request and no transfer uses the page."""

    def is_full(self, page: int) -> bool:
        """Whether its latest owner has written all of it."""

    def evict(self, pages: Sequence[int]) -> int:
        """Take pages out of the prefix cache; how many were in it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one call is: pages evicted, zeroed on every rank, and held by running requests."""

    call: int
    evicted: int
    scrubbed: int
    held: int


@dataclass(slots=True)
class _Call:
    call: int
    owners: frozenset[bytes]
    everything: bool
    evicted: int = 0
    scrubbed: int = 0
    zeroing: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    reported: Progress | None = None


@dataclass(slots=True)
class _Order:
    pages: tuple[int, ...]
    left: int
    sent: bool = False


class PageScrubber:
    """The scheduler's half. ``ranks`` is the number of workers that must confirm each order."""

    def __init__(self, pages: Pages, ranks: int) -> None:
        self._pages = pages
        self._ranks = ranks
        self._owners: dict[int, tuple[bytes, ...]] = {}
        self._calls: dict[int, _Call] = {}
        # Those of them with something to do: an engine asks in each of its steps.
        self._working: dict[int, _Call] = {}
        self._erased: dict[bytes, int] = {}
        self._orders: dict[int, _Order] = {}
        self._numbers = itertools.count(1)

    @property
    def pending(self) -> bool:
        """Whether the engine must go on stepping, also with nothing to compute."""
        return bool(self._orders) or any(
            _is_untold(call) or any(map(self._pages.is_free, call.held))
            for call in self._working.values()
        )

    def is_erased(self, owner: bytes) -> bool:
        """Whether a scrub of this owner was asked for."""
        return owner in self._erased

    def own(self, owner: bytes, pages: Iterable[int]) -> None:
        """A request of ``owner`` was given these pages."""
        for page in pages:
            if not page:  # the engine's placeholder
                continue
            before = self._owners.get(page, ())
            if before and before[-1] == owner:
                continue
            kept = tuple(other for other in before if other != owner)
            if len(kept) >= _MAX_OWNERS_A_PAGE:
                kept = (ANYONE,)
            self._owners[page] = (*kept, owner)
        number = self._erased.get(owner)
        if number is not None and number in self._calls:
            # A request that outlives its session's key still gets pages: they are scrubbed too.
            call = self._working[number] = self._calls[number]
            call.held.update(page for page in pages if page)

    def ask(self, call: int, owners: Sequence[bytes], everything: bool) -> None:
        """Begin a call, or report it again if it is known."""
        known = self._calls.get(call)
        if known is not None:
            known.reported = None
            self._working[call] = known
            return
        state = _Call(call, frozenset(owners), everything)
        self._calls[call] = self._working[call] = state
        for owner in owners:
            self._erased[owner] = call
        while len(self._erased) > _MAX_ERASED:
            del self._erased[next(iter(self._erased))]
        mine = [page for page in list(self._owners) if self._concerns(state, page)]
        state.held.update(mine)
        state.evicted = self._pages.evict([p for p in mine if self._latest_is(state, p)])

    def next_order(self) -> tuple[int, tuple[int, ...]] | None:
        """Pages that every worker zeroes in this step, and the order's number."""
        ready: set[int] = set()
        for call in self._working.values():
            # Meanwhile filled by somebody else: nothing of the erased session is left in it.
            call.held = {page for page in call.held if self._concerns(call, page)}
            free = {page for page in call.held if self._pages.is_free(page)}
            call.held -= free
            call.zeroing |= free
            ready |= free
        if not ready:
            return None
        number, pages = next(self._numbers), tuple(sorted(ready))
        # A page that another owner filled in part may be in the prefix cache up to there.
        self._pages.evict(pages)
        self._orders[number] = _Order(pages, self._ranks)
        for page in pages:
            del self._owners[page]
        return number, pages

    def zeroed(self, number: int, ranks: int) -> None:
        """So many workers zeroed the pages of an order."""
        order = self._orders.get(number)
        if order is None:
            return
        order.left -= ranks
        if order.left > 0:
            return
        del self._orders[number]
        for call in self._working.values():
            done = call.zeroing.intersection(order.pages)
            call.zeroing -= done
            call.scrubbed += len(done)

    def progress(self) -> list[Progress]:
        """What is to be told: a call whose free pages are zero, and again when the rest is."""
        told = []
        for number, call in list(self._working.items()):
            if call.zeroing or any(map(self._pages.is_free, call.held)):
                continue
            if _is_untold(call):
                now = Progress(call.call, call.evicted, call.scrubbed, len(call.held))
                call.reported = now
                told.append(now)
            if not call.held:
                del self._working[number]
        if told:
            self._forget()
        return told

    def forget_calls(self) -> None:
        """The daemon that asked is gone. Its next one asks again, with numbers of its own."""
        self._calls.clear()
        self._working.clear()
        self._erased.clear()

    def _concerns(self, call: _Call, page: int) -> bool:
        owners = self._owners.get(page)
        if owners is None:
            return False
        if call.everything or self._latest_is(call, page):
            return True
        if self._pages.is_full(page):
            self._owners[page] = owners[-1:]
            return False
        return any(owner in call.owners or owner == ANYONE for owner in owners)

    def _latest_is(self, call: _Call, page: int) -> bool:
        owners = self._owners.get(page, ())
        return any(
            call.everything or owner in call.owners or owner == ANYONE for owner in owners[-1:]
        )

    def _forget(self) -> None:
        # The last ones stay, so that a repeated question gets the same answer.
        over = [number for number in self._calls if number not in self._working]
        for number in over[:-_MAX_FINISHED]:
            del self._calls[number]


def _is_untold(call: _Call) -> bool:
    return call.reported is None or (not call.held and bool(call.reported.held))
