"""Block files are read whole, past the system's cache where that is possible, and nowhere wrong."""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachebox import Box, content

from kvrun.cache import Tier
from kvrun.directread import DIRECT_ALIGN, DIRECT_BYTES, read_file, read_part

SIZES = [1, DIRECT_BYTES - 1, DIRECT_BYTES, DIRECT_BYTES + 88, DIRECT_BYTES + DIRECT_ALIGN]


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk, and one on a file system of another kind."""
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def read(path: Path, out: memoryview, *, direct: bool = True) -> int:
    file = os.open(path, os.O_RDONLY)
    try:
        return read_file(file, out, direct=direct)
    finally:
        os.close(file)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("start", [0, 64])
def test_every_byte_comes_whatever_the_size_and_the_buffer(
    folder: Path, size: int, direct: bool, start: int
) -> None:
    data = os.urandom(size)
    path = folder / "block"
    path.write_bytes(data)
    room = memoryview(mmap.mmap(-1, 4 * DIRECT_BYTES))[start:]
    # Room for more than the file, for exactly the file, and for less.
    for length in (2 * DIRECT_BYTES, size, max(1, size - 1), max(1, size // 2)):
        room[:] = bytes(len(room))
        expected = min(length, size)
        assert read(path, room[:length], direct=direct) == expected
        assert room[:expected] == data[:expected]
        assert bytes(room[length:]).count(0) == len(room) - length


def test_a_part_of_a_file_comes_whole_from_wherever_it_begins(folder: Path) -> None:
    data = os.urandom(2 * DIRECT_BYTES + 500)
    path = folder / "pack"
    path.write_bytes(data)
    with path.open("rb") as file:
        for offset in (0, 1, DIRECT_ALIGN - 1, DIRECT_ALIGN, DIRECT_BYTES + 7, len(data) + 1):
            for size in (1, DIRECT_BYTES, 2 * DIRECT_BYTES):
                part = read_part(file.fileno(), offset, size)
                assert part == data[offset : offset + size]
                assert part.readonly


def test_a_file_system_that_gives_less_than_is_asked_for_cuts_no_block_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(2 * DIRECT_BYTES)
    path, given = tmp_path / "block", os.preadv
    path.write_bytes(data)
    asked: list[int] = []

    def less(file: int, buffers: list[memoryview], offset: int) -> int:
        asked.append(offset)
        (room,) = buffers
        return given(file, [room[:1000]] if len(asked) == 1 else buffers, offset)

    monkeypatch.setattr(os, "preadv", less)
    room = memoryview(mmap.mmap(-1, len(data)))
    assert read(path, room) == len(data)
    assert room == data
    assert asked[0] == 0


def cached_pages(path: Path) -> int:
    """How many of a file's pages the system holds in memory (mincore(2))."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        done = ctypes.CDLL(None).mincore(ctypes.c_void_p(address), len(mapped), pages)
    assert done == 0
    return sum(page & 1 for page in pages)


def test_a_large_block_is_not_left_in_the_systems_cache(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(os.urandom(4 * DIRECT_BYTES))
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    if cached_pages(path):
        pytest.skip("this file system forgets nothing")
    room = memoryview(mmap.mmap(-1, 4 * DIRECT_BYTES))
    read(path, room)
    assert cached_pages(path) == 0
    read(path, room, direct=False)
    assert cached_pages(path) == 4 * DIRECT_BYTES // mmap.PAGESIZE


def test_large_blocks_come_back_from_disk_into_their_cells(tmp_path: Path) -> None:
    box = Box(tmp_path / "cache", cells=4, max_bytes=1 << 30)
    size = DIRECT_BYTES + 88

    def carved() -> None:
        box.store.close()
        box.cells = 4 * (DIRECT_BYTES + DIRECT_ALIGN) // 256
        box.start()
        assert box.store.carve(size) is False

    carved()
    session = box.store.session("t", "s", epoch=1)
    for number in range(3):
        assert box.put(session, number, size)
        assert box.store.flush()
    carved()
    session = box.store.session("t", "s", epoch=1)
    for number in range(3):
        assert box.get(session, number) == (content(number, size), Tier.DISK)
        assert box.get(session, number) == (content(number, size), Tier.MEMORY)
    # One that grew on disk is what was indexed of it, one that shrank is not kept.
    carved()
    session = box.store.session("t", "s", epoch=1)
    one, two, _ = sorted(box.files())
    with one.open("ab") as file:
        file.write(b"more")
    os.truncate(two, size - 1)
    assert box.get(session, 0) == (content(0, size), Tier.DISK)
    assert box.get(session, 1) == (content(1, size)[:-1], Tier.DISK)
    assert box.get(session, 1) == (content(1, size)[:-1], Tier.DISK)
