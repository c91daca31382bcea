"""What the adapter relies on in vLLM 0.32: another minor must fail here, by name, before it runs.

When the pin moves, every failing line is a place to read in the new release: the interfaces are
experimental and change without notice.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler, worker
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_offload.config import OffloadingGroupConfig

from kvrun.engines.vllm import compat
from kvrun.engines.vllm.connector import KvrunConnector
from kvrun.engines.vllm.manager import GovernedManager
from kvrun.engines.vllm.spec import KvrunOffloadingSpec
from kvrun.engines.vllm.worker import GovernedWorker

pytestmark = pytest.mark.engine

PARAMETERS: list[tuple[Any, str, str]] = [
    (compat.OffloadingConnector, "__init__", "self vllm_config role kv_cache_config"),
    (compat.OffloadingConnector, "on_new_request", "self request"),
    (
        compat.OffloadingConnector,
        "get_num_new_matched_tokens",
        "self request num_computed_tokens",
    ),
    (compat.OffloadingConnector, "build_connector_meta", "self scheduler_output"),
    (compat.OffloadingConnector, "update_connector_output", "self connector_output"),
    (compat.OffloadingConnector, "get_transfer_results", "self finished_req_ids"),
    (compat.OffloadingConnector, "request_finished_all_groups", "self request block_ids"),
    (compat.OffloadingConnector, "bind_kv_cache_manager", "self kv_cache_manager"),
    (compat.OffloadingManager, "lookup", "self key req_context"),
    (compat.OffloadingManager, "get_load_source", "self key req_context"),
    (compat.OffloadingManager, "prepare_load", "self keys req_context"),
    (compat.OffloadingManager, "prepare_store", "self keys req_context"),
    (compat.OffloadingManager, "on_new_request", "self req_context"),
    (compat.OffloadingManager, "on_request_finished", "self req_context"),
    (compat.OffloadingManager, "reset_cache", "self"),
    (compat.OffloadingManager, "shutdown", "self"),
    (compat.OffloadingWorker, "submit_store", "self job_id src_spec dst_spec"),
    (compat.OffloadingWorker, "submit_load", "self job_id src_spec dst_spec"),
    (compat.OffloadingWorker, "get_finished", "self"),
    (compat.OffloadingWorker, "wait", "self job_ids"),
    (compat.OffloadingWorker, "shutdown", "self"),
    (compat.OffloadingSpec, "__init__", "self config"),
    (compat.OffloadingSpec, "get_manager", "self"),
    (compat.OffloadingSpec, "get_worker", "self kv_caches"),
    (compat.ReqContext, "get_offload_key_position", "self key"),
    (KVCacheManager, "evict_blocks", "self block_ids"),
    (KVConnectorFactory, "register_connector", "name module_path class_name"),
    (compat, "get_offload_block_hash", "key"),
    (compat, "get_offload_group_idx", "key"),
]

FIELDS = {
    compat.TransferJob: "req_id src_spec dst_spec",
    compat.OffloadingConnectorMetadata: "load_jobs store_jobs jobs_to_flush",
    compat.KVConnectorTransferResults: "finished_sending finished_recving failed_recving",
    compat.TransferResult: "job_id success transfer_size transfer_time",
    compat.PrepareStoreOutput: "keys_to_store store_spec evicted_keys",
    compat.RequestOffloadingContext: "policy",
    compat.CanonicalKVCaches: "tensors group_data_refs",
    OffloadingGroupConfig: "tokens_per_block layer_names group_id",
}

ATTRIBUTES = {
    compat.OffloadingConfig: "groups extra_config cache parallel",
    compat.KVConnectorOutput: "failed_recving kv_connector_worker_meta",
    compat.SchedulerOutput: (
        "scheduled_new_reqs preempted_req_ids finished_req_ids total_num_scheduled_tokens"
    ),
}


def test_the_installed_release_is_the_supported_minor() -> None:
    assert compat.SUPPORTED_MINOR == (0, 32)
    assert compat.require_supported_version().startswith("0.32.")


@pytest.mark.parametrize(
    ("owner", "name", "parameters"), PARAMETERS, ids=[f"{o.__name__}.{n}" for o, n, _ in PARAMETERS]
)
def test_a_method_takes_what_it_took(owner: Any, name: str, parameters: str) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters.split()


@pytest.mark.parametrize(("kind", "fields"), FIELDS.items(), ids=[k.__name__ for k in FIELDS])
def test_a_struct_has_the_fields_it_had(kind: Any, fields: str) -> None:
    assert [field.name for field in dataclasses.fields(kind)] == fields.split()


@pytest.mark.parametrize(
    ("kind", "needed"), ATTRIBUTES.items(), ids=[k.__name__ for k in ATTRIBUTES]
)
def test_a_struct_still_has_the_fields_in_use(kind: Any, needed: str) -> None:
    assert set(needed.split()) <= {field.name for field in dataclasses.fields(kind)}


def test_the_answers_of_a_lookup_are_the_same() -> None:
    assert {"MISS", "HIT", "RETRY"} <= {result.name for result in compat.LookupResult}
    assert {"HOST", "DISK", "EXTERNAL_UNSPECIFIED"} <= {s.name for s in compat.CacheHitSource}
    assert [role.name for role in compat.KVConnectorRole] == ["SCHEDULER", "WORKER"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (KvrunConnector, compat.OffloadingConnector),
        (GovernedManager, compat.OffloadingManager),
        (GovernedWorker, compat.OffloadingWorker),
        (KvrunOffloadingSpec, compat.OffloadingSpec),
    ],
)
def test_every_method_that_the_adapter_overrides_exists_and_takes_the_same(
    ours: Any, theirs: Any
) -> None:
    own = [n for n, m in vars(ours).items() if inspect.isfunction(m) and not n.startswith("_")]
    extra = [name for name in own if not hasattr(theirs, name)]
    assert extra == []
    assert not inspect.isabstract(ours)
    for name in own:
        assert [*inspect.signature(getattr(ours, name)).parameters] == [
            *inspect.signature(getattr(theirs, name)).parameters
        ]


def test_private_names_of_vllm_that_the_adapter_touches_are_there() -> None:
    side = inspect.getsource(worker.OffloadingConnectorWorker)
    # A failed load is reported as a success: vLLM asserts it, and pops the job's request.
    assert "self._load_jobs" in side
    assert "assert transfer_result.success" in side
    base = inspect.getsource(compat.OffloadingConnector.__mro__[1])
    assert "_connector_metadata" in base
    assert "_kv_cache_manager" in base
    assert isinstance(KVConnectorFactory._registry, dict)


def test_vllm_still_looks_where_a_denial_takes_effect() -> None:
    # ``skip_reading_prefix_cache`` must be read when a request is scheduled, not when it is made.
    assert "request.skip_reading_prefix_cache" in inspect.getsource(KVCacheManager)
    source = inspect.getsource(Scheduler._handle_failed_recving)
    assert "recompute_kv_load_failures" in source
    assert "request.num_computed_tokens = 0" in source
    # A failed load is looked up again, so that the reported cached tokens are the real ones.
    assert "request.prefill_stats.set(" in inspect.getsource(Scheduler.schedule)


def test_the_connector_delivers_nothing_and_keeps_hybrid_groups() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA

    assert issubclass(KvrunConnector, SupportsHMA)
    assert KvrunConnector.requires_kv_delivery.fget(None) is False  # type: ignore[attr-defined]
    assert "offload_prompt_only" in inspect.getsource(scheduler)


def test_vllm_finds_the_connector_by_its_name_alone() -> None:
    (plugin,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="kvrun")
    register = plugin.load()
    register()
    register()
    assert KVConnectorFactory._registry["KvrunConnector"]() is KvrunConnector
