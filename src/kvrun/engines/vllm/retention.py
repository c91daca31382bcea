"""Answers are kept for sliding-window layers too.

vLLM keeps, of a sliding-window group, only the blocks that a repeated prompt can use: the tail
before the prompt's end. The next turn of a conversation begins with the prompt and its answer, so
the blocks of the answer are kept as well; together with the prompt's tail they are the window
before wherever the answer ends.
"""

from __future__ import annotations

from functools import partial

from kvrun.engines.vllm.compat import (
    GroupOffloadConfig,
    OffloadingConnectorScheduler,
    SlidingWindowSpec,
)


def keep_answers(scheduler: OffloadingConnectorScheduler) -> None:
    """Make this scheduler store the answer's blocks of every sliding-window group."""
    scheduler._reachable_store_block_mask = partial(
        _mask_with_answer,
        scheduler._reachable_store_block_mask,
        scheduler.config.blocks_per_chunk,
    )


def answer_blocks(
    mask: list[bool], start_block: int, tokens_per_block: int, prompt_tokens: int
) -> list[bool]:
    """``mask`` with every block set that holds a token behind the prompt's end."""
    return [
        wanted or (start_block + offset + 1) * tokens_per_block > prompt_tokens
        for offset, wanted in enumerate(mask)
    ]


def _mask_with_answer(
    mask_of: partial[list[bool] | None],
    blocks_per_chunk: int,
    *,
    group_config: GroupOffloadConfig,
    start_chunk_idx: int,
    end_chunk_idx: int,
    final_segment_end_chunk_idx: int | None,
    reachable_boundaries: tuple[int, ...],
) -> list[bool] | None:
    mask = mask_of(
        group_config=group_config,
        start_chunk_idx=start_chunk_idx,
        end_chunk_idx=end_chunk_idx,
        final_segment_end_chunk_idx=final_segment_end_chunk_idx,
        reachable_boundaries=reachable_boundaries,
    )
    sliding = isinstance(group_config.kv_cache_spec, SlidingWindowSpec)
    if mask is None or not sliding or not reachable_boundaries:
        return mask
    return answer_blocks(
        mask,
        start_chunk_idx * blocks_per_chunk,
        group_config.tokens_per_block,
        reachable_boundaries[0] + 1,
    )
