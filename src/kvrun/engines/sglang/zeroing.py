"""Zeroes SGLang's pages when they are freed: on the device, and in the host buffer.

SGLang leaves what a page held. Every way to free a page of these pools ends in one method of its
pool, which is what is wrapped here; emptying a pool zeroes all of it.
"""

from __future__ import annotations

from typing import Any

import torch

from kvrun.engines.sglang.copies import page_regions, zero
from kvrun.engines.sglang.governance import EngineSettingError

_DEVICE_POOL = "MHATokenToKVPool"
_ALLOCATOR = "PagedTokenToKVPoolAllocator"
_HOST_POOL = "MHATokenToKVPoolHost"


class DeviceZeroing:
    """Zeroes the pages that an allocator takes back, before it can give them out again."""

    def __init__(self, allocator: Any) -> None:
        """Raises EngineSettingError for an allocator or a pool of another kind."""
        pool = allocator.get_kvcache()
        kinds = (type(allocator).__name__, type(pool).__name__)
        if kinds != (_ALLOCATOR, _DEVICE_POOL):
            raise EngineSettingError(
                f"this model's KV is in a {kinds[1]} of a {kinds[0]}, which kvrun cannot zero",
                hint="serve models with full attention only, with --page-size above 1",
            )
        self._page_size = int(allocator.page_size)
        self._buffers = [*pool.k_buffer, *pool.v_buffer]
        self._release = allocator._release_page_ids
        self._clear = allocator.clear
        allocator._release_page_ids = self._released
        allocator.clear = self._cleared

    def _released(self, *page_ids: Any) -> None:
        for pages in page_ids:
            first = pages.to(torch.int64).unsqueeze(1) * self._page_size
            rows = (first + torch.arange(self._page_size, device=pages.device)).flatten()
            for buffer in self._buffers:
                buffer.index_fill_(0, rows, 0)
        self._release(*page_ids)

    def _cleared(self) -> None:
        for buffer in self._buffers:
            buffer.zero_()
        self._clear()


def zero_host_pages(pool: Any) -> None:
    """Make a host pool zero what it takes back. Raises EngineSettingError for another kind."""
    if type(pool).__name__ != _HOST_POOL:
        raise EngineSettingError(
            f"this model's host pages are in a {type(pool).__name__}, which kvrun cannot zero",
            hint="serve models with full attention only",
        )
    free, clear, size = pool.free, pool.clear, int(pool.page_size)

    def freed(indices: Any) -> Any:
        if indices.numel():
            pages = torch.unique(indices.cpu() // size)
            rows = (pages.unsqueeze(1) * size + torch.arange(size)).flatten()
            for regions in page_regions(pool, rows, len(pages)):
                zero(regions)
        return free(indices)

    def cleared() -> Any:
        pool.kv_buffer.zero_()
        return clear()

    pool.free, pool.clear = freed, cleared
