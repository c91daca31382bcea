"""Unlinking every file of a folder without the interpreter between two of them.

Each file that Python unlinks hands the interpreter's lock on and waits for it again, which takes
requests longer than the unlinking itself. The C library walks a folder by itself, and what it
calls for each name is its own ``unlink``. That is done by threads that the scheduler lets run
after all others.
"""

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

_THREADS = 16
"""They wait for the device most of the time where it is told of every block that is freed."""
_NICENESS = 10
_FTW_PHYS, _FTW_MOUNT, _FTW_DEPTH = 1, 2, 8
_OPEN_FOLDERS = 4
_libc = ctypes.CDLL(None, use_errno=True)


class Unlinker:
    """Empties folders, several side by side. Thread-safe; has threads of its own from its first
    use to :meth:`close`."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(
            _THREADS, thread_name_prefix="kvrun-unlink", initializer=_step_back
        )

    def close(self) -> None:
        """Waits for what is being emptied, and ends."""
        self._threads.shutdown()

    def empty(self, folder: int) -> int:
        """Unlinks what stands in an open folder; how many entries could not be, such as folders.

        Raises OSError where the folder cannot be listed.
        """
        if _has_no_folders(folder):
            self._threads.submit(_walk, folder).result()
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        return sum(not _unlinked(folder, name) for name in names)


def _step_back() -> None:
    """On Linux the niceness is a thread's own, whatever the function's name says."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _walk(folder: int) -> None:
    """Unlinks files until one cannot be. The walk ends with the folder itself, which ``unlink``
    refuses, so that the result says nothing."""
    path = ctypes.c_char_p(f"/proc/self/fd/{folder}/.".encode())
    with suppress(AttributeError):  # a C library without it
        unlink = ctypes.cast(_libc.unlink, ctypes.c_void_p)
        _libc.nftw(path, unlink, _OPEN_FOLDERS, _FTW_PHYS | _FTW_MOUNT | _FTW_DEPTH)


def _has_no_folders(folder: int) -> bool:
    """The walk would go into them, and they are not ours. Some file systems count none."""
    if os.fstat(folder).st_nlink == 2:
        return True
    with os.scandir(folder) as entries:
        return not any(entry.is_dir(follow_symlinks=False) for entry in entries)


def _unlinked(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
