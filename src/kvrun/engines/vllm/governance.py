"""What an engine must be like before kvrun serves it, and the fingerprint of its cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from kvrun.engines.vllm.compat import KVCacheConfig, VllmConfig, require_supported_version
from kvrun.engines.vllm.settings import FINGERPRINT_KEY
from kvrun.errors import KvrunError
from kvrun.models.fingerprint import KvFormat, cpu_isa, model_digest, model_fingerprint
from kvrun.models.folders import cache_folder
from kvrun.models.resolve import local_folder

_ALLOWED_HASHES = ("sha256", "sha256_cbor")


class EngineSettingError(KvrunError):
    """The engine runs with a setting under which the cache would not be governed."""


def check_engine(config: VllmConfig) -> None:
    """Refuse an engine that would leak around the governed cache.

    Raises:
        EngineSettingError: names the setting and what is allowed.
    """
    transfer = config.kv_transfer_config
    if transfer.kv_role != "kv_both":
        raise EngineSettingError(
            f"kv_role is {transfer.kv_role!r}", hint="kvrun needs kv_role=kv_both"
        )
    if transfer.kv_load_failure_policy != "recompute":
        raise EngineSettingError(
            f"kv_load_failure_policy is {transfer.kv_load_failure_policy!r}: a damaged block "
            "would fail its request",
            hint="set kv_load_failure_policy=recompute in --kv-transfer-config",
        )
    events = config.kv_events_config
    if events is not None and events.enable_kv_cache_events:
        raise EngineSettingError(
            "KV event publishing is on: it sends token ids and salts in clear",
            hint="remove --kv-events-config",
        )
    algorithm = config.cache_config.prefix_caching_hash_algo
    if algorithm not in _ALLOWED_HASHES:
        raise EngineSettingError(
            f"the prefix caching hash is {algorithm!r}, which is not collision resistant",
            hint="set --prefix-caching-hash-algo sha256_cbor",
        )
    for variable, why in (
        ("VLLM_USE_RUST_FRONTEND", "the Rust frontend runs no middleware"),
        ("VLLM_SERVER_DEV_MODE", "development routes need no authentication"),
    ):
        if os.environ.get(variable, "0") not in ("", "0"):
            raise EngineSettingError(f"{variable} is set: {why}", hint=f"unset {variable}")
    # vLLM's processes inherit the command line; its configuration does not say what it serves.
    if any(argument.replace("_", "-").startswith("--grpc") for argument in sys.argv):
        raise EngineSettingError(
            "--grpc is set: its requests go past the middleware, so nobody says whose they are",
            hint="remove --grpc",
        )


def engine_fingerprint(
    config: VllmConfig, kv_cache_config: KVCacheConfig, extra: Mapping[str, object]
) -> bytes:
    """32 bytes that name everything on which the meaning of a KV page depends.

    Weights and tokenizer, data types, layout, parallelism, vLLM's version and, for the CPU
    backend's packed pages, the instruction set. Tokens, salt and LoRA adapter are in the block
    hash.
    """
    parallel = config.parallel_config
    groups = ";".join(
        f"{type(group.kv_cache_spec).__name__}:{group.kv_cache_spec.block_size}:"
        f"{','.join(group.layer_names)}"
        for group in kv_cache_config.kv_cache_groups
    )
    layout = (
        f"hash={config.cache_config.prefix_caching_hash_algo} device="
        f"{config.device_config.device_type} tp={parallel.tensor_parallel_size} "
        f"pp={parallel.pipeline_parallel_size} groups={groups}"
    )
    return model_fingerprint(
        _model_digest(config, extra),
        KvFormat(
            dtype=str(config.model_config.dtype),
            kv_dtype=str(config.cache_config.cache_dtype),
            engine=f"vllm {require_supported_version()}",
            layout=layout,
            isa=cpu_isa(),
        ),
    )


def _model_digest(config: VllmConfig, extra: Mapping[str, object]) -> bytes:
    given = extra.get(FINGERPRINT_KEY)
    if given:
        return bytes.fromhex(str(given))
    model = config.model_config.model
    folder = local_folder(model)
    if folder is None:
        raise EngineSettingError(
            f"the files of the model {model!r} are not on this machine, so its cache cannot be "
            "bound to its weights",
            hint="download the model first, or give --model a folder",
        )
    return model_digest(folder, cache_folder() / "hashes.json")
