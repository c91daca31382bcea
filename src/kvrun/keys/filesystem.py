"""What overwriting a file in place proves on the filesystem under a path.

Measured on raw devices: after an overwrite and fdatasync nothing of the old content was left on
ext4 (data=ordered) and xfs; on ext4 with data=journal and on copy-on-write filesystems the old
content was still there. So only the first group may claim more than a logical deletion. What a
drive's remapping or a storage snapshot keeps is below any filesystem and stays unknown.
"""

import array
import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class ClaimClass(Enum):
    """What a destroyed key may be said to be, weakest first."""

    LOGICAL = "logical"  # deleted; the medium may keep it: a deletion record, no erasure
    DEVICE = "device"  # overwritten in place on a filesystem that keeps no copy
    CRYPTOGRAPHIC = "cryptographic"  # held only where nothing remains once it is destroyed


@dataclass(frozen=True, slots=True)
class FilesystemFacts:
    """The mount that holds a path and the claim it allows, with the reason in words."""

    filesystem: str
    mount_point: str
    claim: ClaimClass
    reason: str


OptionsOf = Callable[[str], str | None]


def filesystem_facts(path: Path) -> FilesystemFacts:
    """Facts about the mount under the existing ``path``; unknown reads as ``LOGICAL``."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return FilesystemFacts("unknown", "?", ClaimClass.LOGICAL, f"mountinfo: {error.strerror}")
    details = path.stat()
    device = f"{os.major(details.st_dev)}:{os.minor(details.st_dev)}"
    facts = classify(mounts, path.resolve(), device, _ext4_options)
    if facts.claim is ClaimClass.DEVICE and facts.filesystem == "ext4" and _journals_data(path):
        return FilesystemFacts(
            "ext4",
            facts.mount_point,
            ClaimClass.LOGICAL,
            "the files journal their data (chattr +j)",
        )
    return facts


def classify(mountinfo: str, path: Path, device: str, ext4_options: OptionsOf) -> FilesystemFacts:
    """The pure part: find the mount of ``path`` (resolved) on ``device`` ("major:minor").

    ``ext4_options`` gives all options of an ext4 device by its number, or None when they cannot be
    read: the mount table leaves out options that the superblock sets by default.
    """
    best: _Mount | None = None
    for line in mountinfo.splitlines():
        mount = _parse(line)
        # Of mounts on the same point the last one is on top.
        if (
            mount
            and _covers(mount.point, path)
            and (best is None or len(mount.point) >= len(best.point))
        ):
            best = mount
    if best is None:
        return FilesystemFacts("unknown", "?", ClaimClass.LOGICAL, "no mount covers the path")

    def facts(claim: ClaimClass, reason: str) -> FilesystemFacts:
        return FilesystemFacts(best.filesystem, best.point, claim, reason)

    if best.filesystem not in ("ext4", "xfs"):
        return facts(ClaimClass.LOGICAL, f"{best.filesystem} may keep overwritten content")
    if best.device != device:
        return facts(ClaimClass.LOGICAL, "the path is not on the device of its mount")
    if best.filesystem == "ext4":
        known = ext4_options(device) or ""
        if "data=journal" in re.split(r"[,\s]", best.options + "," + known):
            return facts(ClaimClass.LOGICAL, "ext4 with data=journal keeps copies in its journal")
    return facts(ClaimClass.DEVICE, f"{best.filesystem} overwrites in place")


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    filesystem: str
    device: str
    options: str


def _ext4_options(device: str) -> str | None:
    try:
        name = Path("/sys/dev/block", device).resolve().name
        return Path("/proc/fs/ext4", name, "options").read_text(encoding="ascii")
    except OSError:
        return None


_FS_IOC_GETFLAGS = 0x80086601
_FS_JOURNAL_DATA_FL = 0x00004000


def _parse(line: str) -> _Mount | None:
    fields = line.split(" ")
    if len(fields) < 10 or "-" not in fields[6:]:
        return None
    dash = fields.index("-", 6)
    if len(fields) < dash + 4:
        return None
    point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
    return _Mount(point, fields[dash + 1], fields[2], fields[dash + 3])


def _covers(point: str, path: Path) -> bool:
    return path.is_relative_to(point)


def _journals_data(path: Path) -> bool:
    flags = array.array("l", [0])
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, flags)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return bool(flags[0] & _FS_JOURNAL_DATA_FL)
