"""What a session hands out: views, pins, reservations and the report of a drop."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from kvrun.cache.events import Tier


@dataclass(frozen=True, slots=True)
class SealedView:
    """A sealed block while it is being read: read-only bytes and the tier they came from."""

    view: memoryview
    tier: Tier


class HeldByTier(NamedTuple):
    """What a session has by tier: blocks and their sealed bytes."""

    memory_blocks: int
    memory_bytes: int
    disk_blocks: int
    disk_bytes: int
    object_blocks: int = 0
    object_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DropReport:
    """What a drop removed: distinct ``blocks`` with their sealed ``bytes``, then by tier.

    ``held`` blocks were in use at that moment: they are unlisted, and zeroed when their holder
    lets go. ``failed`` files could not be removed, ``object_failed`` packs are left for later.
    """

    blocks: int = 0
    bytes: int = 0
    memory_blocks: int = 0
    memory_bytes: int = 0
    disk_blocks: int = 0
    disk_bytes: int = 0
    held: int = 0
    failed: int = 0
    object_blocks: int = 0
    object_bytes: int = 0
    object_failed: int = 0


class Reservation:
    """Room for one block. Fill ``view``, then :meth:`commit`; leaving the context aborts."""

    __slots__ = ("_end_with", "_open", "name", "size", "view")

    def __init__(self, name: bytes, view: memoryview, end_with: Callable[[bool], bool]) -> None:
        self.name = name
        self.size = len(view)
        self.view = view
        self._end_with = end_with
        self._open = True

    def commit(self) -> bool:
        """Lists the block. False: the session was dropped meanwhile and the bytes are zeroed."""
        return self._end(keep=True)

    def abort(self) -> None:
        """Gives the room back; the bytes are zeroed. No effect after commit."""
        if self._open:
            self._end(keep=False)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _end(self, *, keep: bool) -> bool:
        if not self._open:
            raise ValueError("the reservation has ended already")
        self._open = False
        self.view.release()
        return self._end_with(keep)
