"""The object tier: packs in Storage are written, found again, shared, merged, lost and deleted."""

import shutil
import threading
from pathlib import Path

import pytest
from cachebox import TierGate, content, name
from packbox import CELL, KEYS, PREFIX, Keys, PackBox

from kvrun.cache import CacheEventKind, Tier, fetching
from kvrun.cache.object_tier import ObjectSettings, ObjectTier
from kvrun.cache.pack import blocks_in
from kvrun.cache.placement import Basis
from kvrun.storage import Storage, StorageError, open_storage
from support.client import eventually


@pytest.fixture
def box(tmp_path: Path) -> PackBox:
    return PackBox(tmp_path / "bucket")


def loaded(box: PackBox, session_ref: str = "s1", keys: Keys = KEYS):
    session = box.session(keys, session_ref)
    assert session.packs is not None
    assert session.packs.loaded
    return session


def stored(box: PackBox, *numbers: int) -> None:
    session = loaded(box)
    assert box.put(session, *numbers) == len(numbers)
    assert box.store.flush()


def test_blocks_come_back_from_storage_alone_after_a_restart(box: PackBox) -> None:
    stored(box, *range(20))
    assert box.kinds()["persisted", Tier.OBJECT] == 20
    assert len(box.packs()) == 2  # 16 blocks are the size of a pack
    box.restart()
    session = loaded(box)
    assert box.tiers(session, *range(21)) == [Tier.OBJECT] * 20 + [Tier.MISS]
    for number in range(20):
        assert box.get(session, number) == (content(number, CELL), Tier.OBJECT)
    eventually(lambda: box.kinds().get(("restored", Tier.OBJECT)) == 20, "all are kept")
    # They are in memory now.
    assert box.get(session, 3) == (content(3, CELL), Tier.MEMORY)


def test_a_block_from_storage_is_restored_where_memory_keeps_it(box: PackBox) -> None:
    stored(box, 1)
    box.restart()
    session = loaded(box)
    box.store._state.gate = TierGate(refused=Tier.MEMORY)
    assert box.get(session, 1) == (content(1, CELL), Tier.OBJECT)
    fetcher = box.store._fetcher
    assert fetcher is not None
    eventually(lambda: not fetcher._under_way, "what came is let go of")
    assert box.memory.listed_blocks == 0
    assert ("restored", Tier.OBJECT) not in box.kinds()
    box.store._state.gate = TierGate()
    assert box.get(session, 1) == (content(1, CELL), Tier.OBJECT)
    eventually(lambda: box.kinds().get(("restored", Tier.OBJECT)) == 1, "memory keeps it")
    assert box.memory.listed_blocks == 1
    (event,) = [event for event in box.events if event.kind is CacheEventKind.RESTORED]
    assert (event.reason, event.revision) == ("residency: allowed memory", "r1")
    assert box.store.stats().counters.restored == 2


def test_prefetched_blocks_count_as_storage_once_and_as_memory_then(box: PackBox) -> None:
    stored(box, 1, 2, 3)
    box.restart()
    session = loaded(box)
    names = [name(number) for number in (1, 2, 3)]
    session.prefetch(names)
    with session.read(name(2)) as sealed:
        assert sealed is not None
        assert sealed.tier is Tier.OBJECT
    eventually(lambda: box.memory.listed_blocks == 3, "all three are in memory")
    assert box.tiers(session, 1, 2, 3) == [Tier.OBJECT, Tier.MEMORY, Tier.OBJECT]
    # One look at the pack's end, all of it where it is small, and one request for the blocks.
    assert box.objects.counters.bytes_read == box.packs()[0].stat().st_size + 3 * CELL


def test_a_pack_is_written_by_size_by_age_and_when_the_daemon_stops(box: PackBox) -> None:
    session = loaded(box)
    box.put(session, *range(17))
    assert box.store.work() == 16
    assert box.store.work() == 0
    box.advance(11)
    assert box.store.work() == 1
    box.put(session, 20)
    box.store.close()
    assert sorted(blocks_in(path.name) for path in box.packs()) == [1, 1, 16]


def test_a_session_without_a_request_has_its_pack_written_soon(box: PackBox) -> None:
    session = loaded(box)
    session.begin(1)
    session.begin(2)
    box.put(session, 1)
    session.end(1)
    box.advance(3)
    assert box.store.work() == 0, "another request is under way"
    session.end(2)
    assert box.store.work() == 0, "what the last one computed is still being sealed"
    box.advance(1)
    box.put(session, 2)
    box.advance(1.5)
    assert box.store.work() == 0
    box.advance(1)
    assert box.store.work() == 2
    assert [blocks_in(path.name) for path in box.packs()] == [2]
    # A request that begins meanwhile makes it wait for the age again.
    box.put(session, 3)
    session.begin(3)
    session.end(2)
    box.advance(5)
    assert box.store.work() == 0
    box.advance(5)
    assert box.store.work() == 1


def test_a_block_is_handed_out_of_the_buffer_it_came_in_before_a_cell_holds_it(
    box: PackBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(box, 1, 2)
    box.restart()
    session = loaded(box)
    keep, may_copy = session.keep_fetched, threading.Event()

    def keep_later(block: bytes, packed: int, data: memoryview) -> bool:
        return may_copy.wait(20) and keep(block, packed, data)

    monkeypatch.setattr(session, "keep_fetched", keep_later)
    assert box.get(session, 1) == (content(1, CELL), Tier.OBJECT)
    assert box.memory.listed_blocks == 0
    may_copy.set()
    eventually(lambda: box.memory.listed_blocks == 1, "the copy for those who come later")
    # It counted as found in Storage once.
    assert box.get(session, 1) == (content(1, CELL), Tier.MEMORY)


def test_a_block_that_finds_memory_ready_is_in_its_cell_at_once(
    box: PackBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 3600)  # nothing is copied later
    stored(box, *range(4))
    box.restart()
    while box.memory.make_ready():
        pass
    session = loaded(box)
    assert box.get(session, 1) == (content(1, CELL), Tier.OBJECT)
    assert box.memory.listed_blocks >= 1
    assert box.get(session, 1) == (content(1, CELL), Tier.MEMORY)
    assert box.kinds()["restored", Tier.OBJECT] >= 1
    box.store.close()


def test_a_copy_into_memory_is_done_before_that_is_closed_and_none_begins_later(
    box: PackBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(box, 1, 2)
    box.restart()
    while box.memory.make_ready():
        pass
    session = loaded(box)
    keep, close = session.keep_fetched, box.memory.close
    began, closed = threading.Event(), threading.Event()
    order: list[str] = []

    def keep_late(block: bytes, packed: int, data: memoryview) -> bool:
        began.set()
        closed.wait(0.5)
        order.append("kept")
        return keep(block, packed, data)

    def note_close() -> None:
        order.append("closed")
        close()
        closed.set()

    monkeypatch.setattr(session, "keep_fetched", keep_late)
    monkeypatch.setattr(box.memory, "close", note_close)
    session.prefetch([name(1), name(2)])  # neighbours: one request
    assert began.wait(20)
    box.store.close()
    box.objects.readers.shutdown()
    assert order.index("closed") == len(order) - 1


def test_of_neighbours_those_without_ready_memory_are_copied_later(
    box: PackBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(box, *range(4))
    box.restart()
    while box.memory.make_ready():
        pass
    session = loaded(box)
    monkeypatch.setattr(session, "following", lambda names, limit: [])
    ready = box.memory.ready_bytes // CELL
    assert box.put(session, *range(100, 100 + ready - 2)) == ready - 2
    may_copy, keep = threading.Event(), session.keep_fetched

    def keep_later(block: bytes, packed: int, data: memoryview) -> bool:
        return (box.memory.is_ready or may_copy.wait(20)) and keep(block, packed, data)

    monkeypatch.setattr(session, "keep_fetched", keep_later)
    session.prefetch([name(number) for number in range(4)])
    for number in range(4):
        assert box.get(session, number) == (content(number, CELL), Tier.OBJECT)
    assert box.memory.listed_blocks == ready
    may_copy.set()
    eventually(lambda: box.memory.listed_blocks == ready + 2, "the other two")


def test_a_fetch_that_cannot_be_noted_is_a_miss_and_holds_nobody_up(
    box: PackBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(box, 1, 2)
    box.restart()
    session = loaded(box)

    def refuse(blocks: int) -> None:
        raise RuntimeError("nobody takes the event")

    with monkeypatch.context() as patched:
        patched.setattr(session, "note_fetched", refuse)
        assert box.get(session, 1) is None
    assert box.get(session, 1) == (content(1, CELL), Tier.OBJECT)
    eventually(lambda: box.memory.listed_blocks == 1, "the thread that copies goes on")
    box.store.close()


def test_copies_into_memory_wait_for_the_requests_that_were_made_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ObjectSettings(pack_bytes=16 * CELL, load_wait_s=20, fetch_wait_s=20, threads=1)
    box = PackBox(tmp_path / "bucket", settings=settings)
    stored(box, *range(5))
    box.restart()
    session = loaded(box)
    read, keep, asked = session.packs.read, session.keep_fetched, threading.Event()
    order: list[str] = []

    def read_when_asked(pack: str, start: int, size: int) -> memoryview:
        assert asked.wait(20)
        order.append("read")
        return read(pack, start, size)

    def note_keep(block: bytes, packed: int, data: memoryview) -> bool:
        order.append("keep")
        return keep(block, packed, data)

    monkeypatch.setattr(session.packs, "read", read_when_asked)
    monkeypatch.setattr(session, "keep_fetched", note_keep)
    monkeypatch.setattr(session, "following", lambda names, limit: [])
    session.prefetch([name(number) for number in (0, 2, 4)])  # no neighbours: a request each
    asked.set()
    eventually(lambda: box.memory.listed_blocks == 3, "all three are in memory")
    assert order == ["read"] * 3 + ["keep"] * 3


def test_copies_into_memory_wait_while_blocks_are_asked_for_until_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 3600)  # somebody asked just now, all the time
    settings = ObjectSettings(
        pack_bytes=16 * CELL, load_wait_s=20, fetch_wait_s=20, fetch_bytes=4 * CELL
    )
    box = PackBox(tmp_path / "bucket", settings=settings)
    stored(box, *range(5))
    box.restart()
    session = loaded(box)
    kept: list[bytes] = []
    keep = session.keep_fetched

    def note_keep(block: bytes, packed: int, data: memoryview) -> bool:
        kept.append(block)
        return keep(block, packed, data)

    monkeypatch.setattr(session, "keep_fetched", note_keep)
    for number in (0, 2, 4):  # no neighbours: a request each
        assert not kept
        assert box.get(session, number) == (content(number, CELL), Tier.OBJECT)
    eventually(lambda: box.memory.listed_blocks == 1, "the third is more than may wait")
    assert kept == [name(0)]
    box.store.close()


def test_the_first_blocks_that_a_session_asks_for_bring_what_was_packed_after_them(
    box: PackBox,
) -> None:
    stored(box, *range(48))  # three packs
    box.restart()
    session = loaded(box)
    session.prefetch([name(number) for number in range(4, 20)])
    eventually(lambda: box.memory.listed_blocks == 44, "the rest of the second pack and the third")
    # Only once: who comes back for more asks for it.
    assert session.quarantine(name(40))
    session.prefetch([name(0)])
    eventually(lambda: box.memory.listed_blocks == 44, "what was asked for")
    assert box.tiers(session, 1, 2, 3, 40) == [Tier.OBJECT] * 3 + [Tier.MISS]


def test_what_is_brought_ahead_displaces_nothing_and_is_bounded(tmp_path: Path) -> None:
    stored(PackBox(tmp_path / "bucket"), *range(48))
    session = loaded(PackBox(tmp_path / "bucket", cells=64))
    assert [n for n, _ in session.following([name(0)], 5 * CELL)] == [name(n) for n in range(1, 6)]
    assert len(session.following([name(0)], 1 << 30)) == 32, "half of what is free"
    assert session.following([name(47)], 1 << 30) == []
    assert session.following([name(99)], 1 << 30) == []


def test_what_another_instance_wrote_is_found_and_not_written_twice(tmp_path: Path) -> None:
    one, two = PackBox(tmp_path / "bucket"), PackBox(tmp_path / "bucket")
    mine, its = loaded(one), loaded(two)
    one.put(mine, 1, 2)
    two.put(its, 2, 3)
    assert one.store.flush()
    # Both sealed block 2 before either could know: two packs hold it, which does no harm.
    assert two.store.flush()
    assert len(one.packs()) == 2
    for box in (one, two):
        box.advance(31)
        session = loaded(box)
        session.packs.load()
        assert box.get(session, 1) is not None
        assert box.get(session, 3) is not None
        assert box.put(session, 1, 2, 3) == 0
    third = PackBox(tmp_path / "bucket")
    assert third.put(loaded(third), 1, 2, 3) == 0
    assert third.store.flush()
    assert len(third.packs()) == 2


def test_many_small_packs_become_one_and_a_reader_beside_it_only_misses(tmp_path: Path) -> None:
    box = PackBox(tmp_path / "bucket")
    beside = PackBox(tmp_path / "bucket")
    for number in range(7):
        stored(box, number)
    reader = loaded(beside)
    assert beside.tiers(reader, *range(7)) == [Tier.OBJECT] * 7
    stored(box, 7)
    assert [blocks_in(path.name) for path in box.packs()] == [8]
    assert box.objects.counters.compactions == 1
    writer = loaded(box)
    assert box.tiers(writer, *range(8)) == [Tier.MEMORY] * 8
    # The packs that the other one knows are gone: misses, and then it looks again.
    assert beside.get(reader, 0) is None
    assert beside.tiers(reader, 0) == [Tier.MISS]
    reader.packs.load()
    for number in range(8):
        assert beside.get(reader, number) == (content(number, CELL), Tier.OBJECT)
    # And nothing was lost for whoever comes next.
    late = PackBox(tmp_path / "bucket")
    assert late.tiers(loaded(late), *range(8)) == [Tier.OBJECT] * 8


def test_a_pack_whose_blocks_are_mostly_dead_is_written_anew_without_them(box: PackBox) -> None:
    stored(box, *range(10))
    session = loaded(box)
    (before,) = box.packs()
    for number in range(7):
        assert session.quarantine(name(number))
    assert session.packs is not None
    assert session.packs.merge()
    (after,) = box.packs()
    assert after != before
    assert blocks_in(after.name) == 3
    box.restart()
    assert box.tiers(loaded(box), *range(10)) == [Tier.MISS] * 7 + [Tier.OBJECT] * 3


def test_a_half_a_foreign_and_a_renamed_pack_are_never_used(box: PackBox) -> None:
    stored(box, 1)
    box.store.close()
    (pack,) = box.packs()
    whole, place = pack.read_bytes(), pack.parent
    pack.write_bytes(whole[:-1])
    (place / f"{'1' * 32}-1.kvp").write_bytes(whole)  # bound to its own name
    (place / f"{'2' * 32}-1.kvp").write_bytes(b"")
    (place / f"{'3' * 32}-1.kvp").write_bytes(bytes(5000))
    (place / "notes.txt").write_bytes(b"not a pack")
    changed = bytearray(whole)
    changed[-60] ^= 1
    (place / f"{'4' * 32}-1.kvp").write_bytes(changed)
    box.start()
    session = loaded(box)
    assert box.tiers(session, 1) == [Tier.MISS]
    assert box.objects.counters.refused_packs == 5
    assert box.objects.available


def test_another_deployments_keys_open_no_index(tmp_path: Path) -> None:
    box = PackBox(tmp_path / "bucket")
    stored(box, 1, 2)
    thief = PackBox(tmp_path / "bucket")
    session = loaded(thief, keys=Keys(seed=2))
    assert thief.tiers(session, 1, 2) == [Tier.MISS] * 2
    assert thief.objects.counters.refused_packs == 1


def test_a_block_changed_in_storage_is_handed_out_once_and_then_taken_out(box: PackBox) -> None:
    stored(box, 1, 2)
    box.store.close()
    (pack,) = box.packs()
    data = bytearray(pack.read_bytes())
    data[10] ^= 1
    pack.write_bytes(data)
    box.start()
    session = loaded(box)
    # The index is whole; that the block is not shows when it is opened, by whoever has the keys.
    found = box.get(session, 1)
    assert found is not None
    assert found[0] != content(1, CELL)
    assert session.quarantine(name(1))
    assert box.kinds()["quarantined", Tier.OBJECT] == 1
    assert box.tiers(session, 1, 2) == [Tier.MISS, Tier.OBJECT]
    # It is stored again, and the new one counts from then on.
    box.advance(1)
    assert box.put(session, 1) == 1
    assert box.store.flush()
    box.restart()
    assert box.get(loaded(box), 1) == (content(1, CELL), Tier.OBJECT)


def test_the_packs_of_another_model_are_not_used_and_go_after_a_day(box: PackBox) -> None:
    session = loaded(box, keys=Keys(fingerprint=b"o" * 32))
    box.put(session, 1)
    assert box.store.flush()
    box.restart()
    assert box.tiers(loaded(box), 1) == [Tier.MISS]
    assert len(box.packs()) == 1
    box.restart()
    box.advance(25 * 3600)
    assert box.tiers(loaded(box), 1) == [Tier.MISS]
    assert box.packs() == []
    box.store.deliver_events()
    (event,) = [event for event in box.events if event.kind is CacheEventKind.EVICTED]
    assert (event.tier, event.blocks, event.reason) == (Tier.OBJECT, 1, "another model")


def test_a_drop_deletes_the_packs_also_of_a_session_that_nobody_opened(box: PackBox) -> None:
    for session_ref in ("s1", "s2"):
        session = box.session(session_ref=session_ref)
        box.put(session, 1, 2)
        assert box.store.flush()
    first = box.session(session_ref="s1")
    dropped = first.drop()
    assert (dropped.object_blocks, dropped.object_failed) == (2, 0)
    box.restart()
    assert box.store.measure("t1", "s2").object_blocks == 0
    held = box.store.measure("t1", "s2", ask=True)
    assert (held.object_blocks, held.object_bytes) == (2, box.packs()[0].stat().st_size)
    assert box.store.session_refs({"t1"}) == [("t1", "s2")]
    dropped = box.store.drop("t1", "s2", epoch=1)
    assert (dropped.object_blocks, dropped.object_failed) == (2, 0)
    assert box.packs() == []


def test_an_odd_folder_in_the_bucket_keeps_no_session_from_being_found(box: PackBox) -> None:
    box.put(box.session(), 1)
    assert box.store.flush()
    (pack,) = box.packs()
    kv = pack.parents[2]
    for odd in (kv / "a=b" / "s1", kv / "t1" / "c=d"):
        odd.mkdir(parents=True)
        (odd / pack.name).write_bytes(pack.read_bytes())
    box.restart()
    assert box.store.session_refs() == box.store.session_refs({"t1"}) == [("t1", "s1")]


def test_the_index_is_counted_and_forgotten_with_its_session(box: PackBox) -> None:
    stored(box, *range(5))
    levels = box.store.levels()
    assert (levels.object_blocks, levels.object_bytes) == (5, 5 * CELL)
    box.session().drop()
    levels = box.store.levels()
    assert (levels.object_blocks, levels.object_bytes) == (0, 0)


def test_without_permission_nothing_is_written_and_with_it_all_of_it_is(box: PackBox) -> None:
    box.gate.allowed = False
    stored(box, 1, 2)
    assert box.packs() == []
    assert box.kinds()["persist_denied", Tier.OBJECT] == 2
    box.gate.allowed = True
    box.session()
    assert box.store.flush()
    assert [blocks_in(path.name) for path in box.packs()] == [2]


def test_a_pack_is_persisted_by_the_revision_that_let_it_stay(
    box: PackBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, comes = ObjectTier.write, TierGate("r2")

    def slow(tier: ObjectTier, *arguments: object) -> None:
        """Another revision comes meanwhile."""
        write(tier, *arguments)  # type: ignore[arg-type]
        box.store._state.gate = comes

    monkeypatch.setattr(ObjectTier, "write", slow)
    box.store._state.gate = TierGate("r1")
    stored(box, 1, 2)

    def recorded(kind: CacheEventKind) -> list[tuple[int, str, str]]:
        box.store.deliver_events()
        return [(e.blocks, e.reason, e.revision) for e in box.events
                if e.kind is kind and e.tier is Tier.OBJECT]  # fmt: skip

    persisted = [(2, "residency: allowed object", "r2")]
    assert recorded(CacheEventKind.PERSISTED) == persisted
    comes = TierGate("r3", refused=Tier.OBJECT)
    stored(box, 3)
    assert recorded(CacheEventKind.PERSISTED) == persisted
    assert [blocks_in(path.name) for path in box.packs()] == [2], "what was just written left"
    why = Basis("residency: tier_not_allowed eu", "r3")
    assert box.store.leave("t1", "s1", {Tier.OBJECT: why})[Tier.OBJECT][0] == 2
    assert recorded(CacheEventKind.EVICTED) == [(2, *why)], "the sweep says what it took away"


def test_what_a_policy_takes_out_of_storage_is_gone_there_and_stays_in_memory(box: PackBox) -> None:
    stored(box, 1, 2)
    why = {Tier.OBJECT: Basis("residency: region_not_allowed eu", "r1")}
    blocks, size = box.store.leave("t1", "s1", why)[Tier.OBJECT]
    assert (blocks, size > 2 * CELL) == (2, True)
    assert box.packs() == []
    assert box.tiers(box.session(), 1, 2) == [Tier.MEMORY] * 2
    assert box.kinds()["evicted", Tier.OBJECT] == 2


def test_packs_of_a_session_that_nobody_opened_are_taken_away_too(box: PackBox) -> None:
    stored(box, 1, 2)
    box.restart()
    why = dict.fromkeys((Tier.MEMORY, Tier.DISK, Tier.OBJECT), Basis("residency: no_policy"))
    left = box.store.leave("t1", "s1", why)
    assert [left[tier][0] for tier in why] == [0, 0, 2]
    assert box.packs() == []
    assert box.tiers(loaded(box), 1, 2) == [Tier.MISS] * 2


def test_what_is_on_disk_alone_is_packed_too(tmp_path: Path) -> None:
    away = PackBox(tmp_path / "none", disk=tmp_path / "disk")
    session = away.session()
    away.put(session, *range(5))
    assert away.store.flush()
    away.store.close()
    shutil.rmtree(tmp_path / "none")
    box = PackBox(tmp_path / "bucket", disk=tmp_path / "disk")
    session = loaded(box)
    session.offer_unpacked()
    assert box.store.flush()
    box.store.close()
    fresh = PackBox(tmp_path / "bucket")
    session = loaded(fresh)
    for number in range(5):
        assert fresh.get(session, number) == (content(number, CELL), Tier.OBJECT)


class Moody(Storage):
    """A folder that refuses what ``refuses`` names."""

    def __init__(self, folder: Path) -> None:
        self._inner = open_storage(f"file://{folder}")
        super().__init__(self._inner._store, "moody")
        self.refuses: set[str] = set()
        self.calls = 0

    def _check(self, what: str) -> None:
        self.calls += 1
        if what in self.refuses:
            raise StorageError(f"no {what} today")

    def create(self, name, data):
        self._check("create")
        self._inner.create(name, data)

    def get_part(self, name, offset, size_bytes):
        self._check("get")
        return self._inner.get_part(name, offset, size_bytes)

    def list(self, folder):
        self._check("list")
        return self._inner.list(folder)

    def find(self, name):
        self._check("find")
        return self._inner.find(name)

    def delete(self, name):
        self._check("delete")
        self._inner.delete(name)


@pytest.fixture
def moody(tmp_path: Path) -> tuple[PackBox, Moody]:
    storage = Moody(tmp_path / "bucket")
    settings = ObjectSettings(pack_bytes=16 * CELL, load_wait_s=20, fetch_wait_s=5)
    box = PackBox(
        tmp_path / "bucket",
        storage=storage,
        settings=settings,
        undeleted=tmp_path / "erasure" / "undeleted.json",
    )
    return box, storage


def test_a_store_that_is_away_costs_misses_and_what_came_meanwhile_is_written_after(
    moody: tuple[PackBox, Moody],
) -> None:
    box, storage = moody
    stored(box, 1)
    session = loaded(box)
    storage.refuses = {"create", "get", "list", "find"}
    box.put(session, 2)
    assert box.store.flush()
    assert not box.objects.available
    assert box.kinds()["persist_skipped", Tier.OBJECT] == 1
    assert box.put(session, 3) == 1
    calls = storage.calls
    # Off: nothing is asked, what is in memory is there, and what is in Storage alone is a miss.
    assert box.tiers(session, 1, 2, 3) == [Tier.MEMORY] * 3
    assert storage.calls == calls
    storage.refuses.clear()
    box.advance(300)
    box.store.deliver_events()
    assert box.objects.probe()
    assert box.store.flush()
    assert ("objects_unavailable", Tier.OBJECT) in box.kinds()
    assert ("objects_available", Tier.OBJECT) in box.kinds()
    box.restart()
    assert box.tiers(loaded(box), 1, 2, 3) == [Tier.OBJECT] * 3


def test_a_block_that_cannot_be_fetched_is_a_miss_and_can_be_stored_again(
    moody: tuple[PackBox, Moody],
) -> None:
    box, storage = moody
    stored(box, 1)
    box.restart()
    session = loaded(box)
    storage.refuses = {"get"}
    assert box.get(session, 1) is None
    assert box.tiers(session, 1) == [Tier.MISS]
    assert box.put(session, 1) == 1
    assert box.get(session, 1) == (content(1, CELL), Tier.MEMORY)


def test_packs_that_could_not_be_deleted_are_deleted_later_also_after_a_restart(
    moody: tuple[PackBox, Moody],
) -> None:
    box, storage = moody
    stored(box, 1, 2)
    storage.refuses = {"delete"}
    dropped = box.session().drop()
    assert dropped.object_failed == 1
    assert len(box.packs()) == 1
    assert box.store.levels().undeleted == 1
    box.restart()
    assert box.objects.retry_deletions() == 1
    storage.refuses.clear()
    box.advance(300)
    assert box.objects.retry_deletions() == 0
    assert box.packs() == []
    box.restart()
    assert box.store.levels().undeleted == 0


NOT_THERE = {Tier.OBJECT: Basis("residency: region_not_allowed eu", "r2")}


@pytest.mark.parametrize("refused", ["delete", "list"])
@pytest.mark.parametrize("opened", [True, False])
def test_what_could_not_leave_goes_later_and_what_a_looser_policy_let_in_since_stays(
    moody: tuple[PackBox, Moody], refused: str, opened: bool
) -> None:
    box, storage = moody
    stored(box, 1, 2)
    before = set(box.packs())
    if not opened:
        box.restart()
    storage.refuses = {refused}
    box.store.leave("t1", "s1", NOT_THERE)
    assert set(box.packs()) == before
    remembered = opened or refused == "delete"  # else the sweep has to look again, and does
    assert box.store.levels().undeleted == remembered
    storage.refuses.clear()
    box.advance(300)
    box.restart()
    stored(box, 3, 4)
    since = set(box.packs()) - before
    assert since
    assert box.objects.retry_deletions() == 0
    assert set(box.packs()) == since if remembered else since | before
    box.restart()
    assert box.store.levels().undeleted == 0
    assert box.get(loaded(box), 3) == (content(3, CELL), Tier.OBJECT)


def test_the_packs_of_a_session_that_ended_meanwhile_all_go(
    moody: tuple[PackBox, Moody],
) -> None:
    box, storage = moody
    stored(box, 1)
    storage.refuses = {"delete"}
    box.store.leave("t1", "s1", NOT_THERE)
    storage.refuses.clear()
    box.advance(300)
    stored(box, 2)
    storage.refuses = {"delete"}
    box.session().drop()
    box.store.leave("t1", "s1", NOT_THERE)
    storage.refuses.clear()
    box.advance(300)
    box.restart()
    assert box.objects.retry_deletions() == 0
    assert box.packs() == []


def test_a_pack_that_was_being_written_while_its_session_was_dropped_does_not_stay(
    moody: tuple[PackBox, Moody],
) -> None:
    box, storage = moody
    session = loaded(box)
    box.put(session, 1)

    def dropping(name, data, create=storage._inner.create):
        create(name, data)
        report = session.drop()
        assert report.object_blocks == 1

    storage._inner.create = dropping
    assert box.store.flush()
    assert box.packs() == []
    assert box.store.levels().undeleted == 0
    assert box.memory.listed_blocks == 0


def test_a_full_queue_leaves_blocks_out_instead_of_holding_memory(tmp_path: Path) -> None:
    settings = ObjectSettings(pack_bytes=64 * CELL, queue_bytes=4 * CELL, load_wait_s=20)
    box = PackBox(tmp_path / "bucket", settings=settings)
    session = loaded(box)
    assert box.put(session, *range(10)) == 10
    assert box.store.levels().object_waiting_bytes == 4 * CELL
    assert box.kinds()["persist_skipped", Tier.OBJECT] == 6
    assert box.store.flush()
    # The rest is queued when there is room again.
    box.session()
    assert box.store.flush()
    assert sum(blocks_in(path.name) or 0 for path in box.packs()) >= 8


def test_the_bucket_shows_random_names_in_the_sessions_folder_and_no_text(box: PackBox) -> None:
    stored(box, 1, 2)
    (pack,) = box.packs()
    assert pack.relative_to(box.bucket).parent.as_posix() == f"{PREFIX}/kv/t1/s1"
    data = pack.read_bytes()
    for secret in (b"alice", b"chat", b"d-1", name(1), KEYS.fingerprint):
        assert secret not in data
