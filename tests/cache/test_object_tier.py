"""The object tier: packs in Storage are written, found again, shared, merged, lost and deleted."""

import shutil
from pathlib import Path

import pytest
from cachebox import content, name
from packbox import CELL, KEYS, PREFIX, Keys, PackBox

from kvrun.cache import Tier
from kvrun.cache.object_tier import ObjectSettings
from kvrun.cache.pack import blocks_in
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
    assert box.kinds()["restored", Tier.OBJECT] == 20
    # They are in memory now.
    assert box.get(session, 3) == (content(3, CELL), Tier.MEMORY)


def test_prefetched_blocks_count_as_storage_once_and_as_memory_then(box: PackBox) -> None:
    stored(box, 1, 2, 3)
    box.restart()
    session = loaded(box)
    names = [name(number) for number in (1, 2, 3)]
    session.prefetch(names)
    with session.read(name(2)) as sealed:
        assert sealed is not None
        assert sealed.tier is Tier.OBJECT
    assert box.tiers(session, 1, 2, 3) == [Tier.OBJECT, Tier.MEMORY, Tier.OBJECT]
    eventually(lambda: box.memory.listed_blocks == 3, "all three are in memory")
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


def test_what_a_policy_takes_out_of_storage_is_gone_there_and_stays_in_memory(box: PackBox) -> None:
    stored(box, 1, 2)
    blocks, size = box.store.leave("t1", "s1", Tier.OBJECT, "residency: region_not_allowed eu")
    assert (blocks, size > 2 * CELL) == (2, True)
    assert box.packs() == []
    assert box.tiers(box.session(), 1, 2) == [Tier.MEMORY] * 2
    assert box.kinds()["evicted", Tier.OBJECT] == 2


def test_packs_of_a_session_that_nobody_opened_are_taken_away_too(box: PackBox) -> None:
    stored(box, 1, 2)
    box.restart()
    assert box.store.leave("t1", "s1", Tier.OBJECT, "residency: tier_not_allowed eu")[0] == 2
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
