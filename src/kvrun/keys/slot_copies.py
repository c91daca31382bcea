"""Keeps the newest copy of the key slots in Storage, and brings it to an empty machine.

An older copy opens what lives and nothing that was destroyed: its slot's key is gone beside the
root. It lacks what was made since, so a new one follows every change of the slot file within
seconds, and takes the earlier ones' place. What comes from another slot file, or was written after
our own last copy, is never replaced: it may be all that is left of a lost machine's keys.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError
from kvrun.keys.errors import KeysError, SlotFileError, WrapError
from kvrun.keys.folder import private_folder
from kvrun.keys.keyring import SLOTS_NAME
from kvrun.keys.root import Root
from kvrun.keys.service import KeyService
from kvrun.keys.slot_copy import file_id_of, open_copy, seal_copy
from kvrun.storage import Storage, StorageError

COPIED_NAME = "keys.copied"
"""Beside the slot file: which slot file was copied last, and under which name."""
_LOOK_EVERY_S = 1.0
_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 60.0
# A large file is copied less often: a minute for 60 MB.
_BYTES_PER_S = 10**6
_SUFFIX = ".kvk"
_NAME = re.compile(r"([0-9]{20})-[0-9a-f]{16}\.kvk")
_log = logging.getLogger(__name__)


class Slots(Protocol):
    """A slot file in use, as it is copied."""

    def state(self) -> tuple[int, int]:
        """Something that differs whenever the file was written, and its size in bytes."""

    def file_id(self) -> bytes:
        """The id that the file got when it was made. Raises OSError."""

    def copy(self) -> bytes:
        """The file as it is now, sealed for Storage. Raises KeysError."""

    def is_own(self, copy: bytes) -> bool:
        """Whether a copy is of this file. Raises RootError where the root cannot be asked."""


class ServiceSlots:
    """The slot file of a key service in this process."""

    def __init__(self, service: KeyService, workspace: str, deployment: str) -> None:
        self._service = service
        self._path = service.slots_path
        self._scope = (workspace, deployment)

    def state(self) -> tuple[int, int]:
        """By the file's time and size."""
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size

    def file_id(self) -> bytes:
        """From the file's header."""
        with self._path.open("rb") as file:
            return file_id_of(file.read(64))

    def copy(self) -> bytes:
        """Between two changes, so that it is of one epoch."""
        with self._service.ring() as ring:
            return seal_copy(self._path.read_bytes(), ring.store.root, *self._scope)

    def is_own(self, copy: bytes) -> bool:
        """One that this root does not open is not."""
        with self._service.ring() as ring:
            try:
                return file_id_of(open_copy(copy, ring.store.root, *self._scope)) == self.file_id()
            except (SlotFileError, WrapError):
                return False


class CopyRefusedError(KeysError):
    """The copy in Storage is not an earlier one of the keys here."""


class SlotCopies:
    """Copies to ``folder`` of Storage in a thread of its own, from ``start`` to ``close``.

    ``copied`` is the file that remembers the last copy. While Storage has another slot file's copy
    ``refused`` says so and what to do; it is empty otherwise.
    """

    def __init__(
        self,
        slots: Slots,
        storage: Storage,
        folder: str,
        copied: Path,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._slots = slots
        self._storage = storage
        self._folder = folder
        self._file = copied
        self._now = now
        self._wall = wall
        self.refused = ""
        self._foreign = ""
        self._copied: tuple[int, int] | None = None
        self._not_before = 0.0
        self._retry_s = _FIRST_RETRY_S
        self._name = ""
        self._earlier_left = False
        self._remove_not_before = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvrun-key-copies", daemon=True)

    def start(self) -> None:
        """Begins to look for changes."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and copies what changed last, if that works at once."""
        self._stopping.set()
        self._thread.join()
        self._not_before = 0.0
        self._look()

    def copy(self) -> bool:
        """Copies the slot file if it changed and it is time to; whether it did.

        Then removes the earlier copies. Those that Storage does not let go of are tried again
        later, and no copy is made for their sake.
        """
        copied = self._copy()
        if self._earlier_left and (copied or self._now() >= self._remove_not_before):
            self._remove_earlier()
        return copied

    def _copy(self) -> bool:
        try:
            state = self._slots.state()
            if state == self._copied or self._now() < self._not_before:
                return False
            self._put()
        except CopyRefusedError as error:
            self._not_before = self._now() + _LONGEST_RETRY_S
            if not self.refused:
                _log.error("%s. %s", error.message, error.hint)
            self.refused = f"{error.message}. {error.hint}"
            return False
        except (KvrunError, OSError) as error:
            self._not_before = self._now() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
            _log.warning("the copy of the key slots in Storage is out of date: %s", error)
            return False
        self._copied = state
        self.refused = ""
        self._retry_s = _FIRST_RETRY_S
        self._not_before = self._now() + state[1] / _BYTES_PER_S
        return True

    def _put(self) -> None:
        """Stores a copy under a name that sorts after every earlier one, whatever clocks say."""
        file_id = self._slots.file_id()
        last = recall_copy(self._file, file_id)
        found = [name for name in map(_base, copies(self._storage, self._folder)) if _stamp(name)]
        newest = found[-1] if found else ""
        if newest > last:
            self._check_own(newest)
        sealed = self._slots.copy()
        stamp = max(int(self._wall() * 1e6), _stamp(newest) + 1, _stamp(last) + 1)
        name = f"{stamp:020d}-{secrets.token_hex(8)}{_SUFFIX}"
        # First, so that a copy that came to be without our knowing is not taken for another's.
        remember_copy(self._file, file_id, name)
        self._storage.create(f"{self._folder}/{name}", memoryview(sealed))
        self._name, self._earlier_left = f"{self._folder}/{name}", True

    def _check_own(self, name: str) -> None:
        """A copy that we do not remember is of these keys all the same where the root says so and
        nothing was remembered yet: an earlier release made it."""
        if name != self._foreign:
            remembers = self._file.exists()
            if not remembers and self._slots.is_own(self._storage.get(f"{self._folder}/{name}")):
                return
            self._foreign = name
        raise CopyRefusedError(
            f"the copy of key slots in Storage, {self._folder}/{name}, is not of the keys here or "
            "newer than they are: it stays as it is, and the keys here are not copied",
            hint="To have its keys: stop the deployment, move its key folder away, run "
            "`kvrun keys fetch`, start. To do without them for good: delete that object.",
        )

    def _remove_earlier(self) -> None:
        try:
            for earlier in copies(self._storage, self._folder):
                if earlier < self._name:
                    self._storage.delete(earlier)
        except StorageError as error:
            self._remove_not_before = self._now() + _LONGEST_RETRY_S
            _log.warning("earlier copies of the key slots stay in Storage: %s", error.message)
            return
        self._earlier_left = False

    def _look(self) -> None:
        try:
            self.copy()
        except Exception:
            _log.exception("the key slots were not copied to Storage")

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            self._look()


def copies(storage: Storage, folder: str) -> list[str]:
    """The names of the copies in Storage, oldest first. Raises StorageError."""
    return sorted(item.name for item in storage.list(folder) if item.name.endswith(_SUFFIX))


def fetch_slots(
    storage: Storage, folder: str, keys: Path, root: Root, workspace: str, deployment: str
) -> str:
    """Brings the newest copy that this root opens into the key folder; its name.

    Raises KeysError where there is none, or where the folder holds keys already.
    """
    path = keys / SLOTS_NAME
    if path.exists():
        raise KeysError(
            f"{path} is there already",
            hint="Only an empty key folder is filled: what is in it may be newer than the copy. "
            "Where it is not, stop the deployment and move the folder away.",
        )
    for name in reversed(copies(storage, folder)):
        try:
            slots = open_copy(storage.get(name), root, workspace, deployment)
        except (SlotFileError, WrapError) as error:
            _log.warning("%s was passed over: %s", name, error.message)
            continue
        private_folder(keys, purpose="key")
        replace_private_file(path, slots)
        remember_copy(keys / COPIED_NAME, file_id_of(slots), _base(name))
        return name
    raise KeysError(
        f"no copy of key slots in {storage.where}/{folder} opens under this root",
        hint="Give the root that the deployment had; without it every block in Storage is lost.",
    )


def remember_copy(file: Path, file_id: bytes, name: str) -> None:
    """Note the copy that is made next of the slot file with this id. Raises OSError."""
    replace_private_file(file, f"{file_id.hex()} {name}\n".encode())


def recall_copy(file: Path, file_id: bytes) -> str:
    """The name of the last copy of the slot file with this id, "" where none is known.

    Raises OSError.
    """
    try:
        whose, _, name = file.read_text(errors="replace").strip().partition(" ")
    except FileNotFoundError:
        return ""
    return name if whose == file_id.hex() and _stamp(name) else ""


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _stamp(name: str) -> int:
    """The time in a copy's name without its folder; 0 for a name of another form."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None else 0
