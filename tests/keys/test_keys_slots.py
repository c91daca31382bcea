"""A slot holds its old or its new record whatever happens to a write; erased slots are zeros."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.keys import FolderBusyError, FolderPermissionError, SlotFileError
from kvrun.keys.errors import ReadBackError
from kvrun.keys.folder import FolderLock, private_folder
from kvrun.keys.slots import (
    HALF_BYTES,
    PAGE_BYTES,
    OsSlotIO,
    ReadBack,
    SlotFile,
)

OLD, NEW = b"old record", b"a new and longer record"
SLOT_BYTES, BODY_BYTES = 2 * HALF_BYTES, HALF_BYTES - 52


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.slots"


def read(path: Path, slot: int) -> tuple[int, bytes] | None:
    file = SlotFile(path)
    record = file.read(slot)
    result = None if record is None else (record.kind, bytes(record.body))
    file.close()
    return result


def test_records_survive_reopening_and_the_later_write_wins(path: Path) -> None:
    file = SlotFile(path)
    slot, other = file.take_free(), file.take_free()
    file.write(slot, 1, OLD)
    file.write(other, 7, b"x" * BODY_BYTES)
    file.write(slot, 2, NEW)
    file.sync()
    file.close()
    assert read(path, slot) == (2, NEW)
    assert read(path, other) == (7, b"x" * BODY_BYTES)


@pytest.mark.parametrize("first_half", ["A", "B"])
def test_a_write_torn_at_any_byte_leaves_the_old_record(path: Path, first_half: str) -> None:
    file = SlotFile(path, grow_by=1)
    slot = file.take_free()
    if first_half == "B":
        file.write(slot, 9, b"older")
    file.write(slot, 1, OLD)
    before = path.read_bytes()
    file.write(slot, 2, NEW)
    after = path.read_bytes()
    file.close()
    start = PAGE_BYTES + slot * SLOT_BYTES + (0 if first_half == "B" else HALF_BYTES)
    different = [at for at in range(len(after)) if after[at] != before[at]]
    assert start <= min(different)
    assert max(different) < start + HALF_BYTES
    for cut in range(HALF_BYTES + 1):
        at = start + cut
        path.write_bytes(after[:at] + before[at:])
        complete = after[:at] + before[at:] == after
        assert read(path, slot) == ((2, NEW) if complete else (1, OLD)), cut
        # The disk may as well have written the end of the half and not its start.
        path.write_bytes(before[:at] + after[at:])
        complete = before[:at] + after[at:] == after
        assert read(path, slot) == ((2, NEW) if complete else (1, OLD)), cut


def test_a_first_write_torn_at_any_byte_leaves_a_free_slot_that_is_scrubbed(path: Path) -> None:
    file = SlotFile(path, grow_by=2)
    slot = file.take_free()
    before = path.read_bytes()
    file.write(slot, 1, OLD)
    after = path.read_bytes()
    file.close()
    start = PAGE_BYTES + slot * SLOT_BYTES
    for cut in (1, 7, 20, 29, 30, HALF_BYTES - 31, HALF_BYTES - 1):
        path.write_bytes(after[: start + cut] + before[start + cut :])
        file = SlotFile(path)
        assert file.read(slot) is None
        assert file.scrub_torn() == [slot]
        assert file.scrub_torn() == []
        file.close()
        assert path.read_bytes() == before


@given(st.binary(min_size=1, max_size=BODY_BYTES), st.integers(0, HALF_BYTES * 8 - 1))
def test_no_changed_bit_passes_the_checksum(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, bit: int
) -> None:
    path = tmp_path_factory.mktemp("bits") / "test.slots"
    file = SlotFile(path, grow_by=1)
    file.write(file.take_free(), 3, body)
    file.close()
    content = bytearray(path.read_bytes())
    content[PAGE_BYTES + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    assert read(path, 0) is None


def test_a_half_copied_to_another_place_or_file_does_not_count(path: Path) -> None:
    file = SlotFile(path, grow_by=4)
    file.write(file.take_free(), 1, OLD)
    file.close()
    content = bytearray(path.read_bytes())
    half = content[PAGE_BYTES : PAGE_BYTES + HALF_BYTES]
    content[PAGE_BYTES + SLOT_BYTES : PAGE_BYTES + SLOT_BYTES + HALF_BYTES] = half
    content[PAGE_BYTES + HALF_BYTES : PAGE_BYTES + SLOT_BYTES] = half
    path.write_bytes(content)
    assert read(path, 1) is None
    assert read(path, 0) == (1, OLD)
    other = path.with_name("other.slots")
    SlotFile(other, grow_by=1).take_free()
    foreign = bytearray(other.read_bytes())
    foreign[PAGE_BYTES : PAGE_BYTES + HALF_BYTES] = half
    other.write_bytes(foreign)
    assert read(other, 0) is None


def test_an_erased_slot_is_zeros_on_the_device_and_free_again(path: Path) -> None:
    file = SlotFile(path, grow_by=4)
    slot, kept = file.take_free(), file.take_free()
    for body in (OLD, NEW):
        file.write(slot, 1, body)
    file.write(kept, 1, OLD)
    file.sync()
    assert file.erase([slot]) in ReadBack
    content = path.read_bytes()
    start = PAGE_BYTES + slot * SLOT_BYTES
    assert content[start : start + SLOT_BYTES] == bytes(SLOT_BYTES)
    assert file.read(slot) is None
    assert read(path, kept) == (1, OLD)
    assert file.take_free() == slot
    file.close()


class _ForgetfulIO(OsSlotIO):
    """Drops overwriting with zeros, as a broken disk would."""

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        if len(data) != HALF_BYTES or any(data):
            super().pwrite(descriptor, data, offset)


def test_an_overwrite_that_did_not_happen_is_noticed(path: Path) -> None:
    file = SlotFile(path, io=_ForgetfulIO())
    slot = file.take_free()
    file.write(slot, 1, OLD)
    with pytest.raises(ReadBackError, match="still holds data"):
        file.erase([slot])
    file.close()


def test_growth_is_preallocated_and_keeps_what_is_there(path: Path) -> None:
    file = SlotFile(path, grow_by=3)
    slots = [file.take_free() for _ in range(10)]
    assert sorted(slots) == list(range(10))
    for slot in slots:
        file.write(slot, 1, b"%d" % slot)
    assert path.stat().st_size == PAGE_BYTES + 12 * SLOT_BYTES
    assert path.stat().st_blocks * 512 >= path.stat().st_size  # no holes
    file.close()
    assert [read(path, slot) for slot in (0, 9)] == [(1, b"0"), (1, b"9")]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"", None),
        (b"short", "too short"),
        (b"NOTSLOTS" + bytes(PAGE_BYTES), "not a slot file"),
        (b"KVRUNSLT" + bytes(PAGE_BYTES), "damaged"),
        (b"KVRUNSLT" + bytes(PAGE_BYTES - 8), None),  # its creation was cut short
        (b"KVR" + bytes(PAGE_BYTES - 3), None),
    ],
)
def test_a_file_that_is_no_slot_file_is_named(
    path: Path, damage: bytes, message: str | None
) -> None:
    path.touch(mode=0o600)
    path.write_bytes(damage)
    if message is None:
        SlotFile(path).close()
        return
    with pytest.raises(SlotFileError, match=message):
        SlotFile(path)


@pytest.mark.parametrize(("kind", "body"), [(0, b"x"), (65536, b"x"), (1, b""), (1, b"x" * 461)])
def test_a_record_that_does_not_fit_is_refused(path: Path, kind: int, body: bytes) -> None:
    file = SlotFile(path)
    with pytest.raises(SlotFileError):
        file.write(file.take_free(), kind, body)
    file.close()


def test_slot_files_are_for_their_owner_only(path: Path) -> None:
    SlotFile(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(FolderPermissionError, match="0640"):
        SlotFile(path)


def test_a_folder_open_to_others_is_tightened_when_empty_and_refused_when_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    private_folder(folder, purpose="key")
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "x").touch()
    folder.chmod(0o750)
    with pytest.raises(FolderPermissionError, match="has mode 0750"):
        private_folder(folder, purpose="key")


@pytest.mark.parametrize("half", [512, 5632])
def test_halves_of_any_size_are_read_back_whole_and_erased_to_the_last_byte(
    path: Path, half: int
) -> None:
    file = SlotFile(path, grow_by=2, half_bytes=half)
    file.reserve(4)
    assert file.count == 6
    bodies = [os.urandom(half - 52) for _ in range(4)]
    for body in bodies:
        file.write(3, 8, body)
    file.write(2, 8, b"kept")
    with pytest.raises(SlotFileError, match="holds 1 to"):
        file.write(3, 8, bytes(half - 51))
    file.close()
    file = SlotFile(path, grow_by=2, half_bytes=half)
    found = file.read(3)
    assert found is not None
    assert (bytes(found.body), file.sequence) == (bodies[-1], 5)
    assert [slot for slot, _ in file.records()] == [2, 3]
    start = PAGE_BYTES + 3 * 2 * half
    assert all(
        path.read_bytes()[start + at * half :][20:30] == bodies[at + 2][:10] for at in (0, 1)
    )
    file.erase([3])
    assert path.read_bytes()[start : start + 2 * half] == bytes(2 * half)
    kept = file.read(2)
    assert kept is not None
    assert bytes(kept.body) == b"kept"
    file.close()
    with pytest.raises(SlotFileError, match="halves of"):
        SlotFile(path, half_bytes=1024)


def _hold(folder: Path, ready: object, done: object) -> None:
    lock = FolderLock(folder, purpose="key")
    ready.set()  # type: ignore[attr-defined]
    done.wait(20)  # type: ignore[attr-defined]
    lock.close()


def test_a_second_process_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    ready, done = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=_hold, args=(tmp_path, ready, done))
    holder.start()
    assert ready.wait(20)
    with pytest.raises(FolderBusyError, match=f"process {holder.pid}"):
        FolderLock(tmp_path, purpose="key")
    done.set()
    holder.join(20)
    lock = FolderLock(tmp_path, purpose="key")  # the lock dies with its holder
    assert f"process {os.getpid()} " in lock.path.read_text()
    lock.close()
