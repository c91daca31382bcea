"""Reading files of sealed blocks: straight from the disk where that is possible, else as usual.

Large blocks go past the page cache (``O_DIRECT``): the disk writes into the memory tier's cell or
the buffer that a block is opened out of, nothing is copied, and a restore pushes nothing out of the
system's cache. ADR 0030 has the figures.
"""

import ctypes
import errno
import fcntl
import mmap
import os

DIRECT_ALIGN = 4096
"""What address, offset and length of a direct read are multiples of, on any disk in use."""
DIRECT_BYTES = 256 * 1024
"""What is smaller is read through the page cache."""


def read_file(file: int, out: memoryview, *, offset: int = 0, direct: bool = True) -> int:
    """Reads ``len(out)`` bytes of an open file from ``offset`` on; returns how many there were.

    ``direct`` is tried where ``out`` and ``offset`` begin at a multiple of ``DIRECT_ALIGN`` and
    ``out`` is large enough. Raises OSError.
    """
    done = 0
    if direct and not offset % DIRECT_ALIGN and _may_be_direct(out):
        done, ended = _read_direct(file, out, offset)
        if ended:
            return done
    while done < len(out):
        count = os.preadv(file, [out[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def read_part(file: int, offset: int, size: int) -> memoryview:
    """``size`` bytes of an open file from ``offset`` on, in memory of their own; fewer at its end.

    Raises OSError.
    """
    before = offset % DIRECT_ALIGN
    # Whole pages of the disk; what lies around the part is cut off again.
    length = -(-(before + size) // DIRECT_ALIGN) * DIRECT_ALIGN
    # Not a bytearray: that would be zeroed here, with the GIL held.
    room = memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    done = read_file(file, room, offset=offset - before)
    return room[before : min(done, before + size)].toreadonly()


def _may_be_direct(out: memoryview) -> bool:
    if len(out) < DIRECT_BYTES or out.readonly:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(out)) % DIRECT_ALIGN == 0


def _read_direct(file: int, out: memoryview, offset: int) -> tuple[int, bool]:
    """How many bytes came, and whether the file ends there."""
    whole = len(out) // DIRECT_ALIGN * DIRECT_ALIGN
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        while done < whole:
            count = os.preadv(file, [out[done:whole]], offset + done)
            if not count:
                return done, True
            done += count
            if count % DIRECT_ALIGN:
                break  # most likely the end; a file system may also give less than was asked for
    except OSError as error:
        # The file system cannot do it (tmpfs, some network and overlay mounts).
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return done, False
