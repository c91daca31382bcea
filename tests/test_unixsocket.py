"""A private socket is for its user alone, and never closes a folder that others use."""

import socket
import stat
from pathlib import Path

import pytest

from kvrun.unixsocket import SharedFolderError, listen_privately


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_socket_and_folder_are_for_this_user_alone(short_folder: Path) -> None:
    folder = short_folder / "run"
    folder.mkdir(mode=0o755)
    with listen_privately(folder / "s", 1), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "s"))
        assert (mode(folder), mode(folder / "s")) == (0o700, 0o600)


def test_a_socket_that_nobody_serves_any_more_is_replaced(short_folder: Path) -> None:
    path = short_folder / "s"
    listen_privately(path, 1).close()
    with listen_privately(path, 1), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.parametrize("shared", [0o1777, 0o777])
def test_a_folder_that_others_write_into_is_refused_and_left_alone(
    short_folder: Path, shared: int
) -> None:
    folder = short_folder / "shared"
    folder.mkdir()
    folder.chmod(shared)
    (folder / "s").write_text("somebody's")
    with pytest.raises(SharedFolderError) as error:
        listen_privately(folder / "s", 1)
    assert str(folder / "s") in error.value.message
    assert mode(folder) == shared
    assert (folder / "s").read_text() == "somebody's"
