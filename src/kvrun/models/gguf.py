"""Models as GGUF files, for llama.cpp: found, or for the demo model fetched; and their limits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from kvrun.models.demo import DEMO_NAME, GGUF_NAME, fetch_demo_gguf
from kvrun.models.folders import ModelError, appearing, cache_folder
from kvrun.models.gguf_header import open_gguf

DEMO_GGUF_FOLDER = "gemma-3-270m-q4km-gguf"
_SUFFIX = ".gguf"


def resolve_gguf(name: str, progress: Callable[[str], None]) -> Path:
    """The GGUF file of ``name``: a file, a folder with exactly one, or "demo".

    Raises ModelError for anything else.
    """
    if name == DEMO_NAME:
        return ensure_demo_gguf(cache_folder(), progress)
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == _SUFFIX:
        return path.absolute()
    found = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else []
    if len(found) == 1:
        return found[0].absolute()
    what = f"the folder has {len(found)} GGUF files" if path.is_dir() else "there is no such file"
    raise ModelError(
        f"deployment.model = {name!r} cannot be served by llama.cpp: {what}",
        hint='name a .gguf file, a folder with exactly one, or "demo"',
    )


def ensure_demo_gguf(cache: Path, progress: Callable[[str], None]) -> Path:
    """The demo model's GGUF file below ``cache``; fetched if it is not there yet.

    Raises ModelError when it cannot be installed or is not the one that was tested.
    """
    target = cache / "models" / DEMO_GGUF_FOLDER
    if not (target / GGUF_NAME).is_file():
        with appearing(target) as scratch, tempfile.TemporaryDirectory(dir=scratch.parent) as work:
            fetch_demo_gguf(Path(work), scratch / GGUF_NAME, progress)
    return target / GGUF_NAME


def gguf_maximum(path: Path) -> int | None:
    """The longest sequence that the model was made for; None where the file does not say.

    Raises ModelError when it is no GGUF file of a known version.
    """
    fields = open_gguf(path).fields
    value = fields.get(f"{fields.get('general.architecture')}.context_length")
    return value if isinstance(value, int) else None
