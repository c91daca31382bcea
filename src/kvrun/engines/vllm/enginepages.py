"""vLLM's block pool as the page scrubber sees it."""

from __future__ import annotations

from collections.abc import Sequence

from kvrun.engines.vllm.compat import KVCacheManager, OffloadingConnectorScheduler


class EnginePages:
    """Pages by their number in vLLM's block pool."""

    def __init__(self, manager: KVCacheManager, scheduler: OffloadingConnectorScheduler) -> None:
        self._manager = manager
        self._scheduler = scheduler
        groups = manager.kv_cache_config.kv_cache_groups
        # A page of any group that is cached up to a multiple of this is cached to its end.
        self._page_tokens = max(group.kv_cache_spec.block_size for group in groups)

    def is_free(self, page: int) -> bool:
        """Whether no request refers to the page and no store still reads it."""
        block = self._manager.block_pool.blocks[page]
        return block.ref_cnt == 0 and page not in self._scheduler._block_id_to_pending_jobs

    def is_full(self, page: int) -> bool:
        """Whether the page is in the prefix cache as a whole page."""
        block = self._manager.block_pool.blocks[page]
        tokens = block.block_hash_num_tokens
        return (
            block.block_hash is not None
            and tokens is not None
            and (tokens % self._page_tokens == 0)
        )

    def evict(self, pages: Sequence[int]) -> int:
        """Take pages out of the prefix cache; how many were in it."""
        blocks = self._manager.block_pool.blocks
        cached = {page for page in pages if blocks[page].block_hash is not None}
        self._manager.evict_blocks(cached)
        return len(cached)
