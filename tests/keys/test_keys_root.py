"""A file root keeps to its folder, and a wrong root is noticed by the keys under it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from keys_support import Clock, open_service

from kvrun.keys import (
    FileRoot,
    FolderPermissionError,
    MemoryRoot,
    RootError,
    WrongRootError,
)


def buffer() -> memoryview:
    return memoryview(bytearray(32))


def test_a_file_root_survives_closing_and_leaves_nothing_of_a_destroyed_epoch(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "root"
    root = FileRoot(folder)
    root_id = root.facts.root_id
    before = (folder / "root.slots").read_bytes()
    root.create_epoch(1)
    with_epoch = (folder / "root.slots").read_bytes()
    key = buffer()
    root.load_epoch(1, key)
    root.close()
    root = FileRoot(folder)
    again = buffer()
    root.load_epoch(1, again)
    assert (root.facts.root_id, again) == (root_id, key)
    assert bytes(key) not in with_epoch  # wrapped even in the root's own file
    root.destroy_epoch(1)
    assert (folder / "root.slots").read_bytes() == before
    root.close()


def test_the_folder_says_that_it_must_not_be_backed_up(tmp_path: Path) -> None:
    FileRoot(tmp_path / "root").close()
    assert "Do not back it up" in (tmp_path / "root" / "DO-NOT-BACK-UP.txt").read_text()
    tag = (tmp_path / "root" / "CACHEDIR.TAG").read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_the_root_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    FileRoot(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (folder / "root.slots").chmod(0o644)
    with pytest.raises(FolderPermissionError, match="0644"):
        FileRoot(folder)
    (folder / "root.slots").chmod(0o600)
    folder.chmod(0o755)
    with pytest.raises(FolderPermissionError, match="0755"):
        FileRoot(folder)


def test_a_missing_root_is_not_made_when_one_is_expected(tmp_path: Path) -> None:
    with pytest.raises(RootError, match="no key root"):
        FileRoot(tmp_path / "root", create=False)
    assert not (tmp_path / "root").exists()


def test_a_wrong_root_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    salt = service.acquire("alice", "one").salt
    service.close()
    before = (tmp_path / "keys" / "keys.slots").read_bytes()
    with pytest.raises(WrongRootError, match=r"belong to root .* this is the memory root"):
        open_service(tmp_path, root=MemoryRoot())
    other = FileRoot(tmp_path / "other")
    with pytest.raises(WrongRootError, match="this is the file root"):
        open_service(tmp_path, root=other)
    other.close()
    assert (tmp_path / "keys" / "keys.slots").read_bytes() == before
    service = open_service(tmp_path)
    assert service.acquire("alice", "one").salt == salt
    service.close()


def test_a_root_key_that_does_not_fit_its_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_service(tmp_path).close()
    root = FileRoot(tmp_path / "root")
    root._key[:] = bytes(32)
    with pytest.raises(WrongRootError, match="does not open"):
        open_service(tmp_path, root=root)
    root.close()


def test_a_restored_older_root_is_refused_not_obeyed(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    service.acquire("alice", "one")
    service.acquire("alice", "two")
    shutil.copytree(tmp_path / "root", tmp_path / "old")
    service.destroy_session("alice", "one")
    service.close()
    shutil.rmtree(tmp_path / "root")
    shutil.copytree(tmp_path / "old", tmp_path / "root")
    before = (tmp_path / "keys" / "keys.slots").read_bytes()
    with pytest.raises(RootError, match="older than the keys"):
        open_service(tmp_path, Clock())
    assert (tmp_path / "keys" / "keys.slots").read_bytes() == before
