"""The packs of one opened session, by small numbers: 4 bytes a block and no names.

A block's place in them is one number, ``packed``: the pack's number and the block's in that pack.
Nothing here takes a lock: the caller holds the index lock.
"""

from array import array
from dataclasses import dataclass

from kvrun.cache.pack import PackIndex

_ENTRY_BITS = 15
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1
MAX_PACKS = 2**15 - 1


@dataclass(slots=True)
class Pack:
    """One pack: where each block begins, and how much of it the session's index still points to.

    ``starts`` has one more item than there are blocks: where the last one ends.
    """

    name: str
    created: int
    starts: "array[int]"
    live_blocks: int = 0
    live_bytes: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks it holds, dead ones included."""
        return len(self.starts) - 1

    @property
    def blocks_bytes(self) -> int:
        """The bytes of all its blocks."""
        return self.starts[-1]

    def span(self, entry: int) -> tuple[int, int]:
        """Where a block begins, and its size in bytes."""
        return self.starts[entry], self.starts[entry + 1] - self.starts[entry]


@dataclass(slots=True)
class PackTotals:
    """What the indexes of all sessions point to in packs."""

    blocks: int = 0
    bytes: int = 0


class PackTable:
    """The packs of one session that are indexed; ``totals`` are those of all sessions."""

    def __init__(self, totals: PackTotals) -> None:
        self.blocks = 0
        self.bytes = 0
        self._totals = totals
        self._packs: list[Pack | None] = []
        self._numbers: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def packs(self) -> list[Pack]:
        """All of them, oldest first."""
        found = [pack for pack in self._packs if pack is not None]
        return sorted(found, key=lambda pack: (pack.created, pack.name))

    def add(self, name: str, index: PackIndex) -> int | None:
        """Takes a pack in, none of its blocks alive yet; its number, None where there are too many.

        A pack that is in already keeps its number.
        """
        if name in self._numbers:
            return self._numbers[name]
        starts = array("I", [0])
        for entry in index.entries:
            starts.append(starts[-1] + entry.size)
        number = next((n for n, pack in enumerate(self._packs) if pack is None), len(self._packs))
        if number == MAX_PACKS:
            return None
        pack = Pack(name, index.created, starts)
        if number == len(self._packs):
            self._packs.append(pack)
        else:
            self._packs[number] = pack
        self._numbers[name] = number
        return number

    def number(self, name: str) -> int:
        """The number of a pack that is in, -1 for any other."""
        return self._numbers.get(name, -1)

    def remove(self, name: str) -> int | None:
        """Forgets a pack; the number that it had."""
        number = self._numbers.pop(name, None)
        if number is None:
            return None
        pack = self._packs[number]
        assert pack is not None
        self._add(-pack.live_blocks, -pack.live_bytes)
        self._packs[number] = None
        return number

    def find(self, packed: int) -> tuple[Pack, int] | None:
        """The pack of a place and the block's number in it."""
        number, entry = number_of(packed), entry_of(packed)
        pack = self._packs[number] if number < len(self._packs) else None
        return (pack, entry) if pack is not None and entry < pack.blocks else None

    def age(self, packed: int) -> tuple[int, str, int]:
        """What sorts places from the oldest pack's first block to the newest pack's last."""
        found = self.find(packed) if packed >= 0 else None
        return (found[0].created, found[0].name, found[1]) if found is not None else (-1, "", -1)

    def ranks_after(self, packed: int) -> dict[int, int]:
        """The pack of a place and those written later, by number: 0 for itself, then 1 and so on.

        None of them for a place in no pack.
        """
        found = self.find(packed) if packed >= 0 else None
        if found is None:
            return {}
        first = (found[0].created, found[0].name)
        later = [pack for pack in self.packs() if (pack.created, pack.name) >= first]
        return {self._numbers[pack.name]: rank for rank, pack in enumerate(later)}

    def size(self, packed: int) -> int:
        """The sealed bytes of a block, 0 where it is in no pack any more."""
        found = self.find(packed)
        return found[0].span(found[1])[1] if found is not None else 0

    def revive(self, packed: int) -> None:
        """The session's index points to this block now."""
        self._count(packed, 1)

    def bury(self, packed: int) -> None:
        """The session's index points elsewhere, or nowhere."""
        self._count(packed, -1)

    def clear(self) -> None:
        """Forgets everything."""
        self._add(-self.blocks, -self.bytes)
        self._packs.clear()
        self._numbers.clear()

    def _count(self, packed: int, step: int) -> None:
        found = self.find(packed)
        if found is None:
            return
        pack, entry = found
        size = pack.span(entry)[1] * step
        pack.live_blocks += step
        pack.live_bytes += size
        self._add(step, size)

    def _add(self, blocks: int, size: int) -> None:
        self.blocks += blocks
        self.bytes += size
        self._totals.blocks += blocks
        self._totals.bytes += size


def packed_at(number: int, entry: int) -> int:
    """The place of a pack's block."""
    return number << _ENTRY_BITS | entry


def number_of(packed: int) -> int:
    """The number of a place's pack."""
    return packed >> _ENTRY_BITS


def entry_of(packed: int) -> int:
    """Which block of its pack a place is."""
    return packed & _ENTRY_MASK
