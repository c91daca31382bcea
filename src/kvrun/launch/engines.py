"""The engines that kvrun starts: what each needs, refuses and is started with."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.engines.llama_cpp import launch as llama_cpp
from kvrun.engines.llama_cpp.installed import require_llama_cpp
from kvrun.engines.sglang import launch as sglang
from kvrun.engines.sglang.installed import require_sglang
from kvrun.engines.vllm import launch as vllm
from kvrun.engines.vllm.installed import EngineMissingError, InstalledEngine, require_engine

KINDS = ("vllm", "llama.cpp", "sglang")
"""What ``engine.kind`` may be."""


def smallest_model(kind: str) -> str:
    """The smallest model that an engine serves here: llama.cpp wants a file of its own format."""
    return "demo" if kind == "llama.cpp" else "tiny"


def check_engine_options(config: KvrunConfig, environment: Mapping[str, str]) -> None:
    """Refuse options of the engine that kvrun governs. Raises KvrunError that names one."""
    if config.engine.kind == "llama.cpp":
        llama_cpp.check_options(config, environment)
        return
    if config.engine.kind == "sglang":
        sglang.check_options(config, environment)
        return
    vllm.check_arguments(config.engine.extra_args)
    vllm.check_variables(config.engine.env, "engine.env")
    vllm.check_variables(environment, "the environment")


def require_engine_of(config: KvrunConfig) -> InstalledEngine:
    """The installed engine that the configuration names. Raises EngineMissingError."""
    if config.engine.kind == "llama.cpp":
        return require_llama_cpp(config.engine.llama_server)
    return installed_engine(config.engine.kind)


def installed_engine(kind: str, llama_server: Path | None = None) -> InstalledEngine:
    """The installed engine of a kind; ``llama_server`` is a llama.cpp of one's own.

    Raises EngineMissingError.
    """
    if kind == "llama.cpp":
        return require_llama_cpp(llama_server)
    return require_sglang() if kind == "sglang" else require_engine()


def usual_engine(*preferred: str) -> str:
    """The first of these kinds that is installed; where none is, the first."""
    for kind in preferred:
        with contextlib.suppress(EngineMissingError):
            installed_engine(kind)
            return kind
    return preferred[0]


def engine_command(
    config: KvrunConfig, *, cpus: Sequence[int] | None = None, connector: bool = True
) -> tuple[list[str], dict[str, str]]:
    """The engine's arguments and variables; ``connector=False``: without a governed cache."""
    commands = {"llama.cpp": llama_cpp.engine_command, "sglang": sglang.engine_command}
    make = commands.get(config.engine.kind, vllm.engine_command)
    return make(config, cpus=cpus, connector=connector)
