"""From ``deployment.model`` to something the engine can load."""

from collections.abc import Callable
from pathlib import Path

from kvrun.models.demo import DEMO_NAME, ensure_demo_model
from kvrun.models.folders import ModelError, cache_folder
from kvrun.models.tiny import ensure_tiny_model

TINY_NAME = "tiny"


def resolve_model(name: str, progress: Callable[[str], None]) -> str:
    """The folder of ``name``, made if it is the demo or the tiny model; a hub id stays as it is.

    Raises ModelError for a path that does not exist.
    """
    if name == DEMO_NAME:
        return str(ensure_demo_model(cache_folder(), progress))
    if name == TINY_NAME:
        return str(ensure_tiny_model(cache_folder()))
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"deployment.model = {name!r}: there is no such folder",
            hint='a folder, a Hugging Face id such as "org/model", "demo" or "tiny"',
        )
    return name


def local_folder(model: str) -> Path | None:
    """The model's folder on this machine, the hub's cache included; None if it is not here."""
    path = Path(model)
    if path.is_dir():
        return path
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, local_files_only=True))
    except Exception:  # any failure means the same: the engine will fetch it or say why not
        return None


def facts_folder(model: str) -> Path | None:
    """A folder with the model's config.json; a hub model's is fetched, its weights are not.

    None when it cannot be had: the engine will say why.
    """
    folder = local_folder(model)
    if folder is not None:
        return folder
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(model, "config.json")).parent
    except Exception:  # no network, no such model, no access: all the engine's to report
        return None
