"""Indexed blocks of the disk tier in order of use, as arrays: about 30 bytes a block."""

from array import array
from typing import Generic, TypeVar

NONE = -1
OwnerT = TypeVar("OwnerT")


class Slots(Generic[OwnerT]):
    """What the disk tier knows of each indexed block. Not thread-safe: the tier holds its lock.

    Public arrays are read by slot: ``owner``, ``name``, ``size`` (bytes), ``used`` (seconds since
    1970). ``oldest`` is the least recently used slot, NONE when there is none.
    """

    def __init__(self) -> None:
        self.owner: list[OwnerT | None] = []
        self.name: list[bytes | None] = []
        self.size = array("I")
        self.used = array("I")
        self._prev = array("i")
        self._next = array("i")
        self._free = NONE
        self.oldest = NONE
        self._newest = NONE

    def add(self, owner: OwnerT, name: bytes, size: int, wall: float) -> int:
        """Indexes a block as the most recently used one; returns its slot."""
        slot = self._free
        if slot == NONE:
            slot = len(self.owner)
            self.owner.append(owner)
            self.name.append(name)
            self.size.append(size)
            self.used.append(0)
            self._prev.append(NONE)
            self._next.append(NONE)
        else:
            self._free = self._next[slot]
            self.owner[slot], self.name[slot], self.size[slot] = owner, name, size
        self._link(slot, wall)
        return slot

    def remove(self, slot: int) -> None:
        """Forgets a block; its slot is used again later."""
        self._unlink(slot)
        self.owner[slot] = self.name[slot] = None
        self._next[slot] = self._free
        self._free = slot

    def touch(self, slot: int, wall: float) -> None:
        """Makes a block the most recently used one."""
        self._unlink(slot)
        self._link(slot, wall)

    def is_of(self, slot: int, owner: OwnerT, name: bytes) -> bool:
        """Whether the slot still belongs to this block."""
        return self.owner[slot] is owner and self.name[slot] == name

    def oldest_until(self, size: int) -> list[tuple[OwnerT, bytes, int]]:
        """The least recently used blocks that hold ``size`` bytes together."""
        found: list[tuple[OwnerT, bytes, int]] = []
        slot = self.oldest
        while slot != NONE and size > 0:
            owner, name = self.owner[slot], self.name[slot]
            assert owner is not None
            assert name is not None
            found.append((owner, name, slot))
            size -= self.size[slot]
            slot = self._next[slot]
        return found

    def _link(self, slot: int, wall: float) -> None:
        self.used[slot] = int(wall)
        self._prev[slot] = self._newest
        self._next[slot] = NONE
        if self._newest == NONE:
            self.oldest = slot
        else:
            self._next[self._newest] = slot
        self._newest = slot

    def _unlink(self, slot: int) -> None:
        before, after = self._prev[slot], self._next[slot]
        if before == NONE:
            self.oldest = after
        else:
            self._next[before] = after
        if after == NONE:
            self._newest = before
        else:
            self._prev[after] = before
