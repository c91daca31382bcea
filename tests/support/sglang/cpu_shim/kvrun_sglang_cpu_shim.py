"""TESTS ONLY: lets SGLang's hierarchical cache copy between "device" and host on a CPU.

SGLang imports these copies and pins host memory only where there is CUDA. It loads this module as a
plugin in each of its processes.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Put CPU versions where SGLang looks for the CUDA ones."""
    import torch

    if torch.cuda.is_available():
        return
    from sglang.srt.mem_cache.pool_host import common, mha

    common._cuda_host_register = lambda *_, **__: None
    for copy in (
        transfer_kv_direct,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_all_layer_direct_lf_pf,
    ):
        setattr(mha, copy.__name__, copy)
    pool = mha.MHATokenToKVPoolHost
    original = pool.__init__

    def unpinned(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "pin_memory": False})

    pool.__init__ = unpinned


def transfer_kv_direct(
    src_layers: list[Any], dst_layers: list[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Rows of each layer to rows of the same layer."""
    source, target = src_indices.long(), dst_indices.long()
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[target] = src[source].reshape(len(target), *dst.shape[1:])


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: list[Any],
    dst_ptrs: list[Any],
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    page_size: int,
) -> None:
    """One layer of host pages [page, layer, token, ...] to device rows."""
    source, target = src_indices.long(), dst_indices.long()
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        rows = src[source // page_size, layer_id, source % page_size]
        dst[target] = rows.reshape(len(target), *dst.shape[1:])


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: list[Any], dst_ptrs: list[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Device rows of every layer (all keys, then all values) to host pages."""
    source, target = src_indices.long(), dst_indices.long()
    layers = len(src_ptrs) // len(dst_ptrs)
    for part, dst in enumerate(dst_ptrs):
        for layer in range(layers):
            rows = src_ptrs[part * layers + layer][source]
            dst[target // page_size, layer, target % page_size] = rows.reshape(
                len(source), *dst.shape[3:]
            )
