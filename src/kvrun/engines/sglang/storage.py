"""SGLang's storage backend: host pages go through staging to the daemon, and come from there.

Nothing here raises into SGLang: a page that cannot be had is a miss, one that cannot be sealed is
not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from kvrun.engines.sglang.copies import gather, page_bytes, page_regions, scatter
from kvrun.engines.sglang.rank import current_rank
from kvrun.engines.sglang.zeroing import zero_host_pages
from kvrun.engines.transfer import BlockRef
from kvrun.errors import KvrunError

_log = logging.getLogger(__name__)


class KvrunStorage(HiCacheStorage):
    """The class that ``--hicache-storage-backend-extra-config`` names."""

    def __init__(self, storage_config: Any, options: Any = None) -> None:
        """Raises KvrunError for a storage of several ranks, or without kvrun's radix cache."""
        self._rank = current_rank()
        self._config = storage_config

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Learn what a host page is, and connect to the daemon. Raises KvrunError without one."""
        super().register_mem_pool_host(mem_pool_host)
        zero_host_pages(mem_pool_host)
        tokens = int(mem_pool_host.page_size)
        (regions,) = page_regions(mem_pool_host, torch.arange(tokens), 1)
        shape = ",".join(map(str, getattr(mem_pool_host.kv_buffer, "shape", ())[2:]))
        layout = (
            f"{type(mem_pool_host).__name__} {mem_pool_host.layout} {mem_pool_host.dtype} "
            f"page={tokens} regions={len(regions)} shape={shape}"
        )
        self._rank.connect(layout, tokens, page_bytes(regions))

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages from the first one on the daemon has for whom they belong to."""
        try:
            patience_s = 2 * self._rank.admissions.deadline_s
            return self._rank.requests.found(keys, patience_s)
        except (KvrunError, ValueError) as error:
            _log.warning("pages were not looked up: %s", error)
            return 0

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Open pages into host memory; False from the first one on that does not open."""
        opened = [False] * len(keys)
        try:
            handle, refs = self._rank.requests.loads(keys)
            regions = page_regions(self.mem_pool_host, host_indices, len(keys))
            blocks = self._rank.blocks

            def copy(position: int, slot: int) -> None:
                scatter(regions[position], blocks.address(slot))

            done = blocks.read(handle, refs, copy)
            opened[: len(done)] = done
        except (KvrunError, ValueError) as error:
            _log.warning("pages were not opened: %s", error)
        return opened

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Seal pages; False for one that belongs to no admitted request."""
        stored = [False] * len(keys)
        try:
            regions = page_regions(self.mem_pool_host, host_indices, len(keys))
            by_handle: dict[int, list[tuple[int, BlockRef]]] = {}
            for position, store in enumerate(self._rank.requests.stores(keys)):
                if store is not None:
                    by_handle.setdefault(store[0], []).append((position, store[1]))
            for handle, pages in by_handle.items():
                self._seal(handle, pages, regions, stored)
        except (KvrunError, ValueError) as error:
            _log.warning("pages were not sealed: %s", error)
        return stored

    def exists(self, key: str) -> bool:
        """Whether the daemon has one page."""
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        """Nothing: pages are opened by ``batch_get_v1`` only."""

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[None]:
        """Nothing: pages are opened by ``batch_get_v1`` only."""
        return [None] * len(keys)

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """False: pages are sealed by ``batch_set_v1`` only."""
        return False

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """False: pages are sealed by ``batch_set_v1`` only."""
        return False

    def clear(self) -> None:
        """Nothing: what is sealed is erased through kvrun, with a record and a certificate."""
        _log.warning("the engine was asked to clear its storage; sealed pages stay: kvrun erase")

    def get_stats(self) -> None:
        """None: the daemon counts."""

    def close(self) -> None:
        """SGLang detached the storage: the engine goes on without the cache."""
        self._rank.close()

    def _seal(
        self,
        handle: int,
        pages: Sequence[tuple[int, BlockRef]],
        regions: Sequence[Sequence[tuple[int, int]]],
        stored: list[bool],
    ) -> None:
        blocks = self._rank.blocks

        def fill(number: int, slot: int) -> None:
            gather(regions[pages[number][0]], blocks.address(slot))

        done = blocks.seal(handle, [ref for _, ref in pages], fill)
        for (position, _), sent in zip(pages, done, strict=True):
            stored[position] = sent
