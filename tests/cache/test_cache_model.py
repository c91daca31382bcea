"""A store under any sequence of operations behaves like a few dictionaries."""

import shutil
import tempfile
from pathlib import Path

from cachebox import Box, name
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvrun.cache import Tier
from kvrun.cache.order import Sharing

CELLS = 4
SESSIONS = [("a", "s"), ("a", "s2"), ("b", "s")]
sessions = st.sampled_from(SESSIONS)
numbers = st.integers(0, 9)
sizes = st.sampled_from([1, 77, 200])


def sealed(key, epoch, number, size):
    seed = f"{key}{epoch}{number}.".encode()
    return (seed * (size // len(seed) + 1))[:size]


class CacheModel(RuleBasedStateMachine):
    """The model: blocks in memory (least recently used first), blocks on disk, pins."""

    @initialize(with_disk=st.booleans())
    def start(self, with_disk):
        self.folder = Path(tempfile.mkdtemp())
        # Without shares of tenants: the order of use alone.
        self.box = Box(
            self.folder / "cache" if with_disk else None,
            cells=CELLS,
            sharing=Sharing(least_share=1.0),
        )
        self.with_disk = with_disk
        self.epochs = dict.fromkeys(SESSIONS, 1)
        self.forget_memory()
        self.disk = {}

    def forget_memory(self):
        self.memory = {}
        self.waiting = {}
        self.pins = {}
        self.reserved = {}

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def session(self, key):
        return self.box.store.session(*key, epoch=self.epochs[key])

    def held(self, block):
        return block in self.waiting or self.pins.get(block, 0) > 0

    def used(self, block):
        """Pinned blocks have no place in the order of use; they get one when let go."""
        if block in self.memory and not self.held(block):
            self.memory[block] = self.memory.pop(block)

    def room(self):
        if len(self.memory) + len(self.reserved) < CELLS:
            return True
        for block in self.memory:
            if not self.held(block):
                del self.memory[block]
                return True
        return False

    @rule(key=sessions, number=numbers, size=sizes)
    def reserve(self, key, number, size):
        block = (key, number)
        known = block in self.memory or block in self.disk or block in self.reserved
        reservation = self.session(key).reserve(name(number), size)
        if known or not self.room():
            assert reservation is None
            return
        data = sealed(key, self.epochs[key], number, size)
        reservation.view[:] = data
        self.reserved[block] = (reservation, data)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), commit=st.booleans())
    def finish(self, data, commit):
        block = data.draw(st.sampled_from(list(self.reserved)))
        reservation, content = self.reserved.pop(block)
        if block[0] == "dropped":
            if commit:
                assert reservation.commit() is False
            else:
                reservation.abort()
            return
        if not commit:
            reservation.abort()
            return
        assert reservation.commit() is True
        self.memory[block] = content
        if self.with_disk and self.fits_queue(content):
            self.waiting[block] = content

    def fits_queue(self, content):
        waiting = sum(len(other) for other in self.waiting.values())
        return waiting + len(content) <= self.box.memory.slab_bytes // 2

    @rule(key=sessions, wanted=st.lists(numbers, unique=True))
    def match(self, key, wanted):
        codes = self.session(key).match([name(number) for number in wanted])
        for number, code in zip(wanted, codes, strict=True):
            block = (key, number)
            expected = Tier.DISK if block in self.disk else Tier.MISS
            assert code == (Tier.MEMORY if block in self.memory else expected)
        for number in reversed(wanted):
            self.used((key, number))

    @rule(key=sessions, number=numbers)
    def read(self, key, number):
        block = (key, number)
        found = self.box.get(self.session(key), number)
        if block in self.memory:
            assert found == (self.memory[block], Tier.MEMORY)
            self.used(block)
        elif block in self.disk:
            assert found == (self.disk[block], Tier.DISK)
            if self.room():
                self.memory[block] = self.disk[block]
        else:
            assert found is None

    @rule(key=sessions, number=numbers)
    def pin(self, key, number):
        block = (key, number)
        if block in self.memory:
            self.session(key).pin([name(number)])
            self.pins[block] = self.pins.get(block, 0) + 1

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        block = data.draw(st.sampled_from(list(self.pins)))
        self.session(block[0]).unpin([name(block[1])])
        self.pins[block] -= 1
        if not self.pins[block]:
            del self.pins[block]
            self.used(block)

    @rule()
    def persist(self):
        self.box.time += 3
        while self.box.store.work():
            pass
        # One batch goes session by session.
        order = list(dict.fromkeys(key for key, _ in self.waiting))
        for block in sorted(self.waiting, key=lambda block: order.index(block[0])):
            self.disk[block] = self.waiting.pop(block)
            self.used(block)

    @rule(key=sessions, number=numbers)
    def quarantine(self, key, number):
        block = (key, number)
        if self.held(block):
            return
        listed = block in self.memory or block in self.disk
        assert self.session(key).quarantine(name(number)) is listed
        self.memory.pop(block, None)
        self.disk.pop(block, None)

    @rule(key=sessions)
    def drop(self, key):
        for block in [b for b in self.pins if b[0] == key]:
            self.session(key).unpin([name(block[1])] * self.pins.pop(block))
        mine = {b for b in (*self.memory, *self.disk) if b[0] == key}
        report = self.session(key).drop()
        assert report.blocks == len(mine)
        assert report.disk_blocks >= sum(b in self.disk for b in mine)
        for block in mine:
            self.memory.pop(block, None)
            self.disk.pop(block, None)
            self.waiting.pop(block, None)
        mine = [b for b in self.reserved if b[0] == key]
        assert report.held == len(mine)
        for block in mine:
            late = ("dropped", key, block[1], self.epochs[key])
            self.reserved[late] = self.reserved.pop(block)
        self.epochs[key] += 1

    @precondition(lambda self: not self.reserved and not self.pins)
    @rule(clean=st.booleans())
    def restart(self, clean):
        if clean:
            self.disk.update(self.waiting)
        self.box.restart(clean=clean)
        self.forget_memory()

    @invariant()
    def accounting_is_exact(self):
        if not hasattr(self, "box"):
            return
        stats = self.box.store.stats()
        for tenant in ("a", "b"):
            mine = [content for block, content in self.memory.items() if block[0][0] == tenant]
            usage = stats.tenants.get(tenant)
            assert (usage.blocks if usage else 0) == len(mine)
            assert (usage.bytes if usage else 0) == sum(map(len, mine))
        assert stats.cells - stats.free_cells == len(self.memory) + len(self.reserved)
        if self.with_disk:
            self.box.disk.survey()
            assert len(self.box.files()) == len(self.disk)
            assert stats.disk_bytes <= sum(map(len, self.disk.values()))


TestCacheModel = CacheModel.TestCase
TestCacheModel.settings = settings(max_examples=60, stateful_step_count=40)
