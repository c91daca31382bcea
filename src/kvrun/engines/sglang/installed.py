"""Which SGLang is installed, found without importing it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from kvrun.engines.vllm.installed import EngineMissingError, InstalledEngine

OLDEST = (0, 5, 21)
"""The first release whose storage keys hold the salt and whose radix cache can be replaced."""


class EngineVersionError(EngineMissingError):
    """No SGLang, or one that kvrun does not work with."""


def require_sglang() -> InstalledEngine:
    """The installed SGLang. Raises EngineVersionError."""
    version = require_supported_version()
    return InstalledEngine("sglang", version, cpu=not has_gpu(Path("/dev")))


def has_gpu(devices: Path) -> bool:
    """Whether drivers show a GPU, of NVIDIA or AMD, in the folder of devices."""
    return any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists()


def require_supported_version(version: str | None = None) -> str:
    """The installed version, or ``version``. Raises EngineVersionError for one that is too old."""
    if version is None:
        try:
            version = importlib.metadata.version("sglang")
        except importlib.metadata.PackageNotFoundError:
            raise EngineVersionError(
                "SGLang is not installed", hint="pip install 'kvrun[sglang]'"
            ) from None
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else (0, 0, 0)
    if not OLDEST <= numbers < (0, 6, 0):
        oldest = ".".join(map(str, OLDEST))
        raise EngineVersionError(
            f"SGLang {version} is installed; kvrun works with {oldest} and later 0.5 releases",
            hint=f"pip install 'sglang>={oldest},<0.6'",
        )
    return version
