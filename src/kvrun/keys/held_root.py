"""What every root does that holds its root key in locked memory: wrap, unwrap, count epochs."""

import threading
from pathlib import Path
from typing import Generic, TypeVar

from kvrun.keys.entropy import RandomInto
from kvrun.keys.errors import EpochGoneError, RootError
from kvrun.keys.root import RootFacts, check_next_epoch
from kvrun.keys.wrap import KeyWrapper

Place = TypeVar("Place")
"""What a root remembers of a live epoch: where its key is."""


class HeldRoot(Generic[Place]):
    """The base of roots. ``key`` is 32 bytes of locked memory that the derived class fills.

    A derived class sets ``_facts`` and ``_folder``, and takes ``_busy`` around everything that
    changes something.
    """

    _facts: RootFacts
    _folder: Path | None = None

    def __init__(self, key: memoryview, random_into: RandomInto) -> None:
        self._key = key
        self._random_into = random_into
        self._busy = threading.RLock()
        self._epochs: dict[int, Place] = {}

    @property
    def facts(self) -> RootFacts:
        """What this root is."""
        return self._facts

    @property
    def folder(self) -> Path | None:
        """See :attr:`Root.folder`."""
        return self._folder

    def wrap(self, context: bytes, secret: memoryview) -> bytes:
        """See :meth:`Root.wrap`."""
        with self._busy:
            return self._wrapper().wrap(context, secret)

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :meth:`Root.unwrap_into`."""
        with self._busy:
            self._wrapper().unwrap_into(context, wrapped, out)

    def epochs(self) -> tuple[int, ...]:
        """Numbers of the live epoch keys in rising order."""
        return tuple(sorted(self._epochs))

    def _wrapper(self) -> KeyWrapper:
        return KeyWrapper(self._key, self._random_into)

    def _require_next(self, epoch: int) -> None:
        problem = check_next_epoch(self.epochs(), epoch)
        if problem:
            raise RootError(problem)

    def _place_of(self, epoch: int) -> Place:
        place = self._epochs.get(epoch)
        if place is None:
            raise EpochGoneError(f"Epoch {epoch} is not among the live epochs {self.epochs()}")
        return place
