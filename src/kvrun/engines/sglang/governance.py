"""What an SGLang must be like before kvrun serves it, and the fingerprint of its cache."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from kvrun.engines.sglang.installed import require_supported_version
from kvrun.errors import KvrunError
from kvrun.models.fingerprint import KvFormat, cpu_isa, model_digest, model_fingerprint
from kvrun.models.folders import cache_folder
from kvrun.models.resolve import local_folder

STORAGE_MODULE = "kvrun.engines.sglang.storage"
STORAGE_CLASS = "KvrunStorage"
STORAGE_NAME = "kvrun"
SOCKET_KEY = "kvrun.socket"
FINGERPRINT_KEY = "kvrun.model_fingerprint"

_NEEDED: Mapping[str, tuple[object, str]] = {
    "enable_hierarchical_cache": (True, "kvrun's tiers are reached through it"),
    "hicache_host_memory_mode": ("buffer_only", "its own host tier would keep KV unsealed"),
    "hicache_storage_backend": ("dynamic", "the storage is kvrun's"),
    "hicache_write_policy": ("write_through", "nothing else is sealed when it is computed"),
    "hicache_storage_prefetch_policy": (
        "wait_complete",
        "a request must wait for its admission and for its blocks",
    ),
    "disable_overlap_schedule": (True, "a step may write to pages that were zeroed already"),
    "disable_radix_cache": (False, "kvrun's radix cache is what finds a request's session"),
}
_REFUSED: Mapping[str, str] = {
    "enable_lmcache": "LMCache keeps KV unsealed, and past kvrun",
    "enable_flexkv": "FlexKV keeps KV unsealed, and past kvrun",
    "enable_unified_cache_external_linker": "a linker moves KV past kvrun",
    "kv_events_config": "KV events tell token ids",
    "enable_lora": "KV depends on the adapter, which the fingerprint does not name",
    "speculative_algorithm": "a draft model has a cache of its own, which is not governed",
    "sleep_on_idle": "the daemon is not answered while the scheduler sleeps",
    "enable_session_radix_cache": "SGLang's own sessions are not kvrun's",
    "enable_streaming_session": "SGLang's own sessions are not kvrun's",
    "enable_memory_saver": "pages could be paged out unseen",
}
_ONE: Mapping[str, str] = {
    "tp_size": "tensor parallel",
    "pp_size": "pipeline parallel",
    "dp_size": "data parallel",
    "attn_cp_size": "context parallel",
    "dcp_size": "decode context parallel",
}


class EngineSettingError(KvrunError):
    """The engine runs with an option under which the cache would not be governed."""


def check_engine(args: Any) -> None:
    """Refuse an engine that would leak around the governed cache.

    Raises:
        EngineSettingError: names the option and what is allowed.
    """
    for name, (wanted, why) in _NEEDED.items():
        value = getattr(args, name, None)
        if value != wanted:
            raise EngineSettingError(
                f"{_flag(name)} is {value!r}: {why}", hint=f"set it to {wanted!r}"
            )
    for name, why in _REFUSED.items():
        value = getattr(args, name, None)
        if value:
            raise EngineSettingError(f"{_flag(name)} is set: {why}", hint="leave it out")
    for name, what in _ONE.items():
        value = getattr(args, name, None)
        if value not in (None, 1):
            raise EngineSettingError(
                f"{_flag(name)} is {value}: with several {what} ranks each would ask the daemon "
                "for itself, and they could disagree",
                hint="run one rank an engine, and more engines",
            )
    mode = getattr(args, "disaggregation_mode", None)
    if mode not in (None, "null"):
        raise EngineSettingError(
            f"--disaggregation-mode is {mode!r}: KV would go to another engine unsealed",
            hint="leave it out",
        )
    extra = storage_options(args)
    page = int(getattr(args, "page_size", 1) or 1)
    if extra.get("prefetch_threshold") != page:
        raise EngineSettingError(
            "prefetch_threshold of --hicache-storage-backend-extra-config is "
            f"{extra.get('prefetch_threshold')!r}: shorter prompts would never be looked up",
            hint=f"set it to the page size, {page}",
        )


def storage_options(args: Any) -> dict[str, Any]:
    """The storage's options, checked to be kvrun's.

    Raises:
        EngineSettingError: they are not JSON, or name another storage.
    """
    text = getattr(args, "hicache_storage_backend_extra_config", None) or "{}"
    try:
        options = json.loads(text)
    except ValueError as error:
        raise EngineSettingError(
            f"--hicache-storage-backend-extra-config is not JSON: {error}",
            hint="write it in line; docs/engines-sglang.md has it",
        ) from None
    wanted = {
        "backend_name": STORAGE_NAME,
        "module_path": STORAGE_MODULE,
        "class_name": STORAGE_CLASS,
    }
    for key, value in wanted.items():
        if not isinstance(options, dict) or options.get(key) != value:
            raise EngineSettingError(
                f"--hicache-storage-backend-extra-config names another storage ({key})",
                hint=f"set {key} to {value!r}",
            )
    if not options.get("interface_v1"):
        raise EngineSettingError(
            "interface_v1 of --hicache-storage-backend-extra-config is not set",
            hint='add "interface_v1": 1',
        )
    return options


def engine_fingerprint(args: Any, layout: str, options: Mapping[str, Any]) -> bytes:
    """32 bytes that name everything on which the meaning of a page depends.

    ``layout`` describes SGLang's host page. Raises EngineSettingError where the model's files are
    not on this machine.
    """
    given = options.get(FINGERPRINT_KEY) or os.environ.get("KVRUN_MODEL_FINGERPRINT")
    if given:
        digest = bytes.fromhex(str(given))
    else:
        folder = local_folder(str(args.model_path))
        if folder is None:
            raise EngineSettingError(
                f"the files of the model {args.model_path!r} are not on this machine, so its "
                "cache cannot be bound to its weights",
                hint="download the model first, or give --model-path a folder",
            )
        digest = model_digest(folder, cache_folder() / "hashes.json")
    device = str(getattr(args, "device", "cuda"))
    return model_fingerprint(
        digest,
        KvFormat(
            dtype=str(getattr(args, "dtype", "auto")),
            kv_dtype=str(getattr(args, "kv_cache_dtype", "auto")),
            engine=f"sglang {require_supported_version()}",
            layout=f"device={device} {layout}",
            isa=cpu_isa() if device == "cpu" else device,
        ),
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
