"""Memory that must not reach a swap device: mlock(2) and mlock2(2), and why they refused."""

import ctypes
import os

_MLOCK_ONFAULT = 1
_libc = ctypes.CDLL(None, use_errno=True)


def lock_memory(address: int, size: int) -> str:
    """Lock ``size`` bytes from ``address`` on, now; empty, or why the kernel refused."""
    return _reason(_libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)), size)


def lock_when_touched(address: int, size: int) -> str:
    """Lock each page when it is first touched; empty, or why the kernel refused."""
    try:
        mlock2 = _libc.mlock2
    except AttributeError:
        return "this C library has no mlock2"
    flags = ctypes.c_uint(_MLOCK_ONFAULT)
    return _reason(mlock2(ctypes.c_void_p(address), ctypes.c_size_t(size), flags), size)


def unlock_memory(address: int, size: int) -> None:
    """Let the pages be swapped, or given back to the system, again."""
    _libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(size))


def _reason(result: int, size: int) -> str:
    if result == 0:
        return ""
    return f"{size} bytes: {os.strerror(ctypes.get_errno())} (see ulimit -l)"
