"""Answers to the daemon's scrubs where freed pages are zero: evict, and count what is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrun.instance.protocol import Scrub, Scrubbed

_MAX_CALLS = 256


@dataclass(slots=True)
class _Call:
    message: Scrub
    evicted: int = 0
    first_held: int = 0
    reported: Scrubbed | None = None


class ScrubCalls:
    """Every scrub that was asked for. ``evict`` and ``held`` are given one and count pages.

    ``evict`` takes what can be taken out of the cache now; ``held`` counts what requests, and
    copies under way, still keep.
    """

    def __init__(self, evict: Callable[[Scrub], int], held: Callable[[Scrub], int]) -> None:
        self._evict = evict
        self._held = held
        self._calls: dict[int, _Call] = {}
        self._connection = 0

    def connection(self, number: int) -> None:
        """The daemon's connection has this number; another one asks again by itself."""
        if number != self._connection:
            self._connection = number
            self._calls.clear()

    def advance(self, asked: Sequence[Scrub]) -> list[Scrubbed]:
        """Take new questions in and go on with all; what is to be told."""
        for message in asked:
            known = self._calls.get(message.call)
            if known is None:
                self._calls[message.call] = _Call(message)
            else:
                known.reported = None
        told = []
        for call in self._calls.values():
            if call.reported is not None and not call.reported.held:
                continue
            call.evicted += self._evict(call.message)
            held = self._held(call.message)
            first = call.reported is None
            if first:
                call.first_held = max(call.first_held, held)
            if first or not held:
                # A page that was held was evicted later, or freed with its request: it is zero.
                later = call.first_held - held
                scrubbed = max(call.evicted, later)
                call.reported = Scrubbed(call.message.call, call.evicted, scrubbed, held)
                told.append(call.reported)
        self._forget()
        return told

    def _forget(self) -> None:
        done = [n for n, call in self._calls.items() if call.reported and not call.reported.held]
        for number in done[:-_MAX_CALLS]:
            del self._calls[number]
