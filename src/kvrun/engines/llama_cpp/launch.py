"""The command line and environment of a llama.cpp that serves with a governed cache. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.engines.llama_cpp.arguments import (
    EngineArgumentError,
    ServerShape,
    check_arguments,
    server_arguments,
)
from kvrun.engines.settings import TOKEN_FILE_VARIABLE

DEFAULT_SLOTS = 4
_SERVE = "kvrun.engines.llama_cpp.serve"
_SERVER_PROCESS = "kvrun.engines.llama_cpp.server_process"


def check_options(config: KvrunConfig, environment: Mapping[str, str]) -> None:
    """Refuse options under which slots would not be isolated. Raises EngineArgumentError."""
    check_arguments(config.engine.extra_args)
    for where, variables in (("engine.env", config.engine.env), ("the environment", environment)):
        for name in variables:
            if name.startswith("LLAMA_"):
                raise EngineArgumentError(
                    f"{where} sets {name}: llama.cpp takes settings from such variables",
                    hint="leave it out; engine.extra_args holds what may be set",
                )
            if name.startswith("KVRUN_") and where == "engine.env":
                raise EngineArgumentError(
                    f"{where} sets {name}", hint="variables that begin with KVRUN_ are kvrun's own"
                )
    if config.engine.tensor_parallel_size != 1:
        raise EngineArgumentError(
            f"engine.tensor_parallel_size = {config.engine.tensor_parallel_size}: llama.cpp is one"
            " process",
            hint="leave it out",
        )


def engine_command(
    config: KvrunConfig, *, cpus: Sequence[int] | None = None, connector: bool = True
) -> tuple[list[str], dict[str, str]]:
    """The engine's argument list and the variables to add to its environment.

    ``connector=False`` gives llama.cpp's own server without kvrun in front, for measurements.
    Raises EngineArgumentError.
    """
    check_options(config, {})
    deployment, engine = config.deployment, config.engine
    window = deployment.context_window
    assert window is not None
    threads = len(cpus) if cpus else 1
    slots = engine.max_num_seqs or DEFAULT_SLOTS
    extra = [*engine.extra_args]
    if engine.kv_cache_dtype != "auto":
        extra += ["--cache-type-k", engine.kv_cache_dtype, "--cache-type-v", engine.kv_cache_dtype]
    name = deployment.served_model_name or deployment.model
    environment = {**engine.env}
    if not connector:
        shape = ServerShape(
            Path(deployment.model), name, config.layout.engine_socket, window, slots, threads,
            tuple(extra),
        )  # fmt: skip
        return [sys.executable, "-m", _SERVER_PROCESS, *server_arguments(shape)], environment
    command = [
        sys.executable, "-m", _SERVE, "--model", deployment.model, "--name", name,
        "--context-window", str(window), "--slots", str(slots), "--threads", str(threads),
        "--instance-socket", str(config.instance_socket),
        "--backend-socket", str(config.layout.llama_socket),
        "--startup-timeout", str(engine.startup_timeout_s),
    ]  # fmt: skip
    if engine.transport == "unix":
        command += ["--uds", str(config.layout.engine_socket)]
    else:
        command += ["--port", str(engine.port)]
    if engine.llama_server is not None:
        command += ["--binary", str(engine.llama_server)]
    environment[TOKEN_FILE_VARIABLE] = str(config.layout.engine_token)
    return [*command, "--", *extra], environment
