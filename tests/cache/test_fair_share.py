"""Two users, one greedy: the quiet one finds what it would find alone."""

import random

import pytest
from cachebox import Box

from kvrun.cache import Tier
from kvrun.cache.order import Sharing

CELLS = 64
CONVERSATIONS, TURNS, BLOCKS = 6, 60, 3


def before(number: int) -> int | None:
    return number - 1 if number else None


class User:
    """Conversations of one tenant, asked in random order; some are started anew."""

    def __init__(self, tenant: str, seed: int) -> None:
        self.tenant = tenant
        self.random = random.Random(seed)
        self.started = dict.fromkeys(range(CONVERSATIONS), 0)
        self.asked = self.found = 0

    def turn(self, box: Box) -> None:
        which = self.random.randrange(CONVERSATIONS)
        if self.random.random() < 0.1:
            self.started[which] += 1
        numbers = [1000 * self.started[which] + number for number in range(BLOCKS)]
        self.ask(box, f"c{which}", numbers)

    def ask(self, box: Box, session_ref: str, numbers: list[int]) -> None:
        session = box.store.session(self.tenant, session_ref, epoch=1)
        codes = session.match([number.to_bytes(16, "big") for number in numbers])
        self.asked += len(numbers)
        self.found += len(codes) - codes.count(Tier.MISS)
        for number in numbers:
            box.put(session, number, continues=before(number))
        box.time += 1
        while box.store.work():
            pass


def hit_ratio(box: Box, flood: int) -> float:
    """The quiet user's, while another brings ``flood`` blocks a turn that it never asks again."""
    quiet, greedy = User("quiet", 1), User("greedy", 2)
    for turn in range(TURNS):
        quiet.turn(box)
        numbers = range(turn * flood, (turn + 1) * flood)
        for start in range(0, flood, 8):
            greedy.ask(box, "flood", list(numbers[start : start + 8]))
    return quiet.found / quiet.asked


@pytest.mark.parametrize("flood", [8, 160])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_the_quiet_user_loses_less_than_5_percent(tmp_path, tier, flood):
    def box(name: str, sharing: Sharing | None = None) -> Box:
        root = None if tier == "memory" else tmp_path / name
        # Behind a memory tier of 8 cells it is the disk tier that matters.
        cells = CELLS if tier == "memory" else 8
        return Box(root, cells=cells, max_bytes=CELLS * 256, sharing=sharing)

    alone = hit_ratio(box("alone"), 0)
    assert alone > 0.6
    assert hit_ratio(box("both"), flood) >= 0.95 * alone
    if flood == 160:
        # The same without shares: the flood washes the quiet user's blocks away.
        assert hit_ratio(box("unfair", Sharing(least_share=1.0)), flood) < 0.5 * alone


def test_a_quota_bounds_what_a_tenant_holds_on_either_tier(tmp_path):
    box = Box(tmp_path / "cache", cells=16, sharing=Sharing(quota_bytes=4 * 256))
    session = box.store.session("t", "s", epoch=1)
    for number in range(12):
        assert box.put(session, number)
        box.time += 1
        while box.store.work():
            pass
    assert len(box.files()) == 4
    assert box.store.stats().tenants["t"].blocks == 4
    other = box.store.session("u", "s", epoch=1)
    for number in range(4):
        assert box.put(other, number)
    assert box.store.stats().tenants["t"].blocks == 4


def test_a_quota_on_disk_counts_sessions_that_nobody_opened(tmp_path):
    box = Box(tmp_path / "cache", cells=16, sharing=Sharing(quota_bytes=4 * 256))
    old = box.store.session("t", "old", epoch=1)
    for number in range(3):
        box.put(old, number)
        box.time += 1
    box.restart()
    new = box.store.session("t", "new", epoch=1)
    for number in range(3):
        box.put(new, number)
    box.store.flush()
    assert len(box.files()) == 4
    assert len([path for path in box.files() if path.parts[-2] == "new"]) == 3


def test_a_conversation_leaves_from_its_end(tmp_path):
    """Stored head first and never asked for again, as most are."""
    box = Box(tmp_path / "cache", cells=8, max_bytes=8 * 256)
    first = box.store.session("t", "first", epoch=1)
    for number in range(8):
        box.put(first, number, continues=before(number))
    box.store.flush()
    second = box.store.session("t", "second", epoch=1)
    for number in range(3):
        box.put(second, number, continues=before(number))
    box.store.flush()
    names = [number.to_bytes(16, "big") for number in range(8)]
    assert first.match(names) == bytes([1] * 5 + [0] * 3)
