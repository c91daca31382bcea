"""When opening a key folder must not take keys away: its file is not there, somebody only looks, or
Storage has newer keys. What goes is gone for good, and a disk may just not be mounted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvrun.keys.errors import KeysError, SlotFileError, WrapError
from kvrun.keys.keyring import SLOTS_NAME
from kvrun.keys.ring_entries import BeforeLoss, Loss
from kvrun.keys.ring_store import UPPER_NAME
from kvrun.keys.root import Root
from kvrun.keys.slot_copies import COPIED_NAME, copies, recall_copy
from kvrun.keys.slot_copy import file_id_of, open_copy
from kvrun.keys.slots import PAGE_BYTES
from kvrun.storage import Storage, StorageError


def require_key_file(keys: Path, root: Root, *, in_storage: bool) -> None:
    """Raises KeysError where ``keys`` has no key file and the root had keys there.

    A start would make a new file, and what that lacks would count as destroyed. ``in_storage``:
    Storage may have a copy.
    """
    upper = None if root.folder is None else root.folder / UPPER_NAME
    if upper is None or (keys / SLOTS_NAME).exists() or not _has_records(upper):
        return
    back = "Mount or put back that folder as it was"
    if in_storage:
        back += ", or bring the newest copy from Storage with `kvrun keys fetch`"
    raise KeysError(
        f"{keys / SLOTS_NAME} is not there, and by {upper} it had keys: a start would destroy them",
        hint=f"{back}. To start with a cold cache instead, remove {upper}",
    )


def refuse_to_lose(keys: Path) -> BeforeLoss:
    """For who looks into a stopped deployment: raises KeysError before anything is lost."""

    def refuse(loss: Loss) -> None:
        raise KeysError(
            f"{keys / SLOTS_NAME} {loss}, so it is not opened just to look",
            hint="Put back what is missing, or start the deployment, which goes on without it.",
        )

    return refuse


def require_newest(
    keys: Path, root: Root, workspace: str, deployment: str, storage: Callable[[], Storage], at: str
) -> BeforeLoss:
    """For a start: raises KeysError where the key file is an older copy and Storage has a newer
    one, in its folder ``at``, or does not say."""

    def check(loss: Loss) -> None:
        if loss is not Loss.OLDER_COPY:
            return
        try:
            name = _newer_copy(keys, root, workspace, deployment, storage(), at)
        except StorageError as error:
            raise KeysError(
                f"{keys / SLOTS_NAME} is an older copy, and whether Storage has newer keys cannot "
                f"be seen ({error.message}): a start would destroy what it lacks",
                hint="Start again when Storage answers. To do without what it has for good: "
                'instance.object_tier = "off".',
            ) from None
        if name:
            raise KeysError(
                f"{keys / SLOTS_NAME} is an older copy, and Storage has newer keys in {name}: a "
                "start would destroy what the older one lacks",
                hint=f"To have the newer ones: move {keys} away, run `kvrun keys fetch`, start. To "
                "do without them for good: delete that object.",
            )

    return check


def _newer_copy(
    keys: Path, root: Root, workspace: str, deployment: str, storage: Storage, at: str
) -> str:
    """The newest copy that `kvrun keys fetch` would bring, if it is not of what is here."""
    with (keys / SLOTS_NAME).open("rb") as file:
        last = recall_copy(keys / COPIED_NAME, file_id_of(file.read(PAGE_BYTES)))
    for name in reversed(copies(storage, at)):
        if name.rpartition("/")[2] <= last:
            break
        try:
            open_copy(storage.get(name), root, workspace, deployment)
        except (SlotFileError, WrapError):
            continue  # another root's
        return name
    return ""


def _has_records(upper: Path) -> bool:
    """A file that nothing was ever written to ends with its header."""
    return upper.exists() and upper.stat().st_size > PAGE_BYTES
