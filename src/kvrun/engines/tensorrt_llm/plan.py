"""Which blocks of a request are loaded and sealed in which step. Pure.

A block is sealed once all of its tokens are computed, counted from below: releases differ in
whether a first step's ``computed_position`` holds the tokens that the connector loaded, so those
are never added. What is left out by that is sealed a step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvrun.engines.blocks import OpenBlock


class NoSuchBlockError(ValueError):
    """An id that is no block of the request: its KV would be somebody else's."""


@dataclass(slots=True)
class RequestPlan:
    """One request. ``loading`` are opened blocks, from the block ``first_loaded`` on."""

    owner: bytes
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    first_loaded: int = 0
    loading: list[OpenBlock] = field(default_factory=list)
    sealed: int = 0
    computed: int = 0
    unusable: bool = False

    def allocated(self, block_ids: Sequence[int]) -> None:
        """The request's blocks are these."""
        self._check(block_ids)
        self.blocks = list(block_ids)

    def loads(self) -> list[tuple[OpenBlock, int]]:
        """Opened blocks and the blocks of the engine that they go to; each is given out once.

        Raises NoSuchBlockError where the engine gave the request no block for one.
        """
        opened, self.loading = self.loading, []
        if not opened:
            return []
        targets = self.blocks[self.first_loaded : self.first_loaded + len(opened)]
        if self.unusable or len(targets) < len(opened):
            raise NoSuchBlockError("the engine gave no block for KV that it was promised")
        return list(zip(opened, targets, strict=True))

    def step(
        self,
        new_tokens: Sequence[int],
        new_block_ids: Sequence[int],
        computed_position: int,
        num_scheduled_tokens: int,
        *,
        first: bool,
    ) -> None:
        """One step's data; in the first one ``new_block_ids`` are all blocks that there are."""
        self.tokens += new_tokens
        self._check(new_block_ids)
        if first:
            self.blocks = list(new_block_ids)
        else:
            self.blocks += new_block_ids
        end = min(computed_position + num_scheduled_tokens, len(self.tokens))
        self.computed = max(self.computed, end)

    def saves(self, tokens_per_block: int) -> list[tuple[int, int]]:
        """(index, block of the engine) of what is whole after this step and was not given out."""
        whole = min(self.computed // tokens_per_block, len(self.blocks))
        begin, self.sealed = self.sealed, max(self.sealed, whole)
        if self.unusable:
            return []
        return [(index, self.blocks[index]) for index in range(begin, whole)]

    def _check(self, block_ids: Sequence[int]) -> None:
        if any(block < 0 for block in block_ids):
            # Row -1 of the engine's tensor is its last one, which is another request's.
            self.unusable = True
