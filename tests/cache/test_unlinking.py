"""A folder is emptied by the C library, which touches nothing but the names in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvrun.cache import unlinking
from kvrun.cache.unlinking import Unlinker

FILES = 300


@pytest.fixture
def unlinker() -> Iterator[Unlinker]:
    unlinker = Unlinker()
    yield unlinker
    unlinker.close()


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield number
    finally:
        os.close(number)


def fill(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.kvs").write_bytes(b"sealed")


def test_files_go_and_links_are_not_followed(tmp_path: Path, unlinker: Unlinker) -> None:
    elsewhere = tmp_path / "elsewhere"
    fill(elsewhere)
    folder = tmp_path / "folder"
    fill(folder)
    (folder / "to-a-file").symlink_to(elsewhere / "1.kvs")
    (folder / "to-a-folder").symlink_to(elsewhere)
    (folder / "to-nothing").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "fifo")
    with opened(folder) as number:
        assert unlinker.empty(number) == 0
    assert list(folder.iterdir()) == []
    assert len(list(elsewhere.iterdir())) == FILES


def test_a_folder_in_it_is_not_entered_and_the_files_beside_it_go(
    tmp_path: Path, unlinker: Unlinker
) -> None:
    folder = tmp_path / "folder"
    fill(folder)
    fill(folder / "ours-not")
    with opened(folder) as number:
        assert unlinker.empty(number) == 1
    assert [path.name for path in folder.iterdir()] == ["ours-not"]
    assert len(list((folder / "ours-not").iterdir())) == FILES


def test_a_folder_that_was_moved_since_it_was_opened_is_emptied_where_it_is(
    tmp_path: Path, unlinker: Unlinker
) -> None:
    folder = tmp_path / "folder"
    fill(folder)
    with opened(folder) as number:
        folder.rename(tmp_path / "moved")
        fill(folder)
        assert unlinker.empty(number) == 0
    assert list((tmp_path / "moved").iterdir()) == []
    assert len(list(folder.iterdir())) == FILES


def test_without_the_librarys_walk_every_file_goes_all_the_same(
    tmp_path: Path, unlinker: Unlinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlinking, "_libc", object())
    folder = tmp_path / "folder"
    fill(folder)
    with opened(folder) as number:
        assert unlinker.empty(number) == 0
    assert list(folder.iterdir()) == []


def test_the_walk_alone_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    fill(folder)
    with opened(folder) as number:
        unlinking._walk(number)
    assert list(folder.iterdir()) == []
