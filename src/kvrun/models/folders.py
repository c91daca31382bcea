"""Where models are cached, and how a folder appears there all at once."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvrun.errors import KvrunError


class ModelError(KvrunError):
    """A model cannot be obtained or used."""

    exit_code = 3


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/kvrun``, by default ``~/.cache/kvrun``. Not created here."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(environ.get("HOME") or Path.home()) / ".cache") / "kvrun"


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes ``target`` in one rename when the block ends well.

    Where another process was first, its folder stays and ours is thrown away. Raises ModelError
    when the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelError(
            f"{target.parent} cannot be written: {error}", hint="set XDG_CACHE_HOME to a folder"
        ) from error
    try:
        yield scratch
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
