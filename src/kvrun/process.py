"""What a process asks of the kernel for itself: no core dumps, and an end with its parent."""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

PARENT_VARIABLE = "KVRUN_PARENT_PID"


@dataclass(frozen=True, slots=True)
class HardenReport:
    """What :func:`harden_process` reached; read back from the kernel, not assumed."""

    not_dumpable: bool
    """PR_SET_DUMPABLE is 0: no core file, no ptrace and no /proc/PID/mem for the same user."""
    core_limit_zero: bool
    """Soft and hard RLIMIT_CORE are 0."""

    @property
    def complete(self) -> bool:
        """Whether both hold."""
        return self.not_dumpable and self.core_limit_zero


def harden_process() -> HardenReport:
    """Switch core dumps off for this process and its children's limits.

    The dumpable flag is reset by ``execve``: a child process calls this for itself.
    """
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return HardenReport(
        not_dumpable=_libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0,
        core_limit_zero=resource.getrlimit(resource.RLIMIT_CORE) == (0, 0),
    )


def leave_no_core() -> None:
    """Keep this process, and those that it starts, out of core dumps, though it stays dumpable.

    For engines, into whose /proc entries others of the same user look: whoever starts them takes
    away their shared memory, and CUDA passes memory on by descriptors of processes. A limit of
    exactly 1 byte means no file, which needs a page at least, and no pipe: the kernel starts no
    program for a process with that limit, as it does for one with 0 (fs/coredump.c, do_coredump).
    Where something else takes the core, such as a socket (Linux 6.16), or the limit is lower and
    cannot be raised, ``coredump_filter`` leaves all memory out of it (core(5)).
    """
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    with contextlib.suppress(OSError):
        Path("/proc/self/coredump_filter").write_text("0\n", encoding="ascii")


def end_with_parent(parent: str | None) -> None:
    """Get SIGTERM when process ``parent`` dies, even by SIGKILL; exit if it is gone already.

    None (nobody supervises this process) changes nothing.
    """
    if parent is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if str(os.getppid()) != parent:
        sys.exit("kvrun: the supervisor is gone")


_PR_SET_PDEATHSIG = 1
_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_libc = ctypes.CDLL(None, use_errno=True)
