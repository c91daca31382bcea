"""SGLang's plugin entry point: makes ``--radix-cache-backend kvrun`` known."""

from __future__ import annotations

from typing import Any

BACKEND = "kvrun"


def register() -> None:
    """Register the radix cache; SGLang calls this in each process, maybe more than once."""
    from sglang.srt.mem_cache import registry

    if registry.get_radix_cache_factory(BACKEND) is None:
        registry.register_radix_cache_backend(BACKEND, make_cache)


def make_cache(context: Any) -> Any:
    """The governed radix cache of one scheduler process.

    Raises KvrunError for an SGLang, or options of it, that kvrun does not work with.
    """
    from kvrun.engines.sglang.radixcache import governed_cache

    return governed_cache(context)
