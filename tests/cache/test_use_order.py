"""The order in which blocks leave a tier: tails before heads, the greedy before the others."""

from hypothesis import given
from hypothesis import strategies as st

from kvrun.cache.order import NONE, Sharing, UseOrder

ROOM = 10


class Tier:
    """Blocks by (tenant, path in the tree of its prompts); a block continues the path above it."""

    def __init__(self, blocks: int, **sharing):
        self.order = UseOrder(blocks * ROOM, Sharing(**sharing))
        self.blocks = blocks
        self.slots = {}
        self.names = {}
        self.free = list(range(10_000, -1, -1))
        self.now = 0.0
        self.left = []

    def ask(self, tenant, path):
        """A prompt: uses what is here of it and stores the rest. Returns how much was found."""
        self.now += 1
        names = [(tenant, path[: n + 1]) for n in range(len(path))]
        found = next((n for n, name in enumerate(names) if name not in self.slots), len(names))
        for name in reversed(names[:found]):
            self.order.touch(self.slots[name], tenant)
        self.order.note_use(tenant, self.now)
        before = NONE
        for name in names:
            if name not in self.slots and not self.store(name, before):
                break
            before = self.slots[name]
        return found

    def store(self, name, before):
        if self.order.is_beyond_quota(name[0], ROOM) or len(self.slots) == self.blocks:
            victim = self.order.victim(name[0], ROOM, self.now)
            if victim in (NONE, before):
                return False
            self.drop(self.names[victim])
        slot = self.free.pop()
        self.slots[name], self.names[slot] = slot, name
        self.order.add(slot, name[0], ROOM, ROOM, self.now)
        self.order.link(slot, name[0], continues=before)
        return True

    def drop(self, name):
        slot = self.slots.pop(name)
        del self.names[slot]
        self.free.append(slot)
        self.order.remove(slot, name[0], ROOM, ROOM)
        self.left.append(name)

    def held(self, tenant):
        return sum(name[0] == tenant for name in self.slots)


paths = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)


@given(
    blocks=st.integers(6, 12),
    prompts=st.lists(st.tuples(st.sampled_from("abc"), paths), max_size=60),
    quota=st.sampled_from([None, 60, 80]),
    least_share=st.sampled_from([1.0, 1 / 2, 1 / 16]),
)
def test_no_tail_is_ever_kept_without_its_head(blocks, prompts, quota, least_share):
    tier = Tier(blocks, quota_bytes=quota, least_share=least_share)
    for tenant, path in prompts:
        tier.ask(tenant, path)
        assert all(len(path) == 1 or (who, path[:-1]) in tier.slots for who, path in tier.slots)
        assert len(tier.slots) <= blocks
        if quota is not None:
            assert all(tier.held(who) * ROOM <= quota for who in "abc")


@given(st.lists(st.tuples(st.sampled_from("abc"), paths), max_size=60))
def test_without_shares_the_conversation_used_least_recently_leaves(prompts):
    """Against a model that remembers when each block was last part of a prompt."""
    tier = Tier(8, least_share=1.0)
    used = {}
    for turn, (tenant, path) in enumerate(prompts):
        tier.left.clear()
        tier.ask(tenant, path)
        mine = {(tenant, path[: n + 1]) for n in range(len(path))}
        for gone in tier.left:
            if gone not in mine:
                # What stays and was not just asked for was used later, or is the head of it.
                kept = [name for name in tier.slots if name not in mine]
                assert all(used[name] >= used[gone] for name in kept)
        used.update(dict.fromkeys(mine, turn))


def test_a_greedy_tenant_makes_room_among_its_own_blocks():
    tier = Tier(16)
    tier.ask("quiet", (0, 0, 0, 0))
    for number in range(50):
        tier.ask("greedy", (number, 0))
    assert tier.held("quiet") == 4
    assert tier.held("greedy") == 12
    assert tier.ask("quiet", (0, 0, 0, 0)) == 4


def test_who_is_below_its_share_takes_from_who_is_furthest_beyond():
    tier = Tier(16)
    for number in range(20):
        tier.ask("greedy", (number,))
    for number in range(3):
        tier.ask("second", (number,))
    for number in range(5):
        tier.ask("quiet", (number,))
    assert (tier.held("quiet"), tier.held("second"), tier.held("greedy")) == (5, 3, 8)


def test_a_tenant_alone_may_use_all_of_a_tier():
    tier = Tier(16)
    for number in range(40):
        tier.ask("only", (number,))
    assert tier.held("only") == 16


def test_blocks_of_idle_tenants_leave_first():
    tier = Tier(16, active_s=100)
    tier.ask("idle", (0, 0, 0, 0))
    for number in range(20):
        tier.ask("busy", (number,))
    assert tier.held("idle") == 4
    tier.now += 101
    for number in range(4):
        tier.ask("busy", (100 + number,))
    assert tier.held("idle") == 0


def test_with_more_tenants_than_shares_the_order_of_use_decides():
    tier = Tier(32, least_share=1 / 4)
    for tenant in range(32):
        tier.ask(f"t{tenant}", (0,))
    tier.ask("t0", (0,))
    tier.ask("late", (0,))
    assert tier.held("t0") == 1
    assert tier.held("t1") == 0


def test_a_quota_holds_where_the_tier_is_empty():
    tier = Tier(100, quota_bytes=3 * ROOM)
    for number in range(10):
        tier.ask("t", (number,))
    assert sorted(tier.slots) == [("t", (7,)), ("t", (8,)), ("t", (9,))]
    assert not tier.ask("t", (20, 20, 20, 20))
    assert len(tier.slots) == 3


def test_what_is_unlinked_stays_whatever_comes():
    tier = Tier(4)
    tier.ask("t", (1,))
    tier.order.unlink(tier.slots["t", (1,)], "t")
    for number in range(10, 20):
        tier.ask("t", (number,))
    assert ("t", (1,)) in tier.slots
    tier.order.link(tier.slots["t", (1,)], "t")
    for number in range(20, 24):
        tier.ask("t", (number,))
    assert ("t", (1,)) not in tier.slots


def test_many_tenants_that_come_and_go_leave_nothing_behind():
    tier = Tier(4)
    for number in range(2000):
        tier.ask(f"t{number}", (0,))
    assert len(tier.order.tenants) == 4
    assert len(tier.order._heap) < 2100
    for name in list(tier.slots):
        tier.drop(name)
    assert tier.order.oldest() == NONE
    assert tier.order._heap == []


def test_the_count_of_calls_starts_again_and_the_order_stays():
    tier = Tier(8, least_share=1.0)
    for number in range(8):
        tier.ask(f"t{number % 3}", (number,))
    tier.order._ticks = 2**32 - 3
    for number in (1, 4, 6):
        tier.ask(f"t{number % 3}", (number,))
    assert tier.order._ticks < 2**31 + 3
    tier.left.clear()
    for number in range(10, 18):
        tier.ask("t0", (number,))
    left = [path[0] for _, path in tier.left]
    assert (set(left[:5]), left[5:]) == ({0, 2, 3, 5, 7}, [1, 4, 6])
