"""What every engine's copier between engine memory and staging must be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class PageCopy(NamedTuple):
    """One block to copy: its group, its row in the group's tensors, its byte offset in staging."""

    group: int
    block_id: int
    offset: int


class CopyHandle(Protocol):
    """A submitted batch; opaque to the caller."""


class PageCopier(Protocol):
    """What the adapter needs from any device."""

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of ``group`` in staging."""

    def submit_gather(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Starts copying blocks into staging, after the compute submitted so far."""

    def submit_scatter(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Starts copying blocks from staging into the engine's memory."""

    def submit_zero(self, block_ids: Sequence[int]) -> CopyHandle:
        """Starts zeroing these rows of every tensor, after the compute submitted so far."""

    def done(self, handle: CopyHandle) -> bool:
        """Whether the batch is complete; never waits."""

    def wait(self, handle: CopyHandle) -> None:
        """Returns once the batch is complete."""

    def close(self) -> None:
        """Lets staging go; no batch may be under way."""
