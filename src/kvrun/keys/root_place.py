"""Where a file root is: beside the data folder, so that a backup of that takes no root along."""

import os
from pathlib import Path

from kvrun.config.roots import FileAddress
from kvrun.keys.errors import RootError
from kvrun.keys.file_root import SLOTS_NAME


def usual_places(data_dir: Path) -> tuple[Path, Path]:
    """The folder beside ``data_dir`` (``NAME-root``), and the one in it that earlier versions made.

    Raises RootError for a data folder that has nothing beside it.
    """
    place = Path(os.path.normpath(data_dir))
    if not place.name:
        raise RootError(
            f"nothing is beside the data folder {data_dir}",
            hint='Name a folder for the key root: keys.root = "file:FOLDER".',
        )
    return place.with_name(f"{place.name}-root"), place / "root"


def file_root_folder(address: FileAddress, data_dir: Path) -> Path:
    """The folder of a file root; nothing is made, moved or changed.

    Where none is named: beside the data folder, unless an earlier version made one inside, which
    stays in use. Raises RootError where there is one in both places: only one of them opens these
    keys, and the other may be an older copy.
    """
    if address.folder is not None:
        return data_dir / address.folder
    beside, inside = usual_places(data_dir)
    if not (inside / SLOTS_NAME).exists():
        return beside
    if (beside / SLOTS_NAME).exists():
        raise RootError(
            f"there is a key root in {inside} and another one in {beside}",
            hint="One of them may come from a backup. Move that away, or name the right one: "
            f'keys.root = "file:{beside}"',
        )
    return inside
