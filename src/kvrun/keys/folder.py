"""Private folders: mode and ownership lock."""

import os
import stat
from pathlib import Path

from kvrun.filelock import FileTakenError, hold_file
from kvrun.keys.errors import FolderBusyError, FolderPermissionError, KeysError


class FolderLock:
    """An exclusive lock on a folder for as long as the process (or this object) lives.

    The lock file names its holder, so that the second comer can say who is in the way.
    """

    def __init__(self, folder: Path, *, purpose: str) -> None:
        self.path = folder / "lock"
        try:
            self._descriptor = hold_file(self.path, f"process {os.getpid()} ({purpose})\n")
        except FileTakenError as error:
            raise FolderBusyError(
                f"The {purpose} folder {folder} is in use by {error.holder or 'another process'}",
                hint="One service per folder: stop the other one or use another folder.",
            ) from None

    def close(self) -> None:
        """Let the folder go; calling it again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def private_folder(folder: Path, *, purpose: str) -> None:
    """Create ``folder`` with mode 0700, or check that it is the owner's alone.

    An empty folder that is too open is tightened; one that already holds files is refused,
    because whoever could read it may have done so.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FolderPermissionError(
            f"The {purpose} folder {folder} cannot be made: {error.strerror}",
            hint=f"Make it for this user, or name another place: install -d -m 700 {folder}",
        ) from None
    details = folder.stat()
    if not stat.S_ISDIR(details.st_mode):
        raise KeysError(f"The {purpose} folder {folder} is not a folder")
    if details.st_uid != os.geteuid():
        raise FolderPermissionError(
            f"The {purpose} folder {folder} belongs to user {details.st_uid}, "
            f"and this process runs as user {os.geteuid()}"
        )
    if details.st_mode & 0o077:
        if any(folder.iterdir()):
            raise FolderPermissionError(
                f"The {purpose} folder {folder} has mode {details.st_mode & 0o777:04o}; "
                "only 0700 is allowed",
                hint=f"Check who could read it, then: chmod 700 {folder}",
            )
        folder.chmod(0o700)


def check_private_file(path: Path, *, purpose: str) -> None:
    """Refuse a key file that anyone but its owner may read or write."""
    mode = path.stat().st_mode
    if mode & 0o077:
        raise FolderPermissionError(
            f"The {purpose} file {path} has mode {mode & 0o777:04o}; only 0600 is allowed",
            hint=f"Check who could read it, then: chmod 600 {path}",
        )
