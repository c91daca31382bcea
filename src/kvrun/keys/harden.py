"""Process settings that keep keys out of core dumps and away from debuggers."""

import contextlib
import ctypes
import resource
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HardenReport:
    """What :func:`harden_process` reached; read back from the kernel, not assumed."""

    not_dumpable: bool
    """PR_SET_DUMPABLE is 0: no core file, no ptrace and no /proc/PID/mem for the same user."""
    core_limit_zero: bool
    """Soft and hard RLIMIT_CORE are 0."""

    @property
    def complete(self) -> bool:
        return self.not_dumpable and self.core_limit_zero


def harden_process() -> HardenReport:
    """Switch core dumps off for this process and its children's limits.

    The dumpable flag is reset by ``execve``: a child process calls this for itself.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return HardenReport(
        not_dumpable=libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0,
        core_limit_zero=resource.getrlimit(resource.RLIMIT_CORE) == (0, 0),
    )


_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
