"""Sessions over both tiers: what is stored is found, by its session only, until it is dropped."""

import threading

import pytest
from cachebox import CELL, Box, content, name

from kvrun.cache import CacheBusyError, CacheEventKind, SessionDroppedError, Tier
from kvrun.cache.measure import measure_index_bytes


def test_a_committed_block_is_found_and_read_back(box: Box):
    session = box.store.session("t", "s", epoch=1)
    assert box.put(session, 1)
    assert session.match([name(1), name(2)]) == bytes([Tier.MEMORY, Tier.MISS])
    assert box.get(session, 1) == (content(1), Tier.MEMORY)
    assert box.get(session, 2) is None


def test_an_uncommitted_block_is_not_found_and_its_bytes_are_zeroed(box: Box):
    session = box.store.session("t", "s", epoch=1)
    reservation = session.reserve(name(1), CELL)
    reservation.view[:] = content(1)
    assert session.match([name(1)]) == b"\0"
    reservation.abort()
    assert session.match([name(1)]) == b"\0"
    assert not any(box.memory.view(0, box.memory.cells * box.cell_bytes))
    assert box.memory.free_cells == box.cells


def test_leaving_the_context_without_commit_aborts(box: Box):
    session = box.store.session("t", "s", epoch=1)
    with session.reserve(name(1), CELL) as reservation:
        view = reservation.view
    assert session.match([name(1)]) == b"\0"
    with pytest.raises(ValueError, match="released"):
        view[0] = 1


def test_another_session_finds_nothing_under_the_same_name(box: Box):
    box.put(box.store.session("t", "s", epoch=1), 1)
    for tenant, session in (("t", "s2"), ("t2", "s")):
        other = box.store.session(tenant, session, epoch=1)
        assert other.match([name(1)]) == b"\0"
        assert box.get(other, 1) is None


def test_storing_a_name_twice_changes_nothing(box: Box):
    session = box.store.session("t", "s", epoch=1)
    first = session.reserve(name(1), CELL)
    assert session.reserve(name(1), CELL) is None
    first.view[:] = content(1)
    first.commit()
    assert session.reserve(name(1), CELL) is None
    assert box.get(session, 1) == (content(1), Tier.MEMORY)
    assert box.store.stats().counters.already_stored == 2


def test_the_least_recently_used_block_is_evicted_first(stateless: Box):
    session = stateless.store.session("t", "s", epoch=1)
    for number in range(8):
        stateless.put(session, number)
    session.match([name(0), name(1)])
    stateless.put(session, 8)
    stateless.put(session, 9)
    found = session.match([name(n) for n in range(10)])
    assert [n for n in range(10) if found[n]] == [0, 1, 4, 5, 6, 7, 8, 9]
    assert stateless.kinds() == {CacheEventKind.EVICTED: 2}


def test_the_tail_of_a_matched_prefix_is_evicted_before_its_head(stateless: Box):
    session = stateless.store.session("t", "s", epoch=1)
    for number in range(8):
        stateless.put(session, number)
    session.match([name(n) for n in range(8)])
    for number in (100, 101, 102):
        stateless.put(session, number)
    assert session.match([name(n) for n in range(8)]) == bytes([1] * 5 + [0] * 3)


def test_pinned_cells_are_never_evicted(stateless: Box):
    session = stateless.store.session("t", "s", epoch=1)
    for number in range(8):
        stateless.put(session, number)
    session.pin([name(n) for n in range(8)])
    assert session.reserve(name(50), CELL) is None
    session.unpin([name(3)])
    assert stateless.put(session, 50)
    assert session.match([name(3)]) == b"\0"
    session.unpin([name(n) for n in range(8) if n != 3])
    assert stateless.store.stats().busy_cells == 0


def test_a_block_pinned_while_on_disk_only_unpins_without_harm(box: Box):
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.restart()
    session = box.store.session("t", "s", epoch=1)
    session.pin([name(1)])
    with session.read(name(1)):
        session.pin([name(1)])
    session.unpin([name(1), name(1)])
    assert box.store.stats().busy_cells == 0
    session.unpin([name(1), name(77)])
    assert box.store.stats().busy_cells == 0


def test_a_block_being_read_survives_pressure(stateless: Box):
    session = stateless.store.session("t", "s", epoch=1)
    stateless.put(session, 0)
    with session.read(name(0)) as sealed:
        for number in range(1, 40):
            assert stateless.put(session, number)
        assert bytes(sealed.view) == content(0)


def test_accounting_per_tenant_is_exact(stateless: Box):
    first = stateless.store.session("a", "s", epoch=1)
    second = stateless.store.session("b", "s", epoch=1)
    stateless.put(first, 1, 100)
    stateless.put(first, 2, 50)
    stateless.put(second, 1, 256)
    tenants = stateless.store.stats().tenants
    assert (tenants["a"].blocks, tenants["a"].bytes) == (2, 150)
    assert (tenants["b"].blocks, tenants["b"].bytes) == (1, 256)
    first.quarantine(name(1))
    assert stateless.store.stats().tenants["a"].bytes == 50
    second.drop()
    assert set(stateless.store.stats().tenants) == {"a"}


def test_a_drop_leaves_nothing_in_memory_or_on_disk(box: Box):
    session = box.store.session("t", "s", epoch=1)
    for number in range(4):
        box.put(session, number)
    box.store.flush()
    box.put(session, 4)
    assert len(box.files()) == 4
    report = session.drop()
    assert (report.blocks, report.bytes) == (5, 5 * CELL)
    assert (report.memory_blocks, report.disk_blocks, report.held) == (5, 4, 0)
    assert box.files() == []
    assert not any(box.memory.view(0, box.memory.cells * box.cell_bytes))
    assert box.store.stats().free_cells == box.cells
    assert box.disk.used_bytes == 0
    assert session.drop() == report
    assert box.kinds()[CacheEventKind.DROPPED] == 9


def test_a_commit_after_the_drop_leaves_nothing(box: Box):
    session = box.store.session("t", "s", epoch=1)
    reservation = session.reserve(name(1), CELL)
    reservation.view[:] = content(1)
    assert session.drop().held == 1
    assert reservation.commit() is False
    box.store.flush()
    assert session.match([name(1)]) == b"\0"
    assert session.reserve(name(2), CELL) is None
    assert not any(box.memory.view(0, box.memory.cells * box.cell_bytes))
    assert box.files() == []


def test_a_drop_during_a_read_frees_and_zeroes_the_cell_afterwards(box: Box):
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    with session.read(name(1)) as sealed:
        assert session.drop().held == 1
        assert bytes(sealed.view) == content(1)
    assert not any(box.memory.view(0, box.memory.cells * box.cell_bytes))
    assert box.store.stats().free_cells == box.cells


def test_a_drop_while_its_block_is_being_written_leaves_no_file(box: Box):
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    write = box.disk.folder.write

    def slow(*arguments):
        dropper = threading.Thread(target=session.drop)
        dropper.start()
        write(*arguments)
        slow.dropper = dropper

    box.disk.folder.write = slow
    box.store.flush()
    slow.dropper.join(10)
    assert not slow.dropper.is_alive()
    assert box.files() == []
    assert box.store.stats().free_cells == box.cells


def test_a_drop_just_before_the_write_leaves_no_file(box: Box):
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    survey = box.disk.survey

    def drop_first():
        survey()
        session.drop()

    box.disk.survey = drop_first
    box.store.flush()
    assert not (box.root / "kv" / "t").exists()
    assert box.files() == []
    assert box.disk.used_bytes == 0
    assert box.store.stats().disk_available
    assert box.store.stats().free_cells == box.cells


def test_a_dropped_epoch_cannot_be_opened_again_but_a_higher_one_starts_empty(box: Box):
    session = box.store.session("t", "s", epoch=3)
    box.put(session, 1)
    box.store.flush()
    session.drop()
    for epoch in (1, 3):
        with pytest.raises(SessionDroppedError):
            box.store.session("t", "s", epoch=epoch)
    fresh = box.store.session("t", "s", epoch=4)
    assert fresh.match([name(1)]) == b"\0"
    assert box.put(fresh, 1)


def test_a_higher_epoch_drops_what_the_lower_one_stored(box: Box):
    old = box.store.session("t", "s", epoch=1)
    box.put(old, 1)
    box.store.flush()
    new = box.store.session("t", "s", epoch=2)
    assert new is box.store.session("t", "s", epoch=2)
    assert new.match([name(1)]) == b"\0"
    assert old.match([name(1)]) == b"\0"
    assert box.files() == []
    with pytest.raises(SessionDroppedError):
        box.store.session("t", "s", epoch=1)


def test_sessions_nobody_opened_are_dropped_too(box: Box):
    for session_ref in ("s1", "s2"):
        box.put(box.store.session("t", session_ref, epoch=1), 1)
    box.put(box.store.session("other", "s1", epoch=1), 1)
    box.restart()
    report = box.store.drop("t", "s1")
    assert (report.blocks, report.bytes) == (1, CELL)
    assert box.store.drop("t", "s2").disk_blocks == 1
    assert [path.parts[-3] for path in box.files()] == ["other"]
    assert box.store.drop("nobody", "s1").blocks == 0


def test_quarantine_takes_a_block_out_of_every_tier_and_it_can_be_stored_again(box: Box):
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    box.store.flush()
    with session.read(name(1)):
        assert session.quarantine(name(1))
    assert session.match([name(1)]) == b"\0"
    assert box.files() == []
    assert len(box.files("quarantine")) == 1
    assert not session.quarantine(name(1))
    assert box.put(session, 1)
    box.store.flush()
    assert len(box.files()) == 1
    session.drop()
    assert box.files("quarantine") == []


def test_the_same_cell_size_keeps_the_content_and_another_one_persists_then_empties_it(box: Box):
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    assert box.store.carve(box.cell_bytes) is True
    assert session.match([name(1)]) == bytes([Tier.MEMORY])
    assert box.store.carve(1024) is False
    assert box.memory.cells == 4
    assert session.match([name(1)]) == bytes([Tier.DISK])
    assert box.get(session, 1) == (content(1), Tier.DISK)
    assert box.store.stats().tenants["t"].blocks == 1


def test_cells_in_use_are_not_carved_away(stateless: Box):
    session = stateless.store.session("t", "s", epoch=1)
    stateless.put(session, 1)
    with session.read(name(1)) as sealed:
        with pytest.raises(CacheBusyError):
            stateless.store.carve(1024)
        assert bytes(sealed.view) == content(1)
    assert stateless.store.carve(1024) is False
    assert session.match([name(1)]) == b"\0"


def test_a_block_that_no_cell_holds_is_refused_by_name(box: Box):
    session = box.store.session("t", "s", epoch=1)
    with pytest.raises(ValueError, match="a cell holds"):
        session.reserve(name(1), box.cell_bytes + 1)
    with pytest.raises(ValueError, match="16 bytes"):
        session.reserve(b"short", CELL)
    for bad in ("../x", "", "a/b", "x" * 129):
        with pytest.raises(ValueError, match="not a reference"):
            box.store.session(bad, "s", epoch=1)


def test_a_failing_listener_never_reaches_the_cache(stateless: Box):
    session = stateless.store.session("t", "s", epoch=1)

    def fail(event):
        raise RuntimeError("log is gone")

    stateless.store._state._on_event = fail
    stateless.put(session, 1)
    session.drop()
    assert stateless.store.stats().counters.events_failed == 1


def test_concurrent_readers_always_see_what_was_stored_under_the_name(tmp_path):
    box = Box(tmp_path / "cache", cells=16, max_bytes=64 * CELL)
    store = box.store
    wrong: list[str] = []
    found = [0]
    stop = threading.Event()

    def worker(seed: int) -> None:
        state = seed
        try:
            for _ in range(1200):
                state = (state * 1103515245 + 12345) % 2**31
                number, action = (state >> 8) % 48, (state >> 16) % 20
                session = store.session(f"t{number % 3}", "s", epoch=1)
                if action < 9:
                    box.put(session, number)
                elif action < 10:
                    session.quarantine(name(number))
                elif action < 12:
                    session.pin([name(number)])
                    session.match([name(number)])
                    session.unpin([name(number)])
                else:
                    with session.read(name(number)) as sealed:
                        if sealed is not None:
                            found[0] += 1
                            if bytes(sealed.view) != content(number):
                                wrong.append(f"{number} from {sealed.tier}")
        except BaseException as error:
            wrong.append(repr(error))

    def writer() -> None:
        while not stop.is_set():
            box.time += 1
            store.work()

    threads = [threading.Thread(target=worker, args=(seed,)) for seed in (1, 2, 3, 4)]
    background = threading.Thread(target=writer)
    background.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    background.join()
    assert wrong == []
    assert found[0] > 100
    store.flush()
    stats = store.stats()
    assert stats.busy_cells == 0
    assert sum(usage.blocks for usage in stats.tenants.values()) == stats.cells - stats.free_cells
    assert stats.disk_bytes == sum(path.stat().st_size for path in box.files()) <= 64 * CELL


def test_the_index_takes_at_most_250_bytes_a_block_in_both_tiers():
    # Just after the dictionary doubled, its worst moment.
    assert 100 < measure_index_bytes(22_000) <= 250
