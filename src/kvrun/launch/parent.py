"""Ending together with the process that started this one."""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "KVRUN_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: str | None) -> None:
    """Get SIGTERM when process ``parent`` dies, even by SIGKILL; exit if it is gone already.

    None (nobody supervises this process) changes nothing.
    """
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if str(os.getppid()) != parent:
        sys.exit("kvrun: the supervisor is gone")
