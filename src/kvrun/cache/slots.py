"""Indexed blocks of the disk tier in order of use, as arrays: about 40 bytes a block."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from kvrun.cache.order import NONE, Sharing, UseOrder


class SlotOwner(Protocol):
    """Whoever owns blocks; the order of use needs only its tenant."""

    @property
    def tenant_ref(self) -> str:
        """The pseudonym of the tenant."""


OwnerT = TypeVar("OwnerT", bound=SlotOwner)


class Slots(Generic[OwnerT]):
    """What the disk tier knows of each indexed block. Not thread-safe: the tier holds its lock.

    Public arrays are read by slot: ``owner``, ``name``, ``size`` (bytes) and ``stored_at``
    (seconds since 1970). ``order`` says which block leaves first.
    """

    def __init__(self, capacity_bytes: int, sharing: Sharing) -> None:
        self.owner: list[OwnerT | None] = []
        self.name: list[bytes | None] = []
        self.size = array("I")
        self.stored_at = array("I")
        self.order = UseOrder(capacity_bytes, sharing)
        self._free = array("i")

    def __len__(self) -> int:
        """How many slots there are, free ones too."""
        return len(self.owner)

    def add(
        self,
        owner: OwnerT,
        name: bytes,
        size: int,
        wall: float,
        *,
        stored_at: float,
        continues: int = NONE,
    ) -> int:
        """Indexes a block as the most recently used one; returns its slot.

        A block that continues the one in the slot ``continues`` is made the next older one.
        """
        if self._free:
            slot = self._free.pop()
            self.owner[slot], self.name[slot], self.size[slot] = owner, name, size
        else:
            slot = len(self.owner)
            self.owner.append(owner)
            self.name.append(name)
            self.size.append(size)
            self.stored_at.append(0)
        self.stored_at[slot] = int(stored_at)
        self.order.add(slot, owner.tenant_ref, size, size, wall)
        # Its slot may have been given to another owner's block since it was looked up.
        if continues != NONE and self.owner[continues] is not owner:
            continues = NONE
        self.order.link(slot, owner.tenant_ref, continues=continues)
        return slot

    def remove(self, slot: int) -> None:
        """Forgets a block; its slot is used again later."""
        owner, name = self.owner[slot], self.name[slot]
        assert owner is not None
        assert name is not None
        self.remove_all(owner, ((name, slot),))

    def remove_all(
        self, owner: OwnerT, blocks: Iterable[tuple[bytes, int]]
    ) -> tuple[list[bytes], int]:
        """Forgets those of the blocks, (name, slot), that are the owner's: names, and bytes."""
        owners, names, sizes = self.owner, self.name, self.size
        removed: list[bytes] = []
        slots: list[int] = []
        size = 0
        for name, slot in blocks:
            if owners[slot] is owner and names[slot] == name:
                owners[slot] = names[slot] = None
                removed.append(name)
                slots.append(slot)
                size += sizes[slot]
        if slots:
            self.order.remove_all(slots, owner.tenant_ref, size, size)
            self._free.extend(slots)
        return removed, size

    def touch(self, owner: OwnerT, slots: Sequence[int], wall: float) -> None:
        """Makes an owner's blocks the most recently used ones; slots of others are left alone."""
        owners = self.owner
        mine = [slot for slot in slots if owners[slot] is owner]
        self.order.touch_all(mine, owner.tenant_ref)
        self.order.note_use(owner.tenant_ref, wall)

    def hold(self, slot: int) -> None:
        """Keeps a block from being the next to go."""
        owner = self.owner[slot]
        assert owner is not None
        if self.order.is_linked(slot):
            self.order.unlink(slot, owner.tenant_ref)

    def let_go(self, slot: int) -> None:
        """Ends :meth:`hold`."""
        owner = self.owner[slot]
        assert owner is not None
        if not self.order.is_linked(slot):
            self.order.link(slot, owner.tenant_ref)

    def is_of(self, slot: int, owner: OwnerT, name: bytes) -> bool:
        """Whether the slot still belongs to this block."""
        return self.owner[slot] is owner and self.name[slot] == name
