"""Other orders of use, to hold the daemon's against.

Plain LRU and S3-FIFO (SOSP'23) know nothing of tenants or prefixes. Two add what the daemon's does
not ask for, with heads still outliving tails: whether a block was used again, and what it costs to
compute it again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush

from kvrun.cache.order import NONE, Sharing, UseOrder

COST_BLOCKS = 100
"""So many blocks into a prompt a block costs twice as much to compute as its first one: attention
costs as much there as all the rest, at 50,000 tokens."""
_SLOTS = 2**20


def cost_at(position: int) -> float:
    """What computing the block at a position of a prompt costs, the first one being 1."""
    return 1 + position / COST_BLOCKS


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


class ReuseOrder:
    """The daemon's order twice: what was used again leaves only where little else is left.

    New blocks have half of the tier; a block that is found goes over to the others.
    """

    _NEW = 0.5

    def __init__(self, size_bytes: int) -> None:
        self._new, self._again = (UseOrder(size_bytes, Sharing(), _SLOTS) for _ in range(2))
        self._new_bytes = size_bytes * self._NEW
        self._new_room = 0
        self._room = 0
        self._now = 0.0
        self._is_new: set[int] = set()

    def add(self, slot: int, tenant_ref: str, size: int, room: int, now: float) -> None:
        """A block arrives."""
        self._new.add(slot, tenant_ref, size, room, now)
        self._is_new.add(slot)
        self._new_room += room
        self._room, self._now = room, now

    def link(self, slot: int, tenant_ref: str, *, continues: int = NONE) -> None:
        """Next to what it continues, where that is new too."""
        self._new.link(slot, tenant_ref, continues=continues if continues in self._is_new else NONE)

    def touch(self, slot: int, tenant_ref: str) -> None:
        """Used again."""
        if slot in self._is_new:
            self.remove(slot, tenant_ref, self._room, self._room)
            self._again.add(slot, tenant_ref, self._room, self._room, self._now)
            self._again.link(slot, tenant_ref)
        else:
            self._again.touch(slot, tenant_ref)

    def note_use(self, tenant_ref: str, now: float) -> None:
        """The tenant asked."""
        self._now = now
        self._new.note_use(tenant_ref, now)
        self._again.note_use(tenant_ref, now)

    def victim(self, tenant_ref: str, room: int, now: float) -> int:
        """A new block while there are enough of them."""
        orders = [self._new, self._again]
        if self._new_room <= self._new_bytes:
            orders.reverse()
        found = (order.victim(tenant_ref, room, now) for order in orders)
        return next((slot for slot in found if slot != NONE), NONE)

    def remove(self, slot: int, tenant_ref: str, size: int, room: int) -> None:
        """Forgotten."""
        if slot in self._is_new:
            self._is_new.remove(slot)
            self._new_room -= room
            self._new.remove(slot, tenant_ref, size, room)
        else:
            self._again.remove(slot, tenant_ref, size, room)


class CostOrder:
    """Greedy dual (Young 1994; with ``reuse`` GDSF): a block's worth is what it costs to compute
    again, times its uses, above the worth of what left last. Only ends of prompts leave, and what
    they continue is worth as much as they were.
    """

    def __init__(self, size_bytes: int, *, reuse: bool = False) -> None:
        self._reuse = reuse
        self._floor = 0.0
        self._worth: dict[int, float] = {}
        self._uses: dict[int, int] = {}
        self._position: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._ends: list[tuple[float, int]] = []

    def add(self, slot: int, tenant_ref: str, size: int, room: int, now: float) -> None:
        """A block arrives."""
        self._worth[slot] = self._uses[slot] = self._after[slot] = 0

    def link(self, slot: int, tenant_ref: str, *, continues: int = NONE) -> None:
        """Where it stands in its prompt is known."""
        self._before[slot] = continues
        self._position[slot] = 0
        if continues != NONE:
            self._position[slot] = self._position[continues] + 1
            self._after[continues] += 1
        self.touch(slot, tenant_ref)

    def touch(self, slot: int, tenant_ref: str) -> None:
        """Used once more."""
        self._uses[slot] += 1
        uses = self._uses[slot] if self._reuse else 1
        self._raise(slot, self._floor + uses * cost_at(self._position[slot]))

    def note_use(self, tenant_ref: str, now: float) -> None:
        """Nothing to note."""

    def victim(self, tenant_ref: str, room: int, now: float) -> int:
        """The end of a prompt that is worth the least."""
        while self._ends:
            worth, slot = self._ends[0]
            if self._worth.get(slot) == worth and not self._after[slot]:
                return slot
            heappop(self._ends)
        return NONE

    def remove(self, slot: int, tenant_ref: str, size: int, room: int) -> None:
        """What stays is worth more than what left."""
        self._floor = max(self._floor, self._worth[slot])
        before = self._before[slot]
        if before != NONE:
            self._after[before] -= 1
            self._raise(before, self._worth[slot])
        for known in (self._worth, self._uses, self._position, self._before, self._after):
            del known[slot]

    def _raise(self, slot: int, worth: float) -> None:
        self._worth[slot] = max(self._worth[slot], worth)
        if not self._after[slot]:
            heappush(self._ends, (self._worth[slot], slot))


def reuse_and_cost(size_bytes: int) -> CostOrder:
    """Both."""
    return CostOrder(size_bytes, reuse=True)
