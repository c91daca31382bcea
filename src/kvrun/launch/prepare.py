"""What must be settled before processes start: the engine, the model, windows, addresses."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from kvrun.config import ConfigError, KvrunConfig
from kvrun.engines.vllm.installed import InstalledEngine
from kvrun.finetune.gate import check_served, keys_of
from kvrun.launch.engines import check_engine_options, require_engine_of
from kvrun.launch.readiness import require_free
from kvrun.launch.trust import own_keys
from kvrun.models.catalogue import context_window, kv_bytes_per_token, model_maximum
from kvrun.models.gguf import gguf_maximum, resolve_gguf
from kvrun.models.resolve import facts_folder, resolve_model

MIN_KV_BYTES = 256 * 2**20
UNKNOWN_MODEL_KV_BYTES = 4 * 2**30
REQUESTS_IN_KV = 2


def check(config: KvrunConfig, environment: Mapping[str, str]) -> InstalledEngine:
    """Refuse what cannot work, before anything starts and before a model is fetched.

    Raises KvrunError: governed engine options, no engine, an address in use.
    """
    check_engine_options(config, environment)
    engine = require_engine_of(config)
    if config.gateway.port == 0:
        raise ConfigError(
            "gateway.port = 0 is a port that nobody knows", hint="allowed here: 1 to 65535"
        )
    require_free(config.gateway.host, config.gateway.port, "gateway.port")
    if config.engine.transport == "tcp":
        require_free("127.0.0.1", config.engine.port, "engine.port")
    return engine


def resolve(
    config: KvrunConfig, engine: InstalledEngine, progress: Callable[[str], None]
) -> KvrunConfig:
    """The configuration with the model on this machine and every open number decided.

    Raises ModelError when the model is not there or too small for the context window,
    EvaluationError when it is a fine-tune whose evaluation is missing or does not hold.
    """
    asked = config.deployment
    if config.engine.kind == "llama.cpp":
        file = resolve_gguf(asked.model, progress)
        # What was put beside the weights of a fine-tune is not what was evaluated.
        _check_evaluation(config, file.parent, progress)
        model, folder, maximum = str(file), None, gguf_maximum(file)
    else:
        model = resolve_model(asked.model, progress)
        folder = facts_folder(model)
        if folder is not None:
            _check_evaluation(config, folder, progress)
        maximum = model_maximum(folder) if folder is not None else None
    window = context_window(asked.model, asked.context_window, maximum)
    deployment = asked.model_copy(
        update={
            "model": model,
            "served_model_name": asked.served_model_name or _public_name(asked.model),
            "context_window": window,
        }
    )
    section = config.engine
    if section.kv_cache_bytes is None and engine.cpu and section.kind == "vllm":
        needed = _kv_bytes(folder, config, window)
        section = section.model_copy(update={"kv_cache_bytes": needed})
    return config.model_copy(update={"deployment": deployment, "engine": section})


def usable_cpus(engine: InstalledEngine) -> list[int] | None:
    """The cores for a CPU engine's threads; None on a GPU."""
    return sorted(os.sched_getaffinity(0)) if engine.cpu else None


def _check_evaluation(config: KvrunConfig, folder: Path, progress: Callable[[str], None]) -> None:
    reason = config.deployment.unevaluated_reason
    known = [key.public() for key in own_keys(config.layout)]
    served = check_served(folder, [*known, *keys_of(config.deployment.evaluation_keys)], reason)
    if served is not None and served.overridden:
        progress(f"warning: {folder}: {served.overridden}; it is served all the same: {reason}")


def _public_name(model: str) -> str:
    # A folder's or file's name, not its path: clients need not know where the model lies.
    return Path(model).name if Path(model).expanduser().exists() else model


def _kv_bytes(folder: Path | None, config: KvrunConfig, window: int) -> int:
    if folder is None:
        return UNKNOWN_MODEL_KV_BYTES
    each = kv_bytes_per_token(folder, _element_bytes(folder, config))
    if each is None:
        return UNKNOWN_MODEL_KV_BYTES
    return max(MIN_KV_BYTES, REQUESTS_IN_KV * window * each)


def _element_bytes(folder: Path, config: KvrunConfig) -> int:
    if config.engine.kv_cache_dtype.startswith("fp8"):
        return 1
    dtype: object = config.deployment.dtype
    if dtype == "auto":
        try:
            content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            dtype = content.get("dtype") or content.get("torch_dtype")
        except (OSError, ValueError):
            dtype = None
    return 4 if dtype == "float32" else 2
