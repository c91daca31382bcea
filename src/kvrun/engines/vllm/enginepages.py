"""vLLM's block pool as the page scrubber sees it."""

from __future__ import annotations

from collections.abc import Sequence

from kvrun.engines.vllm.compat import (
    KVCacheGroupSpec,
    KVCacheManager,
    OffloadingConnectorScheduler,
)


class EnginePages:
    """Pages by their number in vLLM's block pool."""

    def __init__(self, manager: KVCacheManager, scheduler: OffloadingConnectorScheduler) -> None:
        self._manager = manager
        self._scheduler = scheduler
        groups = manager.kv_cache_config.kv_cache_groups
        # Groups of different size use a page differently: what one leaves of it another does not
        # write. Then no page counts as full of its latest owner's tokens.
        self._alike = _fill_pages_alike(groups)
        # A page of any group that is cached up to a multiple of this is cached to its end.
        self._page_tokens = max(group.kv_cache_spec.block_size for group in groups)

    def is_free(self, page: int) -> bool:
        """Whether no request refers to the page and no store still reads it."""
        block = self._manager.block_pool.blocks[page]
        return block.ref_cnt == 0 and page not in self._scheduler._block_id_to_pending_jobs

    def is_full(self, page: int) -> bool:
        """Whether the page is in the prefix cache as a whole page, all of it written."""
        block = self._manager.block_pool.blocks[page]
        tokens = block.block_hash_num_tokens
        return (
            self._alike
            and block.block_hash is not None
            and tokens is not None
            and (tokens % self._page_tokens == 0)
        )

    def evict(self, pages: Sequence[int]) -> int:
        """Take pages out of the prefix cache; how many were in it."""
        blocks = self._manager.block_pool.blocks
        cached = {page for page in pages if blocks[page].block_hash is not None}
        self._manager.evict_blocks(cached)
        return len(cached)


def _fill_pages_alike(groups: Sequence[KVCacheGroupSpec]) -> bool:
    specs = [group.kv_cache_spec for group in groups]
    sizes = {
        (len(group.layer_names), spec.page_size_bytes)
        for group, spec in zip(groups, specs, strict=True)
    }
    padded = any(getattr(spec, "page_size_padded", None) is not None for spec in specs)
    return len(sizes) == 1 and not padded
