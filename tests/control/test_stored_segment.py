"""What is shown of a stored segment is what was collected: Storage is not believed."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from collect_rig import Rig
from simulator import LOG_ID, honest

from kvrun.audit.segment import list_segments, manifest_path
from kvrun.control.collected import checkpoint_name
from kvrun.control.remembered import RememberedLog
from kvrun.deployments.stored_segment import CheckedSegments, StoredAlteredError


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    found = Rig(tmp_path / "control-plane")
    found.collect(honest(tmp_path / "instance").folder)
    return found


def remembered(rig: Rig) -> RememberedLog:
    found = rig.memory.find(LOG_ID)
    assert found is not None
    return found


def read(rig: Rig, first: int, checked: CheckedSegments | None = None) -> bytes:
    assert rig.storage is not None
    return (checked or CheckedSegments()).read(rig.storage, rig.layout, remembered(rig), first)


def edit(path: Path) -> None:
    """Another event in a record."""
    before = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(before.replace(b'"sealed"', b'"opened"', 1))
    assert path.read_bytes() != before


def edit_with_manifest(path: Path) -> None:
    old = sha256(path.read_bytes()).hexdigest().encode()
    edit(path)
    manifest = manifest_path(path)
    manifest.chmod(0o600)
    stated = manifest.read_bytes()
    assert old in stated
    manifest.write_bytes(stated.replace(old, sha256(path.read_bytes()).hexdigest().encode()))


def cut(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])


def lose_the_checkpoint(path: Path) -> None:
    later = next(item for item in list_segments(path.parent) if item.name > path.name)
    (path.parent / checkpoint_name(int(later.name[8:24]))).unlink()


def lose_the_manifest(path: Path) -> None:
    manifest_path(path).unlink()


def another_segment(path: Path) -> None:
    later = list_segments(path.parent)[1]
    for change in (lambda item: item, manifest_path):
        change(path).chmod(0o600)
        change(path).write_bytes(change(later).read_bytes())


def test_every_segment_that_was_collected_is_read(rig: Rig) -> None:
    stored = list_segments(rig.folder(LOG_ID))
    assert len(stored) >= 2
    checked = CheckedSegments()
    for _ in range(2):
        for path in stored:
            assert read(rig, int(path.name[8:24]), checked) == path.read_bytes()


@pytest.mark.parametrize(
    "alter",
    [edit, edit_with_manifest, cut, lose_the_checkpoint, lose_the_manifest, another_segment],
)
def test_an_altered_segment_is_refused(rig: Rig, alter: Callable[[Path], None]) -> None:
    path = list_segments(rig.folder(LOG_ID))[0]
    alter(path)
    with pytest.raises(StoredAlteredError, match="not what was collected"):
        read(rig, 0)


def test_one_that_is_altered_after_it_was_checked_is_refused(rig: Rig) -> None:
    checked = CheckedSegments()
    read(rig, 0, checked)
    edit_with_manifest(list_segments(rig.folder(LOG_ID))[0])
    with pytest.raises(StoredAlteredError):
        read(rig, 0, checked)
