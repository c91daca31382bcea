"""A key root claims only what its filesystem can prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrun.keys import ClaimClass, filesystem_facts
from kvrun.keys.filesystem import FilesystemFacts, classify

TABLE = """\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
26 25 254:1 / /journal rw - ext4 /dev/vdb rw,data=journal
27 25 254:2 / /defaults rw - ext4 /dev/vdc rw
28 25 254:3 / /x rw - xfs /dev/vdd rw,attr2
29 25 0:40 / /x/btrfs rw - btrfs /dev/vde rw,subvol=/
30 25 0:41 / /over rw - overlay overlay rw,lowerdir=/a
31 25 0:42 / /nfs rw - nfs4 host:/export rw
32 25 254:5 / /with\\040space rw shared:1 - xfs /dev/vdf rw
33 25 0:50 / /covered rw - tmpfs tmpfs rw
34 33 254:6 / /covered rw - ext4 /dev/vdg rw,data=ordered
"""


def facts(path: str, device: str) -> FilesystemFacts:
    return classify(TABLE, Path(path), device, {"254:2": "data=journal\ndelalloc"}.get)


@pytest.mark.parametrize(
    ("path", "device", "filesystem"),
    [
        ("/var/keys", "254:0", "ext4"),
        ("/x/keys", "254:3", "xfs"),
        ("/with space/keys", "254:5", "xfs"),
        ("/covered/keys", "254:6", "ext4"),
    ],
)
def test_filesystems_that_overwrite_in_place_give_device(
    path: str, device: str, filesystem: str
) -> None:
    found = facts(path, device)
    assert (found.claim, found.filesystem) == (ClaimClass.DEVICE, filesystem)


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("/journal/keys", "254:1"),
        ("/defaults/keys", "254:2"),  # set in the superblock, absent from the mount table
        ("/x/btrfs/keys", "0:40"),
        ("/over/keys", "0:41"),
        ("/nfs/keys", "0:42"),
        ("/var/keys", "9:9"),  # not the device that is mounted there
    ],
)
def test_everything_else_gives_logical(path: str, device: str) -> None:
    assert facts(path, device).claim is ClaimClass.LOGICAL


def test_a_broken_mount_table_gives_logical() -> None:
    assert classify("x\n\n1 2 3", Path("/a"), "1:1", lambda _: None).claim is ClaimClass.LOGICAL


def test_a_tmpfs_gives_logical() -> None:
    assert filesystem_facts(Path("/dev/shm")).claim is ClaimClass.LOGICAL
