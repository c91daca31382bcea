"""A Unix socket that only this user reaches: 0600, in a folder of its own that is 0700."""

import os
import socket
import stat
from pathlib import Path

from kvrun.errors import KvrunError


class SharedFolderError(KvrunError):
    """The folder that a socket is to be in belongs to others as well."""

    exit_code = 2


def listen_privately(path: Path, backlog: int) -> socket.socket:
    """Listen at ``path``, in the place of a socket that nobody serves any more.

    The folder is made, or closed to others; raises SharedFolderError for one that others may write
    into (/tmp), which is not ours to close. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_mode & stat.S_IWOTH:
        raise SharedFolderError(
            f"the socket {path} would be in a folder that others use as well",
            hint="Name a path in a folder of this user's own.",
        )
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    earlier = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(earlier)
    listener.listen(backlog)
    return listener
