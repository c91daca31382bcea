"""Other orders of use, to hold the daemon's against: plain LRU and S3-FIFO (SOSP'23).

They know nothing of tenants or prefixes.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from kvrun.cache.order import NONE


class PlainLru:
    """The least recently used block leaves."""

    def __init__(self, size_bytes: int) -> None:
        self._used: OrderedDict[int, None] = OrderedDict()

    def add(self, slot: int, tenant_ref: str, size: int, room: int, now: float) -> None:
        """Nothing to count."""

    def link(self, slot: int, tenant_ref: str, *, continues: int = NONE) -> None:
        """The newest."""
        self._used[slot] = None

    def touch(self, slot: int, tenant_ref: str) -> None:
        """The newest again."""
        self._used.move_to_end(slot)

    def note_use(self, tenant_ref: str, now: float) -> None:
        """Nothing to note."""

    def victim(self, tenant_ref: str, room: int, now: float) -> int:
        """The oldest."""
        return next(iter(self._used), NONE)

    def remove(self, slot: int, tenant_ref: str, size: int, room: int) -> None:
        """Forgotten."""
        del self._used[slot]


class S3Fifo:
    """A small queue that new blocks pass, a main queue for those used again, and a ghost queue.

    A slot is given to another block later, so ghosts are remembered by name: :meth:`name` says
    which block comes next.
    """

    _SMALL = 0.1
    _MOST_USES = 3

    def __init__(self, size_bytes: int) -> None:
        self._capacity = size_bytes
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._small_room = 0
        self._uses: dict[int, int] = {}
        self._in_small: set[int] = set()
        self._names: dict[int, object] = {}
        self._ghosts: OrderedDict[object, None] = OrderedDict()
        self._next_name: object = None

    def name(self, key: object) -> None:
        """The block that is added next."""
        self._next_name = key

    def add(self, slot: int, tenant_ref: str, size: int, room: int, now: float) -> None:
        """A block arrives."""
        self._names[slot] = self._next_name
        self._uses[slot] = 0
        if self._next_name in self._ghosts:
            del self._ghosts[self._next_name]
            self._main.append(slot)
        else:
            self._small.append(slot)
            self._in_small.add(slot)
            self._small_room += room

    def link(self, slot: int, tenant_ref: str, *, continues: int = NONE) -> None:
        """It stands in its queue already."""

    def touch(self, slot: int, tenant_ref: str) -> None:
        """One use more."""
        self._uses[slot] = min(self._MOST_USES, self._uses[slot] + 1)

    def note_use(self, tenant_ref: str, now: float) -> None:
        """Nothing to note."""

    def victim(self, tenant_ref: str, room: int, now: float) -> int:
        """Moves blocks on until one is found that goes."""
        while self._small or self._main:
            if self._small and (self._small_room >= self._capacity * self._SMALL or not self._main):
                slot = self._small[0]
                if self._uses[slot] < 1:
                    return slot
                self._small.popleft()
                self._in_small.discard(slot)
                self._small_room -= room
                self._uses[slot] = 0
                self._main.append(slot)
            else:
                slot = self._main[0]
                if not self._uses[slot]:
                    return slot
                self._main.rotate(-1)
                self._uses[slot] -= 1
        return NONE

    def remove(self, slot: int, tenant_ref: str, size: int, room: int) -> None:
        """The victim leaves; from the small queue it becomes a ghost."""
        if slot in self._in_small:
            self._in_small.discard(slot)
            self._small.remove(slot)
            self._small_room -= room
            self._ghosts[self._names[slot]] = None
            if len(self._ghosts) * room > self._capacity * (1 - self._SMALL):
                self._ghosts.popitem(last=False)
        else:
            self._main.remove(slot)
        del self._names[slot], self._uses[slot]
