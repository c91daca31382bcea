"""The command line and environment of a vLLM that serves with a governed cache.

Pure: the configuration comes with the model resolved (a folder or a hub id) and the context
window decided. What a deployment may not change is refused here, before anything starts.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence

from kvrun.config import KvrunConfig
from kvrun.engines.settings import TOKEN_FILE_VARIABLE
from kvrun.engines.vllm.settings import SOCKET_KEY
from kvrun.errors import KvrunError

CLI_MODULE = "kvrun.engines.vllm.cli_shim"

GOVERNED_FLAGS: Mapping[str, str] = {
    "kv-transfer-config": "kvrun sets it to its own connector",
    "kv-events-config": "KV events publish prompt tokens and salts in clear",
    "kv-offloading-size": "vLLM's own offloading keeps KV unsealed",
    "kv-offloading-backend": "vLLM's own offloading keeps KV unsealed",
    "ec-transfer-config": "it moves encoder outputs unsealed",
    "prefix-caching-hash-algo": (
        "kvrun sets sha256_cbor; xxhash lets one tenant forge another's blocks"
    ),
    "mm-processor-cache-gb": "kvrun sets 0: media caches are shared between tenants",
    "grpc": "its requests go past the gateway, so nobody says whose they are",
    "grpc-port": "its requests go past the gateway, so nobody says whose they are",
    "api-key": "clients' keys belong to the gateway: gateway.api_keys_file",
    "enable-log-requests": "it writes prompts into the log",
    "enable-log-outputs": "it writes answers into the log",
    "calculate-kv-scales": "sealed blocks would be useless without the scales of their run",
    "config": "a second file could set what is governed",
    "headless": "kvrun starts the whole engine on this machine",
    "enable-lora": "a fine-tune is served as deployment.model, where its evaluation is checked",
    "lora-modules": "a fine-tune is served as deployment.model, where its evaluation is checked",
    "model": "set deployment.model",
    "served-model-name": "set deployment.served_model_name",
    "max-model-len": "set deployment.context_window",
    "dtype": "set deployment.dtype",
    "host": "set engine.transport",
    "port": "set engine.port",
    "uds": "set engine.transport",
    "ssl-keyfile": "TLS belongs to the gateway: gateway.tls_key",
    "ssl-certfile": "TLS belongs to the gateway: gateway.tls_cert",
    "block-size": "set engine.block_size",
    "kv-cache-memory-bytes": "set engine.kv_cache_bytes",
    "kv-cache-dtype": "set engine.kv_cache_dtype",
    "max-num-seqs": "set engine.max_num_seqs",
    "tensor-parallel-size": "set engine.tensor_parallel_size",
    "enforce-eager": "set engine.enforce_eager",
    "enable-prompt-tokens-details": "kvrun sets it; the gateway reports reused tokens from it",
}
"""Flags that ``engine.extra_args`` must not hold, with the reason."""

_SHORT_FLAGS = {"tp": "tensor-parallel-size"}

GOVERNED_VARIABLES: Mapping[str, str] = {
    "VLLM_USE_RUST_FRONTEND": "the Rust frontend runs no middleware, so claims go unchecked",
    "VLLM_SERVER_DEV_MODE": "development routes dump configuration and reset caches unasked",
    "VLLM_API_KEY": "clients' keys belong to the gateway: gateway.api_keys_file",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "it lets a message run code in the engine",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "adapters must not change under a running fingerprint",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "it writes answers into the log",
    "VLLM_PLUGINS": "it could leave kvrun's own plugin out",
}
"""Variables that must not be set for the engine, with the reason ("0" and "" are as unset)."""

_SET_VARIABLES = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


class EngineOptionError(KvrunError):
    """An engine option that kvrun governs was set by hand."""

    exit_code = 2


def engine_command(
    config: KvrunConfig, *, cpus: Sequence[int] | None = None, connector: bool = True
) -> tuple[list[str], dict[str, str]]:
    """The engine's argument list and the variables to add to its environment.

    ``cpus`` are the cores of a CPU engine (None on a GPU): its threads are pinned to all of them
    unless ``engine.omp_threads_bind`` says otherwise. ``connector=False`` gives the same engine
    without a governed cache, for measurements. Raises EngineOptionError for a governed flag or
    variable in ``engine.extra_args`` or ``engine.env``.
    """
    check_arguments(config.engine.extra_args)
    check_variables(config.engine.env, "engine.env")
    deployment, engine = config.deployment, config.engine
    command = [sys.executable, "-m", CLI_MODULE, "serve", deployment.model]
    command += ["--served-model-name", deployment.served_model_name or deployment.model]
    if engine.transport == "unix":
        command += ["--uds", str(config.layout.engine_socket)]
    else:
        command += ["--host", "127.0.0.1", "--port", str(engine.port)]
    command += ["--dtype", deployment.dtype, "--kv-cache-dtype", engine.kv_cache_dtype]
    command += ["--prefix-caching-hash-algo", "sha256_cbor", "--mm-processor-cache-gb", "0"]
    command += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    optional = (
        ("--max-model-len", deployment.context_window),
        ("--block-size", engine.block_size),
        ("--kv-cache-memory-bytes", engine.kv_cache_bytes),
        ("--max-num-seqs", engine.max_num_seqs),
    )
    for flag, value in optional:
        if value is not None:
            command += [flag, str(value)]
    if engine.tensor_parallel_size > 1:
        command += ["--tensor-parallel-size", str(engine.tensor_parallel_size)]
    if engine.enforce_eager:
        command.append("--enforce-eager")
    if connector:
        command += ["--kv-transfer-config", json.dumps(transfer_config(config))]
    command += engine.extra_args
    environment = {**engine.env, **_SET_VARIABLES}
    if connector:
        environment[TOKEN_FILE_VARIABLE] = str(config.layout.engine_token)
    binding = engine.omp_threads_bind or (
        cpu_binding(cpus, engine.tensor_parallel_size) if cpus else None
    )
    if binding:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = binding
    return command, environment


def transfer_config(config: KvrunConfig) -> dict[str, object]:
    """The value of ``--kv-transfer-config``; a fault in the cache is recomputed, never an error."""
    return {
        "kv_connector": "KvrunConnector",
        "kv_connector_module_path": "kvrun.engines.vllm.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {SOCKET_KEY: str(config.instance_socket)},
    }


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise EngineOptionError when ``arguments`` hold a governed flag in any spelling.

    vLLM accepts underscores for hyphens, ``--flag.key=value``, ``--flag+`` and every unambiguous
    beginning of a flag.
    """
    for argument in arguments:
        if not argument.startswith("-") or argument.strip("-") == "":
            continue
        name = re.split(r"[=.+]", argument.lstrip("-"), maxsplit=1)[0].replace("_", "-")
        if not argument.startswith("--"):
            name = _SHORT_FLAGS.get(name, name)
        bare = name.removeprefix("no-")
        for flag, reason in GOVERNED_FLAGS.items():
            # "--kv-cache" is a beginning of a governed flag; "--kv-cache-metrics" is another flag.
            if flag in (name, bare) or (len(bare) >= 2 and flag.startswith(bare)):
                raise EngineOptionError(
                    f"engine.extra_args holds {argument!r}: --{flag} is governed by kvrun",
                    hint=reason,
                )


def check_variables(environment: Mapping[str, str], where: str) -> None:
    """Raise EngineOptionError when ``environment`` (from ``where``) sets a governed variable."""
    for name, value in environment.items():
        reason = GOVERNED_VARIABLES.get(name)
        if reason is not None and value not in ("", "0"):
            raise EngineOptionError(
                f"{where} sets {name}={value!r}", hint=f"leave it out: {reason}"
            )
        if name.startswith("KVRUN_") and where != "the environment":
            raise EngineOptionError(
                f"{where} sets {name}", hint="variables that begin with KVRUN_ are kvrun's own"
            )
        if name in _SET_VARIABLES and where != "the environment" and value != _SET_VARIABLES[name]:
            raise EngineOptionError(
                f"{where} sets {name}={value!r}", hint=f"kvrun sets {_SET_VARIABLES[name]!r}"
            )


def cpu_binding(cpus: Sequence[int], workers: int) -> str | None:
    """Cores for each worker's threads in vLLM's notation, or None for too few cores."""
    share = len(cpus) // workers
    if share == 0:
        return None
    ordered = sorted(cpus)
    return "|".join(
        ",".join(str(cpu) for cpu in ordered[rank * share : (rank + 1) * share])
        for rank in range(workers)
    )
