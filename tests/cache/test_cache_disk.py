"""The disk tier: what it keeps over a restart, what it refuses, and how it fails."""

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cachebox import CELL, Box, content, name

from kvrun.cache import (
    CacheEventKind,
    CacheFolderError,
    CacheStore,
    DiskTier,
    MemoryTier,
    Tier,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_blocks_survive_a_clean_restart_and_come_back_to_memory(box: Box):
    session = box.store.session("t", "s", epoch=1)
    for number in range(3):
        box.put(session, number)
    box.restart()
    session = box.store.session("t", "s", epoch=1)
    assert session.match([name(n) for n in range(4)]) == bytes([Tier.DISK] * 3 + [Tier.MISS])
    assert box.get(session, 1) == (content(1), Tier.DISK)
    assert box.get(session, 1) == (content(1), Tier.MEMORY)
    assert box.kinds()[CacheEventKind.RESTORED] == 1


def test_blocks_are_written_once_stores_pause_and_not_before(tmp_path: Path):
    box = Box(tmp_path / "cache", cells=256)
    session = box.store.session("t", "s", epoch=1)
    for number in (1, 2, 3):
        box.put(session, number)
        box.time += 1.9
        box.store.work()
        assert box.files() == []
    box.time += 0.2
    box.store.work()
    assert sorted(path.read_bytes() for path in box.files()) == [content(n) for n in (1, 2, 3)]
    assert box.kinds() == {CacheEventKind.PERSISTED: 3}


def test_a_block_is_written_in_half_a_minute_though_stores_never_pause(tmp_path: Path):
    box = Box(tmp_path / "cache", cells=256)
    session = box.store.session("t", "s", epoch=1)
    for number in range(30):
        box.put(session, number)
        box.time += 1.0
        box.store.work()
    assert [path.read_bytes() for path in box.files()] == [content(0)]


def test_a_queue_that_is_a_quarter_full_is_written_at_once(tmp_path: Path):
    box = Box(tmp_path / "cache", cells=16, queue_bytes=8 * CELL)
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    box.store.work()
    assert box.files() == []
    box.put(session, 2)
    box.store.work()
    assert len(box.files()) == 2


def test_a_block_waiting_for_disk_is_written_before_it_is_evicted(box: Box):
    session = box.store.session("t", "s", epoch=1)
    for number in range(8):
        assert box.put(session, number)
    box.store.flush()
    for number in range(8, 16):
        assert box.put(session, number)
    box.store.flush()
    assert 0 not in session.match([name(n) for n in range(16)])
    assert len(box.files()) == 16


def test_folders_are_0700_and_files_0600_whatever_the_umask(box: Box):
    old = os.umask(0)
    try:
        box.put(box.store.session("t", "s", epoch=1), 1)
        box.store.flush()
    finally:
        os.umask(old)
    for path in [box.root, *box.root.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert [str(p.relative_to(box.root)) for p in box.files()] == [f"kv/t/s/{name(1).hex()}.kvs"]


def test_what_policy_or_audit_refuses_is_not_written(box: Box):
    box.allowed = False
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    box.store.flush()
    assert box.files() == []
    assert session.match([name(1)]) == bytes([Tier.MEMORY])
    assert box.kinds() == {CacheEventKind.PERSIST_DENIED: 1}
    assert box.store.stats().busy_cells == 0


def test_a_gate_that_fails_counts_as_no(box: Box):
    class Broken:
        def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
            raise RuntimeError("audit is gone")

    box.store._state.gate = Broken()
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.store.flush()
    assert box.files() == []
    assert box.store.stats().busy_cells == 0


def test_a_full_queue_drops_the_write_and_counts_it(tmp_path):
    box = Box(tmp_path / "cache", queue_bytes=2 * CELL)
    session = box.store.session("t", "s", epoch=1)
    for number in range(5):
        assert box.put(session, number)
    box.store.flush()
    assert len(box.files()) == 2
    assert box.kinds() == {CacheEventKind.PERSIST_SKIPPED: 3, CacheEventKind.PERSISTED: 2}


def test_junk_in_the_folder_is_ignored_and_survives_nothing_but_a_drop(box: Box):
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    box.restart()
    folder = box.root / "kv" / "t" / "s"
    for junk in ("README", "zz.kvs", name(5).hex() + ".kvs.old", "A" * 32 + ".kvs"):
        (folder / junk).write_bytes(b"junk")
    (folder / (name(6).hex() + ".kvs")).mkdir()
    (folder / (name(7).hex() + ".kvs")).symlink_to("/etc/passwd")
    os.mkfifo(folder / (name(8).hex() + ".kvs"))
    (box.root / "kv" / "not a ref").mkdir()
    session = box.store.session("t", "s", epoch=1)
    assert len(session) == 1
    assert session.match([name(n) for n in (1, 5, 6, 7, 8)]) == bytes([2, 0, 0, 0, 0])
    report = session.drop()
    assert report.disk_blocks == 1
    assert report.failed == 1, "a folder of that name is not ours to remove"
    assert Path("/etc/passwd").exists()


def test_a_file_replaced_by_a_link_is_not_followed(box: Box, tmp_path):
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.restart()
    session = box.store.session("t", "s", epoch=1)
    (path,) = box.files()
    secret = tmp_path / "secret"
    secret.write_bytes(content(1))
    path.unlink()
    path.symlink_to(secret)
    assert box.get(session, 1) is None
    assert session.match([name(1)]) == b"\0"
    assert secret.exists()
    assert box.kinds()[CacheEventKind.LOST] == 1


@pytest.mark.parametrize("size", [0, 1, CELL - 1, CELL + 1, 4096, 100_000])
def test_a_file_of_the_wrong_size_is_served_for_the_opener_to_reject(box: Box, size: int):
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.restart()
    (path,) = box.files()
    path.write_bytes(bytes(size))
    session = box.store.session("t", "s", epoch=1)
    assert box.get(session, 1) == (bytes(min(size, box.cell_bytes)), Tier.DISK)
    assert session.quarantine(name(1))
    assert box.files() == []
    assert box.disk.used_bytes == 0
    assert box.store.stats().busy_cells == 0


def test_a_file_truncated_after_listing_is_served_short_and_not_kept(box: Box):
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.restart()
    session = box.store.session("t", "s", epoch=1)
    box.files()[0].write_bytes(content(1)[:10])
    assert box.get(session, 1) == (content(1)[:10], Tier.DISK)
    assert session.match([name(1)]) == bytes([Tier.DISK])


def test_a_vanished_file_is_a_miss(box: Box):
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.restart()
    session = box.store.session("t", "s", epoch=1)
    box.files()[0].unlink()
    assert box.get(session, 1) is None
    assert session.match([name(1)]) == b"\0"
    assert box.put(session, 1)


def test_an_interrupted_write_is_cleaned_up(box: Box):
    box.put(box.store.session("t", "s", epoch=1), 1)
    box.restart()
    folder = box.root / "kv" / "t" / "s"
    (folder / f".{name(2).hex()}.0.tmp").write_bytes(b"half")
    box.disk.survey()
    assert [path.name for path in folder.iterdir()] == [f"{name(1).hex()}.kvs"]


def test_the_bound_holds_and_the_longest_unused_goes_first(tmp_path):
    box = Box(tmp_path / "cache", max_bytes=20 * CELL)
    session = box.store.session("t", "s", epoch=1)
    for number in range(20):
        box.put(session, number)
        box.store.flush()
    session.match([name(0), name(1)])
    for number in range(20, 24):
        box.put(session, number)
        box.store.flush()
        assert sum(path.stat().st_size for path in box.files()) <= 20 * CELL
    kept = {int(path.stem, 16) for path in box.files()}
    assert {0, 1, 20, 21, 22, 23} <= kept
    assert not kept & {2, 3, 4, 5}
    on_disk = {n for n in range(24) if session.match([name(n)])[0]}
    assert kept <= on_disk
    assert box.kinds()[CacheEventKind.EVICTED] >= 4


def test_the_tail_of_a_matched_prefix_leaves_the_disk_before_its_head(tmp_path):
    box = Box(tmp_path / "cache", max_bytes=20 * CELL)
    session = box.store.session("t", "s", epoch=1)
    for number in range(20):
        box.put(session, number)
        box.store.flush()
    session.match([name(n) for n in range(20)])
    box.put(session, 20)
    box.store.flush()
    assert sorted(int(path.stem, 16) for path in box.files()) == [*range(19), 20]


def test_sessions_nobody_opened_are_trimmed_before_those_in_use(tmp_path):
    box = Box(tmp_path / "cache", max_bytes=10 * CELL)
    old = box.store.session("old", "s", epoch=1)
    for number in range(6):
        box.put(old, number)
    box.restart()
    for age, path in enumerate(box.files()):
        os.utime(path, (100 + age, 100 + age))
    session = box.store.session("new", "s", epoch=1)
    for number in range(8):
        box.put(session, number)
        box.store.flush()
    tenants = [path.parts[-3] for path in box.files()]
    assert tenants.count("new") == 8
    assert 0 < tenants.count("old") <= 2
    # What is left of a conversation is its beginning.
    kept = [int(p.stem, 16) for p in box.files() if "old" in p.parts]
    assert sorted(kept) == list(range(len(kept)))
    assert box.disk.used_bytes == sum(path.stat().st_size for path in box.files())


def test_a_full_disk_turns_writing_off_and_it_comes_back(box: Box):
    session = box.store.session("t", "s", epoch=1)
    box.put(session, 1)
    box.store.flush()
    write = os.write

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        for number in (2, 3):
            box.put(session, number)
        box.store.flush()
    assert os.write is write
    assert not box.store.stats().disk_available
    assert len(box.files()) == 1, "no temporary file is left either"
    assert box.put(session, 4), "the engine goes on without the disk"
    assert box.get(session, 1) == (content(1), Tier.MEMORY)
    box.time += 31
    box.put(session, 5)
    box.store.flush()
    assert box.store.stats().disk_available
    kinds = [event.kind for event in box.events]
    assert kinds.count(CacheEventKind.DISK_UNAVAILABLE) == 1
    assert kinds.count(CacheEventKind.DISK_AVAILABLE) == 1
    assert box.kinds()[CacheEventKind.PERSIST_SKIPPED] == 3


@pytest.mark.root
@needs_root
def test_a_tiny_filesystem_fills_up_without_harm(tmp_path):
    mount = tmp_path / "tiny"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True
    )
    if done.returncode:
        pytest.skip("this root may not mount")
    try:
        box = Box(mount / "cache", cells=64, max_bytes=1 << 30)
        session = box.store.session("t", "s", epoch=1)
        for number in range(64):
            box.put(session, number)
        assert box.store.flush()
        assert not box.store.stats().disk_available
        assert all(path.stat().st_size == CELL for path in box.files())
        assert 0 < len(box.files()) < 64
        assert all(session.match([name(n) for n in range(64)]))
        box.disk.close()
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_file_or_a_link_in_place_of_the_folder_is_refused_at_start(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    link = tmp_path / "link"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")
    for path in (file, link, file / "below"):
        with pytest.raises(CacheFolderError, match=str(path)):
            DiskTier(path, max_bytes=1)


@pytest.mark.root
@needs_root
def test_a_folder_that_this_user_cannot_read_is_refused_at_start(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.chdir("/")
            for path in [tmp_path, *list(tmp_path.parents)[:-1]]:
                if path.stat().st_uid == 0 and path != folder:
                    path.chmod(path.stat().st_mode | 0o011)
            os.setuid(65534)
            DiskTier(folder, max_bytes=1)
        except CacheFolderError as error:
            code = 0 if str(folder) in error.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_unreadable_session_is_empty_and_the_others_go_on(box: Box):
    (box.root / "kv" / "t").mkdir()
    (box.root / "kv" / "t" / "s").write_bytes(b"a file where a folder should be")
    session = box.store.session("t", "s", epoch=1)
    assert len(session) == 0
    other = box.store.session("t", "s2", epoch=1)
    box.put(other, 1)
    box.store.flush()
    assert len(box.files()) == 2


def test_without_a_disk_tier_nothing_is_written_anywhere(tmp_path):
    script = """
import os, sys
opened = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (
        os.O_WRONLY | os.O_RDWR | os.O_CREAT
    ):
        opened.append(arguments)
    if event in ("os.mkdir", "os.rename"):
        opened.append(arguments)
from kvrun.cache import CacheStore, MemoryTier
sys.addaudithook(hook)
store = CacheStore(memory=MemoryTier(1 << 16, lock=False), disk=None, on_event=lambda e: None)
store.carve(4096)
session = store.session("t", "s", epoch=1)
for number in range(40):
    with session.reserve(number.to_bytes(16, "big"), 4096) as reservation:
        reservation.view[:] = bytes(4096)
        reservation.commit()
session.drop()
store.close()
assert not opened, opened
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_background_thread_persists_by_itself_and_close_flushes(tmp_path):
    def store(delay: float) -> CacheStore:
        return CacheStore(
            memory=MemoryTier(1 << 16, lock=False),
            disk=DiskTier(tmp_path / "cache", max_bytes=1 << 20),
            on_event=lambda event: None,
            write_delay_s=delay,
        )

    first = store(0.05)
    first.carve(4096)
    session = first.session("t", "s", epoch=1)
    for number in (1, 2):
        with session.reserve(name(number), CELL) as reservation:
            reservation.view[:] = content(number)
            reservation.commit()
    deadline = time.monotonic() + 10
    while first.stats().counters.persisted < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.close()

    second = store(1000.0)
    second.carve(4096)
    session = second.session("t", "s", epoch=1)
    assert session.match([name(1), name(2)]) == bytes([2, 2])
    with session.reserve(name(3), CELL) as reservation:
        reservation.view[:] = content(3)
        reservation.commit()
    assert second.close()
    assert len(list((tmp_path / "cache" / "kv").rglob("*.kvs"))) == 3
