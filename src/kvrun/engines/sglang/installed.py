"""Which SGLang is installed, found without importing it."""

from __future__ import annotations

import importlib.metadata
import re

from kvrun.errors import KvrunError

OLDEST = (0, 5, 21)
"""The first release whose storage keys hold the salt and whose radix cache can be replaced."""


class EngineVersionError(KvrunError):
    """An SGLang that kvrun does not work with."""

    exit_code = 3


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
