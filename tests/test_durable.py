"""A small file is replaced whole or not at all, and what lies in the way is never written into."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvrun.audit.segment import replace_file
from kvrun.durable import replace_private_file, write_private_file

Replace = Callable[[Path, bytes], None]
BOTH = pytest.mark.parametrize(
    ("replace", "suffix"), [(replace_private_file, ".new"), (replace_file, ".tmp")]
)


@BOTH
def test_a_file_is_replaced_and_is_its_owners_alone(
    tmp_path: Path, replace: Replace, suffix: str
) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"before")
    path.chmod(0o644)
    replace(path, b"after")
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@BOTH
def test_a_link_under_the_temporary_name_is_not_followed(
    tmp_path: Path, replace: Replace, suffix: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"somebody's")
    path = tmp_path / "note"
    path.with_name(f"note{suffix}").symlink_to(elsewhere)
    replace(path, b"a secret")
    assert elsewhere.read_bytes() == b"somebody's"
    assert path.read_bytes() == b"a secret"
    assert not path.is_symlink()


@BOTH
def test_an_open_file_under_the_temporary_name_gets_nothing(
    tmp_path: Path, replace: Replace, suffix: str
) -> None:
    path = tmp_path / "note"
    with path.with_name(f"note{suffix}").open("w+b") as left:
        os.fchmod(left.fileno(), 0o666)
        replace(path, b"a secret")
        assert left.read() == b""
    assert path.stat().st_mode & 0o777 == 0o600


@BOTH
def test_what_cannot_be_finished_leaves_what_was_there(
    tmp_path: Path, replace: Replace, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"before")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            replace(path, b"after")
    assert path.read_bytes() == b"before"
    replace(path, b"after")
    assert path.read_bytes() == b"after"


def test_a_new_private_file_never_takes_anothers_place(tmp_path: Path) -> None:
    write_private_file(tmp_path / "key", b"first")
    with pytest.raises(FileExistsError):
        write_private_file(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"
