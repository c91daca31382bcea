"""The daemon opens the root that is configured, and warns where it proves no erasure."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from kvrun.config import parse_config
from kvrun.config.roots import FileAddress
from kvrun.keys import ClaimClass, FileRoot, MemoryRoot
from kvrun.keys.errors import KeysError, RootError
from kvrun.keys.opening import open_root
from kvrun.keys.root_place import file_root_folder


def test_the_configured_root_is_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = parse_config("", {}, source=tmp_path / "kvrun.toml")
    root = open_root(config)
    assert isinstance(root, FileRoot)
    beside = tmp_path / "kvrun-data-root"
    assert (beside / "root.slots").exists()
    assert (beside / "DO-NOT-BACK-UP.txt").exists()
    assert not list(tmp_path.glob("kvrun-data/root*")), "a backup of the data folder has no root"
    assert bool(caplog.records) == (root.facts.claim is ClaimClass.LOGICAL)
    root.close()
    config = parse_config('[keys]\nroot = "memory"', {}, source=tmp_path / "kvrun.toml")
    root = open_root(config)
    assert isinstance(root, MemoryRoot)
    root.close()


def test_a_root_that_an_earlier_version_made_in_the_data_folder_stays_in_use(
    tmp_path: Path,
) -> None:
    inside, beside = tmp_path / "kvrun-data" / "root", tmp_path / "kvrun-data-root"
    named = parse_config('[keys]\nroot = "file:root"', {}, source=tmp_path / "kvrun.toml")
    with closing(open_root(named)) as earlier:
        root_id = earlier.facts.root_id
    config = parse_config("", {}, source=tmp_path / "kvrun.toml")
    with closing(open_root(config)) as root:
        assert root.facts.root_id == root_id
    assert inside.is_dir()
    assert not beside.exists(), "nothing is moved"

    # Moved by its operator, it is found beside; a copy that comes back from a backup is not taken.
    inside.rename(beside)
    with closing(open_root(config)) as root:
        assert root.facts.root_id == root_id
    shutil.copytree(beside, inside)
    with pytest.raises(RootError, match="another one in"):
        open_root(config)
    with closing(open_root(named)) as root:
        assert root.facts.root_id == root_id, "whoever names one has it"


@pytest.mark.parametrize(
    ("data_dir", "root"),
    [
        ("/srv/chat/data", "/srv/chat/data-root"),
        ("/srv/chat/data/", "/srv/chat/data-root"),
        ("/srv/chat/other/../data", "/srv/chat/data-root"),
        ("/srv/chat/data.v2", "/srv/chat/data.v2-root"),
    ],
)
def test_the_usual_place_is_beside_the_data_folder(data_dir: str, root: str) -> None:
    assert file_root_folder(FileAddress(None), Path(data_dir)) == Path(root)
    assert file_root_folder(FileAddress(Path("r")), Path(data_dir)) == Path(data_dir, "r")


def test_a_root_that_cannot_be_made_says_where_and_what_to_do(tmp_path: Path) -> None:
    config = parse_config("", {}, source=tmp_path / "kvrun.toml")
    (tmp_path / "kvrun-data-root").write_text("in the way")
    with pytest.raises(KeysError, match="kvrun-data-root cannot be made"):
        open_root(config)
    with pytest.raises(RootError, match="nothing is beside"):
        file_root_folder(FileAddress(None), Path("/"))


def test_a_root_that_can_only_delete_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path("/dev/shm") / f"kvrun-test-{tmp_path.name}"
    text = f'[keys]\nroot = "file:{folder}"'
    config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
    try:
        root = open_root(config)
        assert root.facts.claim is ClaimClass.LOGICAL
        root.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "deletion record, not in a certificate" in record.getMessage()
    assert "tmpfs" in record.getMessage()
