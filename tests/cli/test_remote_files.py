"""What a control plane gave is written for nobody else to read, and through no link."""

from pathlib import Path

import pytest

from kvrun.cli.remote import save
from kvrun.client.errors import ClientError


def test_a_file_that_others_could_read_is_the_users_alone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_bytes(b"an earlier and longer one")
    path.chmod(0o644)
    save(path, b"a secret")
    assert path.read_bytes() == b"a secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_or_a_folder_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"somebody's")
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    for path in (link, tmp_path):
        with pytest.raises(ClientError, match="no plain file"):
            save(path, b"a secret")
    assert elsewhere.read_bytes() == b"somebody's"
    assert link.is_symlink()


def test_what_has_to_be_new_takes_nobodys_place(tmp_path: Path) -> None:
    path = tmp_path / "evidence.zip"
    save(path, b"first", new=True)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ClientError, match="cannot be written"):
        save(path, b"second", new=True)
    assert path.read_bytes() == b"first"
