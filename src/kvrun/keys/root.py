"""The key root: what stands above every other key, and what erasure ends in.

A root wraps the workspace key and holds the epoch keys. An erasure makes a new epoch key, wraps the
slots' keys under it, new ones for what is destroyed, and destroys the old one: after that no old
copy opens what was destroyed. Local roots are in ``file_root`` and ``memory_root``. ``kept_root``
keeps each epoch key wrapped under a key of its own in another system: see ``keeper``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from kvrun.keys.filesystem import ClaimClass

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class EpochEvidence:
    """What a root can say about an epoch key it destroyed."""

    root_kind: str
    epoch: int
    claim: ClaimClass
    method: str
    """What was done, in words: "slot overwritten, fdatasync, read back direct"."""


@dataclass(frozen=True, slots=True)
class RootFacts:
    """What a root is, for status, evidence and certificates."""

    kind: str
    root_id: bytes
    persistent: bool
    """False when nothing of the root outlives the process."""
    claim: ClaimClass
    reason: str
    snapshot_retention_days: int | None = None
    """How long snapshots and backups of the root are kept, as declared; None: not declared."""


class Root(Protocol):
    """Calls come from one key service; ``check`` may come from another thread meanwhile.

    A root in another system raises RootUnavailableError from any call while it cannot be reached
    and RootRevokedError when it refuses. Key bytes travel in views of locked memory. All writes are
    durable when a call returns.
    """

    @property
    def facts(self) -> RootFacts:
        """What this root is."""

    @property
    def folder(self) -> Path | None:
        """Where it keeps what must never be put back from a copy; None: nothing outlives it."""

    def wrap(self, context: bytes, secret: memoryview) -> bytes:
        """Wrap a key (32 bytes) under the root key; at most 380 bytes come back."""
        ...

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """Open what ``wrap`` made; WrapError when it does not open."""
        ...

    def epochs(self) -> tuple[int, ...]:
        """Numbers of the live epoch keys in rising order; empty for a new root, two at most."""
        ...

    def create_epoch(self, epoch: int) -> None:
        """Make a random epoch key. Numbers start at 1 and rise by 1; RootError otherwise."""
        ...

    def load_epoch(self, epoch: int, out: memoryview) -> None:
        """Put the epoch key (32 bytes) into ``out``; EpochGoneError when there is none."""
        ...

    def destroy_epoch(self, epoch: int) -> EpochEvidence:
        """Destroy an epoch key for good; EpochGoneError when there is none."""
        ...

    def check(self) -> None:
        """Prove that the root still answers for us; cheap, and never from a cached answer.

        Raises RootRevokedError (keys must be dropped at once) or RootUnavailableError (keys may be
        used until their lease ends). Passing again after a refusal makes the root usable again.
        """
        ...

    def close(self) -> None:
        """Zero what is in memory and let go of files; nothing is destroyed."""
        ...


@runtime_checkable
class RotatableRoot(Root, Protocol):
    """A root whose root key can be replaced while it is used.

    Between ``begin_rotation`` and ``finish_rotation`` the new key wraps and both unwrap, also after
    a crash; the caller wraps what it holds again in between.
    """

    @property
    def rotating(self) -> bool:
        """Whether a rotation was begun and not finished."""

    def begin_rotation(self) -> None:
        """Make a new root key, durable; does nothing while one is under way."""
        ...

    def finish_rotation(self) -> None:
        """Wrap the epoch keys under the new root key and destroy the earlier one."""
        ...


def check_next_epoch(live: tuple[int, ...], epoch: int) -> str | None:
    """Why ``epoch`` may not be created beside the ``live`` ones, or None when it may."""
    if len(live) > 1:
        return f"Epochs {live[0]} and {live[1]} are both live: destroy {live[0]} first"
    if live and epoch != live[-1] + 1:
        return f"The epoch after {live[-1]} is {live[-1] + 1}, not {epoch}"
    return None if epoch >= 1 else f"Epochs start at 1, not {epoch}"
