"""Which staging slots hold a request's plaintext, so that an erasure can wait until none does."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

Link = TypeVar("Link")


class PlaintextSlots(Generic[Link]):
    """Slots by link and number, each with the handle it holds plaintext for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[tuple[Link, int], int] = {}

    def fill(self, link: Link, slots: Iterable[int], handle: int) -> None:
        """Plaintext of a handle is in these slots, or is about to be."""
        with self._changed:
            for slot in slots:
                self._held[link, slot] = handle

    def clear(self, link: Link, slots: Iterable[int]) -> None:
        """These slots are zero."""
        with self._changed:
            for slot in slots:
                self._held.pop((link, slot), None)
            self._changed.notify_all()

    def forget(self, link: Link) -> None:
        """The link's memory is gone as a whole."""
        with self._changed:
            for key in [key for key in self._held if key[0] is link]:
                del self._held[key]
            self._changed.notify_all()

    def wait_clear(self, handles: Collection[int], timeout_s: float) -> list[tuple[Link, int]]:
        """Wait until no slot holds plaintext of these handles; those that do when time is up."""
        wanted, deadline = set(handles), time.monotonic() + timeout_s
        with self._changed:
            while True:
                left = [key for key, handle in self._held.items() if handle in wanted]
                rest = deadline - time.monotonic()
                if not left or rest <= 0:
                    return left
                self._changed.wait(rest)
