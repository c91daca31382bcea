"""Witnesses: other parties that remember a log's checkpoints, so that a fork or a rollback shows.

``open_witnesses`` makes the ones that ``[witness]`` names; ``ask`` puts one checkpoint to one of
them. A witness that fails costs its cosignature and nothing else.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from kvrun.config import KvrunConfig
from kvrun.control.witness_errors import (
    WitnessError,
    WitnessOutOfStepError,
    WitnessRefusedError,
    WitnessUnavailableError,
)

__all__ = [
    "Witness",
    "WitnessError",
    "WitnessOutOfStepError",
    "WitnessRefusedError",
    "WitnessUnavailableError",
    "ask",
    "open_witnesses",
]

_ATTEMPTS = 3


class Witness(Protocol):
    """One other party. Calls block, each for at most the configured time: use a thread."""

    @property
    def name(self) -> str:
        """Who it is, for people: an address or a path."""

    def add_checkpoint(self, old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """Have ``note`` (a signed checkpoint) seen and remembered.

        ``proof`` holds the RFC 6962 consistency hashes from ``old_size`` to the note's size. The
        result is the cosignature lines to append to the note, verified, or nothing where the
        witness keeps its evidence elsewhere.

        Raises:
            WitnessRefusedError: it saw another history of this log.
            WitnessOutOfStepError: it remembers another size than ``old_size``.
            WitnessUnavailableError: it gave no answer that can be used.
        """


def open_witnesses(config: KvrunConfig) -> list[Witness]:
    """The witnesses that ``config`` names; none when the list is empty."""
    return []


def ask(
    witness: Witness, old_size: int, note: bytes, prove: Callable[[int], Sequence[bytes]]
) -> bytes:
    """``add_checkpoint`` with the proof that the witness needs, from where it stopped.

    ``prove(size)`` makes the consistency proof from ``size`` to the note's size; it is called again
    when the witness remembers another size than ``old_size``. Raises what ``add_checkpoint`` does.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return witness.add_checkpoint(old_size, prove(old_size), note)
        except WitnessOutOfStepError as error:
            old_size = error.size
    return witness.add_checkpoint(old_size, prove(old_size), note)
