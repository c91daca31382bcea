"""What a TensorRT-LLM must be like before kvrun serves it, and the fingerprint of its cache."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

from kvrun.engines.tensorrt_llm.interface import SchedulerInterface, connector_bases
from kvrun.errors import KvrunError
from kvrun.models.fingerprint import KvFormat, cpu_isa, model_digest, model_fingerprint
from kvrun.models.folders import cache_folder
from kvrun.models.resolve import local_folder

OLDEST = (1, 2)
"""The first release whose connector is told a request's salt, by its number."""

UNKNOWN = "unknown"


class EngineSettingError(KvrunError):
    """The engine runs with a setting under which the cache would not be governed."""


def check_engine(args: Any) -> None:
    """Refuse an engine that would reuse, keep or promise what kvrun does not govern.

    Raises:
        EngineSettingError: names the setting and what is allowed.
    """
    _check_release(engine_version())
    cache = getattr(args, "kv_cache_config", None)
    ranks = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
        ranks *= int(getattr(args, name, 1) or 1)
    _refuse(
        ranks != 1,
        f"it runs on {ranks} ranks: a rank has no way to report that a block did not open, so "
        "another one would compute with KV that is not there",
        "use one rank",
    )
    _refuse(
        bool(getattr(cache, "enable_block_reuse", True)),
        "kv_cache_config.enable_block_reuse is on: blocks that TensorRT-LLM reuses itself are "
        "reused without a claim and cannot be zeroed on erasure",
        "set enable_block_reuse to false; kvrun's own tiers do the reusing",
    )
    _refuse(
        bool(getattr(cache, "host_cache_size", None)),
        "kv_cache_config.host_cache_size is set: it keeps KV unsealed in host memory",
        "leave it out",
    )
    _refuse(
        bool(getattr(cache, "event_buffer_max_size", 0)),
        "kv_cache_config.event_buffer_max_size is set: KV events tell token ids",
        "leave it out",
    )
    _refuse(
        bool(getattr(cache, "max_attention_window", None)),
        "kv_cache_config.max_attention_window is set: blocks outside the window have no id",
        "serve models with full attention only",
    )
    _refuse(
        int(getattr(args, "max_beam_width", 1) or 1) != 1,
        "max_beam_width is not 1",
        "beams share blocks; set max_beam_width to 1",
    )
    _refuse(
        getattr(args, "speculative_config", None) is not None,
        "speculative decoding is on: the connector is not told which tokens were kept",
        "leave speculative_config out",
    )
    _refuse(
        not bool(getattr(args, "disable_overlap_scheduler", False)),
        "the overlap scheduler is on: a step may write to blocks that were zeroed already",
        "set disable_overlap_scheduler to true",
    )
    _refuse(
        bool(getattr(args, "enable_lora", False)) or getattr(args, "lora_config", None) is not None,
        "LoRA adapters are on: KV depends on the adapter, which the connector is not told",
        "serve the adapted weights as a model of their own",
    )


def tokens_per_block(args: Any) -> int:
    """Tokens in one block of the engine."""
    return int(getattr(args.kv_cache_config, "tokens_per_block", 32))


def engine_version() -> str:
    """The installed version; ``UNKNOWN`` without one."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


def engine_fingerprint(args: Any, tensor: Any, given: str | None) -> bytes:
    """32 bytes that name everything on which the meaning of a block depends.

    ``given`` (hex) stands for the digest of the model's files. Raises EngineSettingError where the
    model's files are not here.
    """
    if given:
        digest = bytes.fromhex(given)
    else:
        folder = local_folder(str(args.model))
        if folder is None:
            raise EngineSettingError(
                f"the files of the model {args.model!r} are not on this machine, so its cache "
                "cannot be bound to its weights",
                hint="download the model first, or give a folder",
            )
        digest = model_digest(folder, cache_folder() / "hashes.json")
    cache = args.kv_cache_config
    return model_fingerprint(
        digest,
        KvFormat(
            dtype=str(getattr(args, "dtype", "auto")),
            kv_dtype=f"{getattr(cache, 'dtype', 'auto')} {tensor.dtype}",
            engine=f"tensorrt-llm {engine_version()}",
            layout=f"row={tuple(tensor.shape[1:])} tokens={tokens_per_block(args)}",
            isa=cpu_isa() if tensor.device.type == "cpu" else tensor.device.type,
        ),
    )


def _check_release(version: str) -> None:
    """Refuse a release before 1.2, or one whose connector interface is not where it was."""
    if version == UNKNOWN:
        return
    oldest = ".".join(map(str, OLDEST))
    found = re.match(r"(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else (0, 0)
    _refuse(
        numbers < OLDEST,
        f"TensorRT-LLM {version} is installed; kvrun's connector is for {oldest} and later",
        f"install tensorrt_llm {oldest} or later",
    )
    _refuse(
        connector_bases()[0] is SchedulerInterface,
        f"TensorRT-LLM {version} has no connector interface that this kvrun knows",
        f"install the release {oldest}, or a kvrun for your TensorRT-LLM",
    )


def _refuse(holds: bool, what: str, hint: str) -> None:
    if holds:
        raise EngineSettingError(what, hint=hint)
