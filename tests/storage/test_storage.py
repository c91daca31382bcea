"""Storage keeps what it was given once, whole, in a folder and on a real S3 server."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrun.directread import DIRECT_ALIGN, DIRECT_BYTES
from kvrun.storage import (
    ObjectExistsError,
    ObjectMissingError,
    Storage,
    StorageError,
    open_storage,
)
from support.s3_server import request, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    with s3_server() as served:
        yield served


@pytest.fixture(params=["folder", "s3"], name="storage")
def _storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(f"file://{tmp_path}/storage")
    address, options = request.getfixturevalue("s3")
    bucket = f"b{abs(hash(str(tmp_path)))}"
    assert _put(address, f"/{bucket}") == 200
    return open_storage(f"s3://{bucket}/below", options)


def _put(address: str, path: str, body: str = "", **headers: str) -> int:
    return request(address, "PUT", path, body, **headers)[0]


def test_what_was_created_is_read_back_whole_in_part_and_by_name(
    storage: Storage, tmp_path: Path
) -> None:
    storage.create("w%2F1/d/a.jsonl", b"0123456789")
    file = tmp_path / "segment"
    file.write_bytes(b"from a file" * 1000)
    storage.create("w%2F1/d/b.jsonl", file)
    storage.create("w%2F1/other", b"")
    assert storage.get("w%2F1/d/a.jsonl") == b"0123456789"
    assert storage.get_range("w%2F1/d/a.jsonl", 4, 3) == b"456"
    assert storage.get_range("w%2F1/d/a.jsonl", 8, 100) == b"89"
    assert storage.get_range("w%2F1/d/a.jsonl", 20, 5) == b""
    found = {item.name: item.size_bytes for item in storage.list("w%2F1/d")}
    assert found == {"w%2F1/d/a.jsonl": 10, "w%2F1/d/b.jsonl": 11_000}
    described = storage.find("w%2F1/other")
    assert described is not None
    assert described.size_bytes == 0


def test_a_part_is_what_stands_there_however_large_and_wherever_it_begins(
    storage: Storage, tmp_path: Path
) -> None:
    data = os.urandom(3 * DIRECT_BYTES + 77)
    storage.create("a/pack", data)
    for offset in (0, 1, DIRECT_ALIGN, DIRECT_ALIGN + 904, DIRECT_BYTES - 1):
        for size in (1, DIRECT_BYTES - 1, DIRECT_BYTES, 2 * DIRECT_BYTES + 78, len(data)):
            part = storage.get_part("a/pack", offset, size)
            assert part == data[offset : offset + size], (offset, size)
    for size in (1, DIRECT_BYTES):
        with pytest.raises(StorageError):
            storage.get_part("a/pack", len(data) + 1, size)
        with pytest.raises(ObjectMissingError):
            storage.get_part("a/none", 0, size)
        with pytest.raises(StorageError):
            storage.get_part("a/../pack", 0, size)


def test_an_object_is_never_replaced(storage: Storage) -> None:
    storage.create("a/b", b"first")
    with pytest.raises(ObjectExistsError, match="a/b"):
        storage.create("a/b", b"second")
    assert storage.get("a/b") == b"first"


def test_of_many_who_create_one_name_exactly_one_succeeds(storage: Storage) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        try:
            storage.create("a/raced", bytes([number]) * 1000)
        except ObjectExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.get("a/raced") == bytes(won) * 1000


def test_what_is_not_there_is_missing_and_deleting_it_is_no_error(storage: Storage) -> None:
    assert storage.find("a/none") is None
    assert list(storage.list("nothing")) == []
    for ask in (lambda: storage.get("a/none"), lambda: storage.get_range("a/none", 0, 1)):
        with pytest.raises(ObjectMissingError, match="a/none"):
            ask()
    storage.delete("a/none")
    storage.create("a/some", b"x")
    storage.delete("a/some")
    assert storage.find("a/some") is None


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "a/../b", "a/./b", "a b", "a#1", "ä"])
def test_a_name_that_stores_spell_differently_is_refused(storage: Storage, name: str) -> None:
    with pytest.raises(StorageError, match="cannot name an object"):
        storage.create(name, b"x")


def test_a_folder_is_private_and_holds_nothing_but_the_objects(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/storage")
    storage.create("a/b/c", b"x")
    with pytest.raises(ObjectExistsError):
        storage.create("a/b/c", b"y")
    for path in (tmp_path / "storage").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert [path.name for path in (tmp_path / "storage/a/b").iterdir()] == ["c"]


def test_a_put_that_broke_off_leaves_nothing_that_is_listed(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/storage")
    storage.create("a/whole", b"x")
    (tmp_path / "storage/a/half#4711").write_bytes(b"ha")
    assert [item.name for item in storage.list("a")] == ["a/whole"]


def test_an_address_or_a_store_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="ftp://x"):
        open_storage("ftp://x")
    with pytest.raises(StorageError, match="no_such_option"):
        open_storage("s3://bucket", {"no_such_option": "1"})
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be opened"):
        open_storage(f"file://{tmp_path}/file")
