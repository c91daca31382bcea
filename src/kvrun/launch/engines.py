"""The engines that kvrun starts: what each needs, refuses and is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvrun.config import KvrunConfig
from kvrun.engines.llama_cpp import launch as llama_cpp
from kvrun.engines.llama_cpp.installed import require_llama_cpp
from kvrun.engines.vllm import launch as vllm
from kvrun.engines.vllm.installed import InstalledEngine, require_engine


def check_engine_options(config: KvrunConfig, environment: Mapping[str, str]) -> None:
    """Refuse options of the engine that kvrun governs. Raises KvrunError that names one."""
    if config.engine.kind == "llama.cpp":
        llama_cpp.check_options(config, environment)
        return
    vllm.check_arguments(config.engine.extra_args)
    vllm.check_variables(config.engine.env, "engine.env")
    vllm.check_variables(environment, "the environment")


def require_engine_of(config: KvrunConfig) -> InstalledEngine:
    """The installed engine that the configuration names. Raises EngineMissingError."""
    if config.engine.kind == "llama.cpp":
        return require_llama_cpp(config.engine.llama_server)
    return require_engine()


def engine_command(
    config: KvrunConfig, *, cpus: Sequence[int] | None = None, connector: bool = True
) -> tuple[list[str], dict[str, str]]:
    """The engine's arguments and variables; ``connector=False``: without a governed cache."""
    make = llama_cpp.engine_command if config.engine.kind == "llama.cpp" else vllm.engine_command
    return make(config, cpus=cpus, connector=connector)
