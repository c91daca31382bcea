"""A deployment that serves a trace, simulated: only the order in which blocks leave is real.

The tiers keep their blocks by :class:`kvrun.cache.order.UseOrder`, the code of the daemon. Blocks
have a size and no content; every block that is computed is kept on every tier, as the daemon does
(write-through to memory, write-behind below it), and what is found further down comes up again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvrun.bench.capacity_orders import S3Fifo, cost_at
from kvrun.bench.capacity_trace import Request, Scope, owner_of
from kvrun.cache.order import NONE, Sharing, UseOrder

Key = tuple[str, int]
_SAMPLES = 48
_TELL_EVERY = 100


class Order(Protocol):
    """What a tier asks of an order of use; ``UseOrder`` is one."""

    def add(self, slot: int, tenant_ref: str, size: int, room: int, now: float) -> None:
        """Counts a block."""

    def link(self, slot: int, tenant_ref: str, *, continues: int = NONE) -> None:
        """Lets a block be evicted."""

    def touch(self, slot: int, tenant_ref: str) -> None:
        """A block was used."""

    def note_use(self, tenant_ref: str, now: float) -> None:
        """A tenant asked."""

    def victim(self, tenant_ref: str, room: int, now: float) -> int:
        """The block to evict."""

    def remove(self, slot: int, tenant_ref: str, size: int, room: int) -> None:
        """Forgets a block."""


@dataclass(frozen=True, slots=True)
class TierSize:
    """One tier: its name and how many bytes of blocks it holds."""

    name: str
    size_bytes: int


@dataclass(slots=True)
class Outcome:
    """Blocks asked for, blocks found by tier, and conversations held whole (mean of samples).

    ``cost_asked`` and ``cost_saved`` weigh blocks asked for and found by what computing them costs.
    """

    asked: int = 0
    cost_asked: float = 0.0
    cost_saved: float = 0.0
    hits: dict[str, int] = field(default_factory=dict)
    contexts: dict[str, float] = field(default_factory=dict)

    @property
    def hit_ratio(self) -> float:
        """Over all tiers."""
        return sum(self.hits.values()) / self.asked if self.asked else 0.0


class SimTier:
    """The blocks of one tier, by name of owner and block."""

    def __init__(self, size: TierSize, block_bytes: int, order: Order) -> None:
        self.name = size.name
        self.blocks = size.size_bytes // block_bytes
        self.slots: dict[Key, int] = {}
        self._keys: list[Key | None] = []
        self._free: list[int] = []
        self._room = block_bytes
        self._order = order

    def touch(self, owner: str, found: Sequence[int], now: float) -> None:
        """A request found these blocks of a prefix here."""
        slots = self.slots
        for block in reversed(found):
            slot = slots.get((owner, block))
            if slot is not None:
                self._order.touch(slot, owner)
        self._order.note_use(owner, now)

    def store(self, owner: str, blocks: Sequence[int], now: float) -> None:
        """Keeps the blocks of a prompt that are not here yet."""
        before = NONE
        for block in blocks:
            slot = self.slots.get((owner, block))
            before = self._add((owner, block), before, now) if slot is None else slot
            if before == NONE:
                return

    def _add(self, key: Key, continues: int, now: float) -> int:
        owner = key[0]
        while len(self.slots) >= self.blocks:
            victim = self._order.victim(owner, self._room, now)
            if victim in (NONE, continues):
                return NONE
            self._evict(victim)
        if self._free:
            slot = self._free.pop()
            self._keys[slot] = key
        else:
            slot = len(self._keys)
            self._keys.append(key)
        self.slots[key] = slot
        if isinstance(self._order, S3Fifo):
            self._order.name(key)
        self._order.add(slot, owner, self._room, self._room, now)
        self._order.link(slot, owner, continues=continues)
        return slot

    def _evict(self, slot: int) -> None:
        key = self._keys[slot]
        assert key is not None
        self._order.remove(slot, key[0], self._room, self._room)
        del self.slots[key]
        self._keys[slot] = None
        self._free.append(slot)


def simulate(
    requests: Sequence[Request],
    sizes: Sequence[TierSize],
    *,
    block_bytes: int,
    scope: Scope,
    tenants: int,
    order: Callable[[int], Order] | None = None,
    progress: Callable[[int], None] = lambda requests: None,
) -> Outcome:
    """Serve the requests from tiers of these sizes, the fastest first.

    ``order`` makes the order of use of a tier of so many bytes; without it the daemon's. A prompt
    that the first tier cannot hold at once is not served: it counts as asked for and not found.
    """
    make = order or (lambda size_bytes: UseOrder(size_bytes, Sharing()))
    tiers = [SimTier(size, block_bytes, make(size.size_bytes)) for size in sizes]
    outcome = Outcome(hits=dict.fromkeys((tier.name for tier in tiers), 0))
    last: dict[int, tuple[str, tuple[int, ...]]] = {}
    samples = {len(requests) * (number + _SAMPLES) // (2 * _SAMPLES) for number in range(_SAMPLES)}
    taken = 0
    for number, request in enumerate(requests):
        owner = owner_of(request, scope, tenants)
        outcome.asked += len(request.blocks)
        outcome.cost_asked += sum(map(cost_at, range(len(request.blocks))))
        if len(request.blocks) <= tiers[0].blocks:
            _serve(tiers, owner, request, outcome)
            last[request.session] = (owner, request.blocks)
        if number in samples:
            taken += 1
            _count_contexts(tiers, last, outcome)
        if number % _TELL_EVERY == _TELL_EVERY - 1:
            progress(_TELL_EVERY)
    progress(len(requests) % _TELL_EVERY)
    outcome.contexts = {name: count / max(1, taken) for name, count in outcome.contexts.items()}
    return outcome


def _serve(tiers: Sequence[SimTier], owner: str, request: Request, outcome: Outcome) -> None:
    found = 0
    for block in request.blocks:
        tier = next((tier for tier in tiers if (owner, block) in tier.slots), None)
        if tier is None:
            break
        outcome.hits[tier.name] += 1
        outcome.cost_saved += cost_at(found)
        found += 1
    for tier in tiers:
        tier.touch(owner, request.blocks[:found], request.at_s)
        tier.store(owner, request.blocks, request.at_s)


def _count_contexts(
    tiers: Sequence[SimTier], last: dict[int, tuple[str, tuple[int, ...]]], outcome: Outcome
) -> None:
    """How many conversations stand whole on the first tier, on the first two, and so on."""
    left = list(last.values())
    held = 0
    for count, tier in enumerate(tiers, 1):
        reach = tiers[:count]
        still = []
        for owner, blocks in left:
            # The last block first: it is what most conversations have lost.
            if all(any((owner, block) in t.slots for t in reach) for block in reversed(blocks)):
                held += 1
            else:
                still.append((owner, blocks))
        left = still
        outcome.contexts[tier.name] = outcome.contexts.get(tier.name, 0.0) + held
