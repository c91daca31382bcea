"""The memory tier: one preallocated slab carved into equal cells, each holding one sealed block.

The tier keeps no names to look up; the session's index does. It knows, a cell, who owns it and
under which name, how many pins it has, when its block was stored and its place in the order of
use. Nothing here takes a lock: the caller holds the index lock for every call except
:meth:`MemoryTier.view`, :meth:`MemoryTier.room` and :meth:`MemoryTier.scrub`, which touch only the
memory of a cell that the caller has reserved, pinned or detached.
"""

import ctypes
import mmap
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from kvrun.cache.errors import CacheBusyError
from kvrun.cache.order import NONE, Sharing, UseOrder
from kvrun.directread import DIRECT_ALIGN, DIRECT_BYTES
from kvrun.memlock import lock_when_touched

_ALIGN = 64
MAX_CELLS = 2**30 - 2
AHEAD_BYTES = 256 * 2**20
"""So much of the slab, and at most a quarter, has its memory before blocks come for it."""
_AT_ONCE_BYTES = 64 * 2**20
_SHORT_OF_AHEAD = 4
_STEP_BYTES = 2 * 2**20
_MADV_POPULATE_WRITE = 23


class CellState(IntEnum):
    """The life of a cell: free, detached (one holder, unlisted), listed, doomed."""

    FREE = 0
    DETACHED = 1
    LISTED = 2
    DOOMED = 3


_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

# Plain numbers: comparing with members of an enum takes three times as long.
_FREE, _DETACHED, _LISTED, _DOOMED = map(int, CellState)


class CellOwner(Protocol):
    """Whoever owns listed cells; accounting needs only its tenant."""

    @property
    def tenant_ref(self) -> str:
        """The pseudonym of the tenant."""


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """Listed cells and sealed bytes of one tenant."""

    blocks: int = 0
    bytes: int = 0


OwnerT = TypeVar("OwnerT", bound=CellOwner)


class MemoryTier(Generic[OwnerT]):
    """Sealed blocks in RAM; ``order`` says which leaves first, and pinned ones never do.

    ``slab_bytes`` is taken at once as address space and excluded from core dumps. It is locked
    page by page as it fills where the limits allow; ``locked`` says whether, ``lock_error`` why
    not. The slab holds sealed bytes only, so an unlocked slab leaks nothing readable to swap.
    ``ready_bytes`` of it, from its beginning, have their memory: see :meth:`make_ready`.
    """

    def __init__(
        self, slab_bytes: int, *, lock: bool = True, sharing: Sharing | None = None
    ) -> None:
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
        self.ready_bytes = 0
        self._used_before = 0
        self._stride = 0
        self.sharing = sharing or Sharing()
        self._reset(0)

    def usage(self) -> dict[str, TenantUsage]:
        """What each tenant holds."""
        return {
            tenant_ref: TenantUsage(share.blocks, share.bytes)
            for tenant_ref, share in self.order.tenants.items()
        }

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
        # The disk writes straight into large cells.
        align = DIRECT_ALIGN if cell_bytes >= DIRECT_BYTES else _ALIGN
        stride = -(-cell_bytes // align) * align
        count = max(1, self.slab_bytes // stride)
        self.cell_bytes = cell_bytes
        self._stride = stride
        self._reset(min(count, MAX_CELLS))
        return False

    def allocate(self) -> int | None:
        """Takes a free cell (it becomes detached), or None when no cell is free."""
        if not self._free:
            return None
        cell = self._free.pop()
        self._state[cell] = CellState.DETACHED
        self.free_cells -= 1
        self.busy_cells += 1
        return cell

    @property
    def is_ready(self) -> bool:
        """Whether the next cell has its memory already."""
        return not self._free or (self._free[-1] + 1) * self._stride <= self.ready_bytes

    def make_ready(self) -> int:
        """Has the system give memory for cells that are used next, a part at a time: new bytes.

        What a block waits for otherwise: first use of memory costs more than the copy into it. The
        content of the slab stays as it is. The daemon calls it every second, without the index
        lock and from one thread; 0 means that enough is ready, or that the system cannot do it.
        While blocks come, an engine computes: then only what runs short is made ready.
        """
        used = (self.cells - self.free_cells) * self._stride
        ahead = min(AHEAD_BYTES, self.slab_bytes // 4)
        quiet, self._used_before = used == self._used_before, used
        start = self.ready_bytes
        if not quiet and start - used >= ahead // _SHORT_OF_AHEAD:
            return 0
        end = min(used + ahead, self.slab_bytes, start + _AT_ONCE_BYTES) // mmap.PAGESIZE
        end *= mmap.PAGESIZE
        try:
            held = self._slab[:]  # the mapping stays while the system works on it
        except ValueError:  # closed
            return 0
        with held:
            for at in range(start, end, _STEP_BYTES):
                size = min(_STEP_BYTES, end - at)
                if _libc.madvise(self._address + at, size, _MADV_POPULATE_WRITE):
                    break  # a kernel before 5.14, or a machine without so much
                self.ready_bytes = at + size
        return self.ready_bytes - start

    def is_beyond_quota(self, tenant_ref: str) -> bool:
        """Whether one more block is more than the tenant may hold."""
        return self.order.is_beyond_quota(tenant_ref, self._stride)

    def victim(self, tenant_ref: str, now: float) -> int:
        """The cell to evict for another block of a tenant; NONE when nothing may go."""
        return self.order.victim(tenant_ref, self._stride, now)

    def enlist(
        self,
        cell: int,
        owner: OwnerT,
        name: bytes,
        size: int,
        *,
        now: float = 0.0,
        stored_at: float = 0.0,
        pins: int = 0,
        continues: int = NONE,
    ) -> None:
        """Lists a detached cell under its owner, as the most recently used one.

        ``stored_at`` is when the block was sealed, seconds since 1970. A block that continues the
        one in the cell ``continues`` is made the next older one instead.
        """
        assert self._state[cell] == CellState.DETACHED
        self._state[cell] = CellState.LISTED
        self._owner[cell] = owner
        self._name[cell] = name
        self._size[cell] = size
        if pins:
            self._pins[cell] = pins
        self._stored_at[cell] = int(stored_at)
        self.listed_blocks += 1
        self.listed_bytes += size
        self.order.add(cell, owner.tenant_ref, size, self._stride, now)
        if not pins:
            self.busy_cells -= 1
            self.order.link(cell, owner.tenant_ref, continues=continues)

    def delist(self, cell: int) -> bool:
        """Takes a listed cell out of order and accounting.

        True: nobody holds it, it is detached and the caller frees it. False: it is pinned, hence
        doomed, and whoever takes off the last pin frees it (see :meth:`unpin`).
        """
        assert self._state[cell] == CellState.LISTED
        tenant_ref = self.owner(cell).tenant_ref
        self.order.remove(cell, tenant_ref, self._size[cell], self._stride)
        self.listed_blocks -= 1
        self.listed_bytes -= self._size[cell]
        self._owner[cell] = None
        self._name[cell] = None
        if cell in self._pins:
            self._state[cell] = CellState.DOOMED
            return False
        self._state[cell] = CellState.DETACHED
        self.busy_cells += 1
        return True

    def delist_all(self, cells: Sequence[int]) -> tuple[list[int], int]:
        """As :meth:`delist`, for cells of one owner: those that nobody holds, and bytes of all."""
        if not cells:
            return [], 0
        tenant_ref = self.owner(cells[0]).tenant_ref
        state, owner, name, pins, sizes = (
            self._state, self._owner, self._name, self._pins, self._size
        )  # fmt: skip
        free, size = [], 0
        for cell in cells:
            assert state[cell] == _LISTED
            size += sizes[cell]
            owner[cell] = name[cell] = None
            if cell in pins:
                state[cell] = _DOOMED
            else:
                state[cell] = _DETACHED
                free.append(cell)
        self.order.remove_all(cells, tenant_ref, size, self._stride * len(cells))
        self.listed_blocks -= len(cells)
        self.listed_bytes -= size
        self.busy_cells += len(free)
        return free, size

    def release(self, cells: Sequence[int]) -> None:
        """Makes detached cells free."""
        state = self._state
        for cell in cells:
            assert state[cell] == _DETACHED
            state[cell] = _FREE
        self._free.extend(cells)
        self.free_cells += len(cells)
        self.busy_cells -= len(cells)

    def pin(self, cell: int) -> None:
        """Keeps a listed cell from eviction and reuse until :meth:`unpin`."""
        assert self._state[cell] == CellState.LISTED
        pins = self._pins.get(cell, 0)
        if not pins:
            self.order.unlink(cell, self.owner(cell).tenant_ref)
            self.busy_cells += 1
        self._pins[cell] = pins + 1

    def unpin(self, cell: int, *, continues: int = NONE) -> bool:
        """Takes off one pin; the last one links the cell as :meth:`enlist` does.

        Returns True when the cell was doomed and this was its last pin: it is detached now, and
        the caller scrubs and releases it.
        """
        pins = self._pins.pop(cell) - 1
        if pins:
            self._pins[cell] = pins
            return False
        if self._state[cell] == CellState.DOOMED:
            self._state[cell] = CellState.DETACHED
            return True
        self.busy_cells -= 1
        self.order.link(cell, self.owner(cell).tenant_ref, continues=continues)
        return False

    def touch(self, cell: int) -> None:
        """Makes an unpinned listed cell the most recently used; a pinned one stays as it is."""
        self.order.touch(cell, self.owner(cell).tenant_ref)

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

    def stored_at(self, cell: int) -> int:
        """When the block in a listed cell was stored, seconds since 1970."""
        return self._stored_at[cell]

    def pins(self, cell: int) -> int:
        """How many pins a cell has."""
        return self._pins.get(cell, 0)

    def view(self, cell: int, size: int) -> memoryview:
        """The first ``size`` bytes of a cell, writable."""
        start = cell * self._stride
        return self._slab[start : start + size]

    def room(self, cell: int) -> memoryview:
        """A whole cell, writable: at least ``cell_bytes`` long."""
        start = cell * self._stride
        return self._slab[start : start + self._stride]

    def scrub(self, cells: Sequence[int]) -> None:
        """Overwrites whole detached cells with zeros (releases the GIL meanwhile)."""
        try:
            held = memoryview(self._map)  # the mapping stays until they are overwritten
        except ValueError:  # closed
            return
        with held:
            stride, start, end = self._stride, 0, 0
            for cell in sorted(cells):
                if cell * stride != end:  # those side by side are overwritten at once
                    self._zero(start, end)
                    start = cell * stride
                end = (cell + 1) * stride
            self._zero(start, end)

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

    def _zero(self, start: int, end: int) -> None:
        if start < end:
            ctypes.memset(self._address + start, 0, min(end, self.slab_bytes) - start)

    def _reset(self, count: int) -> None:
        self._state = array("b", bytes(count))
        self._pins: dict[int, int] = {}
        self._size = array("I", bytes(4 * count))
        self._stored_at = array("I", bytes(4 * count))
        self._owner: list[OwnerT | None] = [None] * count
        self._name: list[bytes | None] = [None] * count
        self._free = array("i", range(count - 1, -1, -1))
        self.order = UseOrder(self.slab_bytes, self.sharing, count)
        self.free_cells = count
        self.busy_cells = 0
        self.listed_blocks = self.listed_bytes = 0
