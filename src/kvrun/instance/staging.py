"""Staging: the only memory outside the engine in which plaintext KV may exist.

One memfd region a worker, cut into equal slots. The worker takes and gives slots; the daemon
zeroes a slot before it is free again and zeroes all of it when the worker goes away. A slot's
generation grows at every release, so that a late message about an earlier use is recognised.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from kvrun.errors import KvrunError
from kvrun.instance.protocol import ProtocolError
from kvrun.memlock import lock_when_touched, unlock_memory

_SLOT_ALIGNMENT = 4096
_MADV_DONTDUMP = 16


class StagingError(KvrunError):
    """Staging memory cannot be had or does not fit what it is used for."""


def slot_size(largest_block_bytes: int) -> int:
    """Bytes of one slot: the largest block, rounded up to whole pages."""
    return -(-largest_block_bytes // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT


class StagingRegion:
    """A mapped staging region, on either side of the socket."""

    def __init__(self, fd: int, slot_bytes: int, slots: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.closed = False
        size = slot_bytes * slots
        if os.fstat(fd).st_size != size:
            raise StagingError(
                f"the staging descriptor holds {os.fstat(fd).st_size} bytes, {size} were announced"
            )
        self._map = mmap.mmap(fd, size)
        self._map.madvise(_MADV_DONTDUMP)
        self.view = memoryview(self._map)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)
        # Lock pages as they are touched: sized for the longest prompt, it is rarely used whole.
        self.locked = not lock_when_touched(self.address, size)

    def slot(self, index: int, size_bytes: int) -> memoryview:
        """The first ``size_bytes`` of a slot.

        Raises:
            ProtocolError: no such slot, or it is too small.
        """
        if not 0 <= index < self.slots or not 0 <= size_bytes <= self.slot_bytes:
            raise ProtocolError(
                f"staging slot {index} with {size_bytes} bytes does not exist",
                hint=f"slots 0 to {self.slots - 1} of {self.slot_bytes} bytes are allowed",
            )
        start = index * self.slot_bytes
        return self.view[start : start + size_bytes]

    def zero(self, index: int) -> None:
        """Overwrite one slot with zeros (releases the GIL)."""
        ctypes.memset(self.address + index * self.slot_bytes, 0, self.slot_bytes)

    def zero_all(self) -> None:
        """Give the whole region back to the system, which hands out zeros afterwards."""
        unlock_memory(self.address, len(self.view))  # locked pages cannot be given back
        try:
            self._map.madvise(mmap.MADV_REMOVE)
        except OSError:
            ctypes.memset(self.address, 0, len(self.view))
        if self.locked:
            lock_when_touched(self.address, len(self.view))

    def close(self) -> None:
        """Unmap; the memory is gone when the other side unmaps too.

        Where a view of it is still held somewhere, the mapping goes with that view.
        """
        self.closed = True
        del self._anchor
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()


def create_region(slot_bytes: int, slots: int) -> tuple[StagingRegion, int]:
    """A new region and its descriptor, to be sent to the worker and then closed.

    Raises:
        StagingError: the system has no memory for it.
    """
    fd = os.memfd_create("kvrun-staging", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, slot_bytes * slots)
        return StagingRegion(fd, slot_bytes, slots), fd
    except (OSError, OverflowError, ValueError) as error:
        os.close(fd)
        raise StagingError(
            f"no staging memory of {slot_bytes * slots} bytes: {error}",
            hint="lower deployment.context_window or give the machine more memory",
        ) from error


class SlotTable:
    """The worker's free list: newest first, so that few pages are ever touched."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._generation = [0] * slots
        self._taken = [False] * slots
        self.capacity = slots

    @property
    def free(self) -> int:
        """How many slots can be taken now."""
        return len(self._free)

    def take(self) -> tuple[int, int] | None:
        """A free slot and its generation, or None."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._taken[slot] = True
        return slot, self._generation[slot]

    def generation(self, slot: int) -> int:
        """The generation in which the slot is in use."""
        return self._generation[slot]

    def give_back(self, slot: int, generation: int) -> bool:
        """Free a slot that the daemon zeroed; False for an unknown or earlier use."""
        if not 0 <= slot < self.capacity:
            return False
        if not self._taken[slot] or self._generation[slot] != generation:
            return False
        self._taken[slot] = False
        self._generation[slot] += 1
        self._free.append(slot)
        return True
