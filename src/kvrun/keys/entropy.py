"""Randomness that goes straight into a caller's buffer, so that no ``bytes`` holds a key."""

import ctypes
import os
from collections.abc import Callable

from kvrun.keys.errors import KeysError

RandomInto = Callable[[memoryview], None]
"""Fills the whole writable view with random bytes."""


def getrandom(view: memoryview) -> None:
    """Fill ``view`` from getrandom(2) without an intermediate ``bytes``."""
    filled = 0
    while filled < len(view):
        rest = view[filled:]
        target = (ctypes.c_char * len(rest)).from_buffer(rest)
        count = int(_libc.getrandom(target, ctypes.c_size_t(len(rest)), ctypes.c_uint(0)))
        if count < 0:
            number = ctypes.get_errno()
            raise KeysError(f"getrandom(2) failed: {os.strerror(number)}")
        filled += count


_libc = ctypes.CDLL(None, use_errno=True)
_libc.getrandom.restype = ctypes.c_ssize_t
