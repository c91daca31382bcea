"""The command line and environment of an SGLang that serves with a governed cache. Pure.

Options that are not on the short list of harmless ones are refused, so that none of SGLang's opens
a way around the governed cache; ``governance`` checks the running engine once more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from kvrun.config import KvrunConfig
from kvrun.engines.settings import TOKEN_FILE_VARIABLE
from kvrun.engines.sglang.governance import (
    SOCKET_KEY,
    STORAGE_CLASS,
    STORAGE_MODULE,
    STORAGE_NAME,
)
from kvrun.errors import KvrunError

DEFAULT_PAGE = 64
REQUESTS_IN_KV = 2
"""Longest requests that an engine on a CPU has room for, unless it is told otherwise."""

ALLOWED = (
    "--attention-backend",
    "--sampling-backend",
    "--grammar-backend",
    "--mem-fraction-static",
    "--max-total-tokens",
    "--chunked-prefill-size",
    "--max-prefill-tokens",
    "--hicache-ratio",
    "--hicache-size",
    "--quantization",
    "--chat-template",
    "--tool-call-parser",
    "--reasoning-parser",
    "--random-seed",
)
"""Options that ``engine.extra_args`` may hold; each takes a value."""

_NOT_ON_A_CPU = ("--disable-prefill-cuda-graph", "--disable-decode-cuda-graph")


class EngineArgumentError(KvrunError):
    """An option of SGLang that kvrun governs, or that it does not know."""

    exit_code = 2


def check_options(config: KvrunConfig, environment: Mapping[str, str]) -> None:
    """Refuse options under which the cache would not be governed. Raises EngineArgumentError."""
    check_arguments(config.engine.extra_args)
    for where, variables in (("engine.env", config.engine.env), ("the environment", environment)):
        if variables.get("SGLANG_PLUGINS"):
            raise EngineArgumentError(
                f"{where} sets SGLANG_PLUGINS", hint="leave it out: it could leave kvrun's own out"
            )
    for name in config.engine.env:
        if name.startswith("KVRUN_"):
            raise EngineArgumentError(
                f"engine.env sets {name}", hint="variables that begin with KVRUN_ are kvrun's own"
            )
    if config.engine.transport != "tcp":
        raise EngineArgumentError(
            'engine.transport = "unix": SGLang listens on TCP only',
            hint='set engine.transport = "tcp"; every process of this machine reaches that port',
        )
    if config.engine.tensor_parallel_size != 1:
        raise EngineArgumentError(
            f"engine.tensor_parallel_size = {config.engine.tensor_parallel_size}: each rank would "
            "ask the daemon for itself, and they could disagree",
            hint="leave it out",
        )


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise EngineArgumentError that names the first of ``engine.extra_args`` not on the list."""
    rest = list(arguments)
    while rest:
        name, equals, _ = rest.pop(0).partition("=")
        if name not in ALLOWED:
            raise EngineArgumentError(
                f"engine.extra_args holds {name!r}: it is not on kvrun's list",
                hint=f"allowed are {', '.join(ALLOWED)}",
            )
        if not equals:
            if not rest:
                raise EngineArgumentError(f"engine.extra_args: {name} needs a value")
            rest.pop(0)


def engine_command(
    config: KvrunConfig, *, cpus: Sequence[int] | None = None, connector: bool = True
) -> tuple[list[str], dict[str, str]]:
    """The engine's argument list and the variables to add to its environment.

    ``cpus`` are the cores of a CPU engine, None on a GPU. ``connector=False`` gives the same engine
    without a governed cache, for measurements. Raises EngineArgumentError.
    """
    check_options(config, {})
    deployment, engine = config.deployment, config.engine
    window = deployment.context_window
    assert window is not None
    page = engine.block_size or DEFAULT_PAGE
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", deployment.model,
        "--served-model-name", deployment.served_model_name or deployment.model,
        "--host", "127.0.0.1", "--port", str(engine.port),
        "--context-length", str(window), "--page-size", str(page),
        "--dtype", deployment.dtype, "--kv-cache-dtype", engine.kv_cache_dtype,
        "--enable-cache-report", "--log-level-http", "warning",
    ]  # fmt: skip
    if engine.max_num_seqs is not None:
        command += ["--max-running-requests", str(engine.max_num_seqs)]
    # Health checks would otherwise wait in line with requests, to generate a token.
    environment = {**engine.env, "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    if cpus is not None:
        command += ["--device", "cpu", *_NOT_ON_A_CPU]
        command += ["--attention-backend", "torch_native"]
        command += ["--max-total-tokens", str(REQUESTS_IN_KV * window)]
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    command += engine.extra_args
    if connector:
        # Last, so that nothing before it counts.
        command += governed_arguments(config, page)
        environment[TOKEN_FILE_VARIABLE] = str(config.layout.engine_token)
    return command, environment


def governed_arguments(config: KvrunConfig, page_tokens: int) -> list[str]:
    """What makes SGLang keep its cache in kvrun's tiers and nowhere else."""
    storage = {
        "backend_name": STORAGE_NAME,
        "module_path": STORAGE_MODULE,
        "class_name": STORAGE_CLASS,
        "interface_v1": 1,
        "prefetch_threshold": page_tokens,
        SOCKET_KEY: str(config.instance_socket),
    }
    return [
        "--radix-cache-backend", "kvrun",
        "--enable-hierarchical-cache",
        "--hicache-host-memory-mode", "buffer_only",
        "--hicache-mem-layout", "page_first_direct",
        "--hicache-io-backend", "direct",
        "--hicache-write-policy", "write_through",
        "--hicache-storage-prefetch-policy", "wait_complete",
        "--disable-overlap-schedule",
        "--hicache-storage-backend", "dynamic",
        "--hicache-storage-backend-extra-config", json.dumps(storage),
    ]  # fmt: skip
