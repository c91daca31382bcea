"""A file that one process holds at a time (flock(2)) and that names its holder."""

import fcntl
import os
import time
from pathlib import Path

_POLL_S = 0.05


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


def hold_file(path: Path, holder: str, *, wait_s: float = 0.0) -> int:
    """Make ``path`` (0600) where it is missing, hold it, and write ``holder`` into it.

    It is held until the returned descriptor is closed, or the process ends. Raises FileTakenError
    where another process holds it for longer than ``wait_s``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    try:
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                found = os.pread(descriptor, 200, 0).decode("ascii", "replace").strip()
                raise FileTakenError(path, found)
            time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
