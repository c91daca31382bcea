"""The memory tier: one preallocated slab carved into equal cells, each holding one sealed block.

The tier keeps no names to look up; the session's index does. It knows, a cell, who owns it and
under which name, how many pins it has and its place in the order of use. Nothing here takes a
lock: the caller holds the index lock for every call except :meth:`MemoryTier.view` and
:meth:`MemoryTier.scrub`, which touch only the memory of a cell that the caller has reserved,
pinned or detached.
"""

import ctypes
import mmap
from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from kvrun.cache.errors import CacheBusyError
from kvrun.memlock import lock_when_touched

_ALIGN = 64
_NONE = -1
MAX_CELLS = 2**30 - 2


class CellState(IntEnum):
    """The life of a cell: free, detached (one holder, unlisted), listed, doomed."""

    FREE = 0
    DETACHED = 1
    LISTED = 2
    DOOMED = 3


class CellOwner(Protocol):
    """Whoever owns listed cells; accounting needs only its tenant."""

    @property
    def tenant_ref(self) -> str:
        """The pseudonym of the tenant."""


@dataclass(slots=True)
class TenantUsage:
    """Listed cells and sealed bytes of one tenant."""

    blocks: int = 0
    bytes: int = 0


OwnerT = TypeVar("OwnerT", bound=CellOwner)


class MemoryTier(Generic[OwnerT]):
    """Sealed blocks in RAM, least recently used first out, pinned cells never.

    ``slab_bytes`` is taken at once as address space and excluded from core dumps. It is locked
    page by page as it fills where the limits allow; ``locked`` says whether, ``lock_error`` why
    not. The slab holds sealed bytes only, so an unlocked slab leaks nothing readable to swap.
    """

    def __init__(self, slab_bytes: int, *, lock: bool = True) -> None:
        if slab_bytes < mmap.PAGESIZE:
            raise ValueError(f"slab_bytes is {slab_bytes}; it must be at least {mmap.PAGESIZE}")
        self.slab_bytes = slab_bytes
        self._map = mmap.mmap(-1, slab_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_DONTDUMP)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._slab = memoryview(self._map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.lock_error = lock_when_touched(self._address, slab_bytes) if lock else "not asked for"
        self.locked = self.lock_error == ""
        self.cell_bytes = 0
        self.free_cells = 0
        self.busy_cells = 0
        self._stride = 0
        self._free = self._oldest = self._newest = _NONE
        self._reset(0)

    @property
    def cells(self) -> int:
        """Number of cells; 0 before the first :meth:`carve`."""
        return len(self._state)

    def carve(self, cell_bytes: int) -> bool:
        """Makes every cell at least ``cell_bytes`` long.

        Returns True when the content was kept (same size as before), False when the tier starts
        empty. Raises CacheBusyError while a cell is pinned or held, ValueError for a cell that
        the slab cannot hold.
        """
        if cell_bytes == self.cell_bytes:
            return True
        if not 0 < cell_bytes <= self.slab_bytes:
            raise ValueError(f"cell_bytes is {cell_bytes}; allowed: 1..{self.slab_bytes}")
        if self.busy_cells:
            raise CacheBusyError(
                f"{self.busy_cells} cells of {self.cell_bytes} bytes are still in use, so the slab "
                f"cannot be carved into cells of {cell_bytes} bytes",
                hint="end the requests of the engine that used them first",
            )
        stride = -(-cell_bytes // _ALIGN) * _ALIGN
        count = max(1, self.slab_bytes // stride)
        self.cell_bytes = cell_bytes
        self._stride = stride
        self._reset(min(count, MAX_CELLS))
        return False

    def allocate(self) -> int | None:
        """Takes a free cell (it becomes detached), or None when no cell is free."""
        cell = self._free
        if cell == _NONE:
            return None
        self._free = self._next[cell]
        self._state[cell] = CellState.DETACHED
        self.free_cells -= 1
        self.busy_cells += 1
        return cell

    def enlist(self, cell: int, owner: OwnerT, name: bytes, size: int, *, pins: int = 0) -> None:
        """Lists a detached cell under its owner, as the most recently used one."""
        assert self._state[cell] == CellState.DETACHED
        self._state[cell] = CellState.LISTED
        self._owner[cell] = owner
        self._name[cell] = name
        self._size[cell] = size
        self._pins[cell] = pins
        self.listed_blocks += 1
        self.listed_bytes += size
        usage = self.usage.setdefault(owner.tenant_ref, TenantUsage())
        usage.blocks += 1
        usage.bytes += size
        if not pins:
            self.busy_cells -= 1
            self._link(cell)

    def delist(self, cell: int) -> bool:
        """Takes a listed cell out of order and accounting.

        True: nobody holds it, it is detached and the caller frees it. False: it is pinned, hence
        doomed, and whoever takes off the last pin frees it (see :meth:`unpin`).
        """
        assert self._state[cell] == CellState.LISTED
        owner = self.owner(cell)
        usage = self.usage[owner.tenant_ref]
        usage.blocks -= 1
        usage.bytes -= self._size[cell]
        self.listed_blocks -= 1
        self.listed_bytes -= self._size[cell]
        if not usage.blocks:
            del self.usage[owner.tenant_ref]
        self._owner[cell] = None
        self._name[cell] = None
        if self._pins[cell]:
            self._state[cell] = CellState.DOOMED
            return False
        self._unlink(cell)
        self._state[cell] = CellState.DETACHED
        self.busy_cells += 1
        return True

    def release(self, cell: int) -> None:
        """Makes a detached cell free."""
        assert self._state[cell] == CellState.DETACHED
        self._state[cell] = CellState.FREE
        self._next[cell] = self._free
        self._free = cell
        self.free_cells += 1
        self.busy_cells -= 1

    def pin(self, cell: int) -> None:
        """Keeps a listed cell from eviction and reuse until :meth:`unpin`."""
        assert self._state[cell] == CellState.LISTED
        if not self._pins[cell]:
            self._unlink(cell)
            self.busy_cells += 1
        self._pins[cell] += 1

    def unpin(self, cell: int) -> bool:
        """Takes off one pin; the last one makes the cell the most recently used.

        Returns True when the cell was doomed and this was its last pin: it is detached now, and
        the caller scrubs and releases it.
        """
        assert self._pins[cell] > 0
        self._pins[cell] -= 1
        if self._pins[cell]:
            return False
        if self._state[cell] == CellState.DOOMED:
            self._state[cell] = CellState.DETACHED
            return True
        self.busy_cells -= 1
        self._link(cell)
        return False

    def touch(self, cell: int) -> None:
        """Makes an unpinned listed cell the most recently used; a pinned one stays as it is."""
        if not self._pins[cell] and cell != self._newest:
            self._unlink(cell)
            self._link(cell)

    def oldest(self) -> int | None:
        """The least recently used cell that may be evicted."""
        return None if self._oldest == _NONE else self._oldest

    def owner(self, cell: int) -> OwnerT:
        """The owner of a listed cell."""
        owner = self._owner[cell]
        assert owner is not None
        return owner

    def name(self, cell: int) -> bytes:
        """The name of a listed cell."""
        name = self._name[cell]
        assert name is not None
        return name

    def size(self, cell: int) -> int:
        """The sealed bytes in a listed cell."""
        return self._size[cell]

    def pins(self, cell: int) -> int:
        """How many pins a cell has."""
        return self._pins[cell]

    def view(self, cell: int, size: int) -> memoryview:
        """The first ``size`` bytes of a cell, writable."""
        start = cell * self._stride
        return self._slab[start : start + size]

    def scrub(self, cell: int) -> None:
        """Overwrites a whole detached cell with zeros (releases the GIL meanwhile)."""
        if self._map.closed:
            return
        size = min(self._stride, self.slab_bytes - cell * self._stride)
        ctypes.memset(self._address + cell * self._stride, 0, size)

    def close(self) -> None:
        """Gives the slab back once no view of it is left; listed content is gone."""
        self._reset(0)
        self.cell_bytes = 0
        self._slab.release()
        try:
            self._map.close()
        except BufferError:
            # A reader still holds a view; the mapping goes with the last of them.
            return

    def _reset(self, count: int) -> None:
        self._state = array("b", bytes(count))
        self._pins = array("i", bytes(4 * count))
        self._size = array("I", bytes(4 * count))
        self._prev = array("i", bytes(4 * count))
        self._next = array("i", range(1, count + 1))
        if count:
            self._next[count - 1] = _NONE
        self._owner: list[OwnerT | None] = [None] * count
        self._name: list[bytes | None] = [None] * count
        self._free = 0 if count else _NONE
        self._oldest = self._newest = _NONE
        self.free_cells = count
        self.busy_cells = 0
        self.listed_blocks = self.listed_bytes = 0
        self.usage: dict[str, TenantUsage] = {}

    def _link(self, cell: int) -> None:
        self._prev[cell] = self._newest
        self._next[cell] = _NONE
        if self._newest == _NONE:
            self._oldest = cell
        else:
            self._next[self._newest] = cell
        self._newest = cell

    def _unlink(self, cell: int) -> None:
        before, after = self._prev[cell], self._next[cell]
        if before == _NONE:
            self._oldest = after
        else:
            self._next[before] = after
        if after == _NONE:
            self._newest = before
        else:
            self._prev[after] = before
