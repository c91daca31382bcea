"""Which llama.cpp there is, found without importing it."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from kvrun.engines.vllm.installed import EngineMissingError, InstalledEngine

PACKAGE = "xllamacpp"
MINIMUM = (2026, 10)
"""Year and month of the oldest xllamacpp whose server takes every argument that isolates."""


def require_llama_cpp(binary: Path | None = None) -> InstalledEngine:
    """The llama.cpp that would serve: ``binary``, else xllamacpp. Raises EngineMissingError."""
    if binary is not None:
        if not os.access(binary, os.X_OK) or not binary.is_file():
            raise EngineMissingError(
                f"engine.llama_server = {str(binary)!r} cannot be run",
                hint="name a llama-server, or leave it out to use xllamacpp",
            )
        return InstalledEngine("llama-server", binary.name, cpu=True)
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise EngineMissingError(
            "no llama.cpp is installed",
            hint='pip install "kvrun[llama-cpp]", or set engine.llama_server to a llama-server',
        ) from None
    if _release(version) < MINIMUM:
        raise EngineMissingError(
            f"{PACKAGE} {version} is installed; kvrun works with {_text(MINIMUM)} and later",
            hint=f'pip install "{PACKAGE}>={_text(MINIMUM)}"',
        )
    return InstalledEngine(PACKAGE, version, cpu=True)


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))
