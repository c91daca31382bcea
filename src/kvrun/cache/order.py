"""Which block leaves a tier next.

Blocks leave in order of use, the least recently used first, but a tenant's heads of prefixes after
their tails: a block is never newer than the block that it continues, so what stays of a
conversation can be reused. Every tenant has an order of its own, and this is how tenants share:

* A tenant beyond its quota makes room among its own blocks.
* Blocks of tenants that are idle go first, the least recently used of all tenants.
* The others have a share each: the tier divided by their number, a sixteenth of it at least.
  Whoever is beyond it makes room among its own blocks; whoever is not takes from the tenant that
  is furthest beyond. Where nobody is, the least recently used block goes.

No I/O, no clock, no lock: callers pass the time and hold the tier's lock. A block is known by the
small number (slot) that its tier gave it.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

NONE = -1
_UNLINKED = -2
_LAST_TICK = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Sharing:
    """How tenants share a tier.

    ``quota_bytes`` is what one tenant may hold at most, None without a limit; ``cap_of`` says it of
    each tenant besides, and the smaller holds. A tenant that used the tier within ``active_s``
    seconds has a share, of ``least_share`` of the tier at least.
    """

    quota_bytes: int | None = None
    active_s: float = 600.0
    least_share: float = 1 / 16
    cap_of: Callable[[str], int | None] | None = None

    def bound_of(self, tenant_ref: str) -> int | None:
        """What a tenant may hold at most, None without a limit."""
        cap = self.cap_of(tenant_ref) if self.cap_of is not None else None
        if cap is None or self.quota_bytes is None:
            return self.quota_bytes if cap is None else cap
        return min(cap, self.quota_bytes)

    def is_capped(self, tenant_ref: str) -> bool:
        """Whether ``cap_of`` is what bounds a tenant."""
        cap = self.cap_of(tenant_ref) if self.cap_of is not None else None
        return cap is not None and (self.quota_bytes is None or cap < self.quota_bytes)


class TenantShare:
    """What one tenant holds in a tier: blocks, their bytes, the room they take, their order."""

    __slots__ = ("blocks", "bytes", "newest", "oldest", "queued", "room", "tenant_ref", "used_at")

    def __init__(self, tenant_ref: str, now: float) -> None:
        self.tenant_ref = tenant_ref
        self.blocks = 0
        self.bytes = 0
        self.room = 0
        self.oldest = NONE
        self.newest = NONE
        self.used_at = now
        self.queued = False


class UseOrder:
    """The order of use of a tier of ``capacity_bytes``; 12 bytes a slot.

    A slot counts for its tenant from :meth:`add` to :meth:`remove`, and may be evicted while it is
    linked: :meth:`unlink` takes it out of the order (something holds it), :meth:`link` puts it
    back. ``tenants`` is ordered by their last use.
    """

    def __init__(self, capacity_bytes: int, sharing: Sharing, slots: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.sharing = sharing
        self.tenants: OrderedDict[str, TenantShare] = OrderedDict()
        self._prev = array("i", [_UNLINKED]) * slots
        self._next = array("i", [NONE]) * slots
        # When a block was last used, counted in calls: 32 bits last for months, then it is halved.
        self._stamp = array("I", [0]) * slots
        self._ticks = 0
        self._heap: list[tuple[int, int, TenantShare]] = []
        self._heavy: dict[str, TenantShare] = {}
        self._most_shares = max(1, round(1 / sharing.least_share))

    def add(self, slot: int, tenant_ref: str, size: int, room: int, now: float) -> None:
        """Counts a block of ``size`` bytes that takes ``room`` for its tenant; not linked yet."""
        if slot == len(self._prev):
            self._prev.append(_UNLINKED)
            self._next.append(NONE)
            self._stamp.append(0)
        share = self.tenants.get(tenant_ref)
        if share is None:
            share = self.tenants[tenant_ref] = TenantShare(tenant_ref, now)
        share.blocks += 1
        share.bytes += size
        share.room += room
        self._note(share, now)
        self._weigh(share)

    def remove(self, slot: int, tenant_ref: str, size: int, room: int) -> None:
        """Forgets a block, linked or not."""
        self.remove_all((slot,), tenant_ref, size, room)

    def remove_all(self, slots: Sequence[int], tenant_ref: str, size: int, room: int) -> None:
        """Forgets blocks of one tenant; ``size`` and ``room`` are those of all together."""
        share = self.tenants[tenant_ref]
        self._take_out(share, slots)
        share.blocks -= len(slots)
        share.bytes -= size
        share.room -= room
        if share.blocks:
            self._weigh(share)
        else:
            del self.tenants[tenant_ref]
            self._heavy.pop(tenant_ref, None)

    def link(self, slot: int, tenant_ref: str, *, continues: int = NONE) -> None:
        """Makes a block the most recently used one, or the next older one of its predecessor.

        ``continues`` is the slot of the block before it in the prompt, where that is linked.
        """
        share = self.tenants[tenant_ref]
        if continues != NONE and self._prev[continues] != _UNLINKED:
            self._insert(slot, share, self._prev[continues], continues)
            self._stamp[slot] = self._stamp[continues]
        else:
            self._insert(slot, share, share.newest, NONE)
            now = self._tick()
            self._stamp[slot] = now
        if not share.queued:
            share.queued = True
            heappush(self._heap, (self._stamp[slot], id(share), share))

    def unlink(self, slot: int, tenant_ref: str) -> None:
        """Takes a linked block out of the order; it stays counted."""
        self._take_out(self.tenants[tenant_ref], (slot,))

    def is_linked(self, slot: int) -> bool:
        """Whether the block may be evicted."""
        return self._prev[slot] != _UNLINKED

    def touch(self, slot: int, tenant_ref: str) -> None:
        """Makes a linked block the most recently used one; another stays as it is."""
        self.touch_all((slot,), tenant_ref)

    def touch_all(self, slots: Iterable[int], tenant_ref: str) -> None:
        """Touches blocks of one tenant, the last of ``slots`` last: the cost of a look-up."""
        share = self.tenants.get(tenant_ref)
        if share is None:
            return
        now, newest = self._tick(), share.newest
        prev_of, next_of, stamp = self._prev, self._next, self._stamp
        for slot in slots:
            before = prev_of[slot]
            if before == _UNLINKED:
                continue
            stamp[slot] = now
            if slot == newest:
                continue
            after = next_of[slot]
            if before == NONE:
                share.oldest = after
            else:
                next_of[before] = after
            prev_of[after] = before
            prev_of[slot] = newest
            next_of[slot] = NONE
            next_of[newest] = slot
            newest = slot
        share.newest = newest

    def note_use(self, tenant_ref: str, now: float) -> None:
        """The tenant asked for its blocks."""
        share = self.tenants.get(tenant_ref)
        if share is not None:
            self._note(share, now)

    def is_beyond_quota(self, tenant_ref: str, room: int) -> bool:
        """Whether ``room`` bytes more are more than the tenant may hold."""
        bound = self.sharing.bound_of(tenant_ref)
        if bound is None:
            return False
        share = self.tenants.get(tenant_ref)
        return room + (share.room if share is not None else 0) > bound

    def oldest(self) -> int:
        """The least recently used block of all that may be evicted, NONE without one."""
        share = self._stalest()
        return share.oldest if share is not None else NONE

    def oldest_of(self, tenant_ref: str) -> int:
        """The least recently used block of one tenant that may be evicted, or NONE."""
        share = self.tenants.get(tenant_ref)
        return share.oldest if share is not None else NONE

    def victim(self, tenant_ref: str, room: int, now: float) -> int:
        """The block that makes ``room`` bytes for a tenant; NONE when nothing may go."""
        stalest = self._stalest()
        if stalest is None:
            return NONE
        if self.is_beyond_quota(tenant_ref, room):
            return self.oldest_of(tenant_ref)
        if len(self.tenants) == 1 or stalest.used_at < now - self.sharing.active_s:
            return stalest.oldest
        fair = self.capacity_bytes / self._count_active(now)
        own = self.tenants.get(tenant_ref)
        if own is not None and own.oldest != NONE and own.room + room > fair:
            return own.oldest
        beyond = [
            share for share in self._heavy.values() if share.room > fair and share.oldest != NONE
        ]
        return max(beyond, key=_room_of, default=stalest).oldest

    def _tick(self) -> int:
        if self._ticks == _LAST_TICK:
            self._halve()
        self._ticks += 1
        return self._ticks

    def _halve(self) -> None:
        """Halves all counts, which keeps their order. Takes a second for ten million blocks."""
        self._ticks >>= 1
        self._stamp = array("I", (stamp >> 1 for stamp in self._stamp))
        self._heap = [
            (self._stamp[share.oldest], id(share), share)
            for share in self.tenants.values()
            if share.oldest != NONE
        ]
        heapify(self._heap)
        for share in self.tenants.values():
            share.queued = share.oldest != NONE

    def _count_active(self, now: float) -> int:
        """How many tenants have a share, as many as there are least shares at most."""
        count = 0
        for share in reversed(self.tenants.values()):
            if share.used_at < now - self.sharing.active_s or count == self._most_shares:
                break
            count += 1
        return max(1, count)

    def _stalest(self) -> TenantShare | None:
        """The tenant of the least recently used block.

        The heap holds one entry a tenant with the stamp that its oldest block once had; stamps only
        grow, so an entry that is out of date is put back where it belongs when it comes up.
        """
        heap = self._heap
        while heap:
            stamp, _, share = heap[0]
            if share.oldest == NONE:
                heappop(heap)
                share.queued = False
                continue
            actual = self._stamp[share.oldest]
            if actual == stamp:
                return share
            heapreplace(heap, (actual, id(share), share))
        return None

    def _note(self, share: TenantShare, now: float) -> None:
        share.used_at = now
        self.tenants.move_to_end(share.tenant_ref)

    def _weigh(self, share: TenantShare) -> None:
        # Only these can be beyond their share, and there are few of them.
        if share.room > self.capacity_bytes * self.sharing.least_share:
            self._heavy[share.tenant_ref] = share
        else:
            self._heavy.pop(share.tenant_ref, None)

    def _take_out(self, share: TenantShare, slots: Iterable[int]) -> None:
        prev_of, next_of = self._prev, self._next
        for slot in slots:
            before = prev_of[slot]
            if before == _UNLINKED:
                continue
            after = next_of[slot]
            if before == NONE:
                share.oldest = after
            else:
                next_of[before] = after
            if after == NONE:
                share.newest = before
            else:
                prev_of[after] = before
            prev_of[slot] = _UNLINKED

    def _insert(self, slot: int, share: TenantShare, before: int, after: int) -> None:
        self._prev[slot] = before
        self._next[slot] = after
        if before == NONE:
            share.oldest = slot
        else:
            self._next[before] = slot
        if after == NONE:
            share.newest = slot
        else:
            self._prev[after] = slot


def _room_of(share: TenantShare) -> int:
    return share.room
