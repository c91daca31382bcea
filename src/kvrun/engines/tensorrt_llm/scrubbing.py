"""Answers to the daemon's scrubs, where every block is zeroed before it is freed. Pure.

Such an engine keeps plaintext only in the blocks of requests that have not ended yet, so a scrub
has nothing to do but to say how many those are, and again when they are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvrun.instance.protocol import Scrubbed

_MAX_CALLS = 256


@dataclass(frozen=True, slots=True)
class _Ended:
    owner: bytes
    pages: tuple[int, ...]


@dataclass(slots=True)
class _Call:
    owners: frozenset[bytes]
    everything: bool
    scrubbed: int = 0
    reported: int | None = None

    def concerns(self, owner: bytes) -> bool:
        # A request whose claim never came has no owner that an erasure could name.
        return self.everything or not owner or owner in self.owners


class FinishedBlocks:
    """Blocks of requests that ended and are not zero yet, and the scrubs that wait for them."""

    def __init__(self) -> None:
        self._ended: dict[int, _Ended] = {}
        self._calls: dict[int, _Call] = {}
        self._connection = 0

    def connection(self, number: int) -> None:
        """The daemon's connection has this number; another one asks again by itself."""
        if number != self._connection:
            self._connection = number
            self._calls.clear()

    def ended(self, request_id: int, owner: bytes, pages: Sequence[int]) -> None:
        """A request ended with these blocks; empty ``owner``: nobody can name it."""
        if pages:
            self._ended[request_id] = _Ended(owner, tuple(pages))

    def pages(self, request_ids: Iterable[int]) -> list[int]:
        """The blocks of these requests that are to be zeroed."""
        found = (self._ended.get(request_id) for request_id in request_ids)
        return sorted({page for ended in found if ended is not None for page in ended.pages})

    def zeroed(self, request_ids: Iterable[int]) -> None:
        """The blocks of these requests are zero."""
        for request_id in request_ids:
            ended = self._ended.pop(request_id, None)
            if ended is None:
                continue
            for call in self._calls.values():
                if call.concerns(ended.owner):
                    call.scrubbed += len(ended.pages)

    def ask(self, call: int, owners: Sequence[bytes], everything: bool) -> None:
        """Begin a scrub, or report it again if it is known."""
        known = self._calls.get(call)
        if known is not None:
            known.reported = None
            return
        self._calls[call] = _Call(frozenset(owners), everything)
        while len(self._calls) > _MAX_CALLS:
            done = next((n for n, c in self._calls.items() if c.reported == 0), None)
            del self._calls[next(iter(self._calls)) if done is None else done]

    def progress(self, running: Iterable[tuple[bytes, int]]) -> list[Scrubbed]:
        """What is to be told, given (owner, number of blocks) of each running request."""
        running = [*running, *((ended.owner, len(ended.pages)) for ended in self._ended.values())]
        told = []
        for number, call in self._calls.items():
            held = sum(pages for owner, pages in running if call.concerns(owner))
            if call.reported is None or (call.reported and not held):
                call.reported = held
                told.append(Scrubbed(number, 0, call.scrubbed, held))
        return told
