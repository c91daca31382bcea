"""A file that one process holds at a time (flock(2)) and that names its holder."""

import fcntl
import os
from pathlib import Path


class FileTakenError(Exception):
    """Another process holds the file; ``holder`` is what it wrote into it, maybe nothing."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder or 'another process'}")
        self.holder = holder


def is_held(descriptor: int) -> bool:
    """Whether some process holds the file that is open here for reading.

    If none does, none can until the descriptor is closed.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def hold_file(path: Path, holder: str) -> int:
    """Make ``path`` (0600) where it is missing, hold it, and write ``holder`` into it.

    It is held until the returned descriptor is closed, or the process ends. Raises FileTakenError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found = os.pread(descriptor, 200, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise FileTakenError(path, found) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode(), 0)
    return descriptor
