"""Copies between SGLang's host pages and staging: plain memory, one page of several regions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from kvrun.errors import KvrunError


class HostPool(Protocol):
    """SGLang's host memory pool, as far as the adapter uses it."""

    page_size: int
    layout: str

    def get_page_buffer_meta(self, indices: Any) -> tuple[Sequence[int], Sequence[int]]:
        """Addresses and sizes of the regions of these rows' pages, page after page."""


class HostPageError(KvrunError):
    """A host page is not what the adapter was told it is."""


Region = tuple[int, int]


def page_regions(pool: HostPool, indices: Any, pages: int) -> list[list[Region]]:
    """For each page its (address, bytes) regions in order.

    Raises:
        HostPageError: the pool does not describe whole pages of equal size.
    """
    addresses, sizes = pool.get_page_buffer_meta(indices)
    if not pages or len(addresses) != len(sizes) or len(addresses) % pages:
        raise HostPageError(f"{len(addresses)} regions do not make {pages} host pages")
    each = len(addresses) // pages
    regions = [
        [(int(addresses[at]), int(sizes[at])) for at in range(page * each, (page + 1) * each)]
        for page in range(pages)
    ]
    if len({sum(size for _, size in page) for page in regions}) != 1:
        raise HostPageError("host pages differ in size")
    return regions


def page_bytes(regions: Sequence[Region]) -> int:
    """Bytes of one page."""
    return sum(size for _, size in regions)


def gather(regions: Sequence[Region], target: int) -> None:
    """Copy a page's regions one behind the other to an address."""
    for address, size in regions:
        ctypes.memmove(target, address, size)
        target += size


def scatter(regions: Sequence[Region], source: int) -> None:
    """Copy a page from an address into its regions."""
    for address, size in regions:
        ctypes.memmove(address, source, size)
        source += size


def zero(regions: Sequence[Region]) -> None:
    """Overwrite a page with zeros."""
    for address, size in regions:
        ctypes.memset(address, 0, size)
