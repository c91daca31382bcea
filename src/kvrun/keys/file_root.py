"""A root in a folder of its own: survives restarts, and can forget where the filesystem lets it.

Whoever reads the folder can open every key under it. It belongs outside the data folder and
outside every backup: a restored copy brings destroyed keys back. Format:
``docs/spec/key-slots.md``.
"""

import struct
from pathlib import Path

from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import (
    EpochGoneError,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    WrapError,
)
from kvrun.keys.filesystem import filesystem_facts
from kvrun.keys.folder import FolderLock, private_folder
from kvrun.keys.held_root import HeldRoot
from kvrun.keys.locked import LockedBuffer
from kvrun.keys.markers import mark_do_not_back_up
from kvrun.keys.root import KEY_BYTES, EpochEvidence, RootFacts
from kvrun.keys.slots import HALF_BYTES, OS_IO, SlotFile, SlotIO
from kvrun.keys.wrap import KeyWrapper
from kvrun.keys.wrap import context as wrap_context

SLOTS_NAME = "root.slots"


class FileRoot(HeldRoot[int]):
    """The root key and the epoch keys of one key service, in ``folder``.

    A missing or empty folder becomes a new root when ``create`` is true.
    ``snapshot_retention_days``: for how long copies of the folder are kept, where they are. Raises
    RootError, FolderBusyError or FolderPermissionError.
    """

    def __init__(
        self,
        folder: Path,
        *,
        create: bool = True,
        strict: bool = False,
        snapshot_retention_days: int | None = None,
        random_into: RandomInto = getrandom,
        io: SlotIO = OS_IO,
    ) -> None:
        self._folder: Path = folder
        if not create and not (folder / SLOTS_NAME).exists():
            raise RootError(f"There is no key root in {folder}")
        private_folder(folder, purpose="key root")
        self._lock = FolderLock(folder, purpose="key root")
        self._buffer = LockedBuffer(HALF_BYTES + 4 * KEY_BYTES + 16, strict=strict)
        view = self._buffer.view[HALF_BYTES:]
        super().__init__(view[:KEY_BYTES], random_into)
        self._spare, self._earlier = (
            view[KEY_BYTES : 2 * KEY_BYTES],
            view[2 * KEY_BYTES :][:KEY_BYTES],
        )
        self._body = view[3 * KEY_BYTES :]
        self._root_slot = -1
        self._earlier_slot = -1
        try:
            self._slots = SlotFile(
                folder / SLOTS_NAME, grow_by=4, scratch=self._buffer.view[:HALF_BYTES], io=io
            )
            root_id = self._load()
            found = (folder / SLOTS_NAME).stat()
            mark_do_not_back_up(folder)
        except BaseException:
            self._buffer.close()
            self._lock.close()
            raise
        self._identity = (found.st_dev, found.st_ino)
        disk = filesystem_facts(folder)
        self._facts = RootFacts(
            "file", root_id, True, disk.claim, disk.reason, snapshot_retention_days
        )

    def create_epoch(self, epoch: int) -> None:
        """See :meth:`Root.create_epoch`."""
        with self._busy:
            self._require_next(epoch)
            slot = self._slots.take_free()
            self._random_into(self._spare)
            try:
                self._write_epoch(epoch, slot)
            finally:
                self._spare[:] = bytes(KEY_BYTES)
            self._slots.sync()
            self._epochs[epoch] = slot

    def load_epoch(self, epoch: int, out: memoryview) -> None:
        """See :meth:`Root.load_epoch`."""
        with self._busy:
            record = self._slots.read(self._place_of(epoch))
            if record is None:
                raise EpochGoneError(f"Epoch {epoch} has vanished from {self._folder}")
            wrapped = bytes(record.body[_EPOCH.size :])
            try:
                self.unwrap_into(self._epoch_context(epoch), wrapped, out)
            except WrapError as error:
                raise RootError(f"Epoch {epoch} in {self._folder} does not open: {error}") from None

    def destroy_epoch(self, epoch: int) -> EpochEvidence:
        """Overwrite the epoch key; EpochGoneError when there is none."""
        with self._busy:
            way = self._slots.erase([self._place_of(epoch)])
            del self._epochs[epoch]
            method = f"slot overwritten in place, fdatasync, read back {way.value}"
            return EpochEvidence("file", epoch, self._facts.claim, method)

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :meth:`Root.unwrap_into`; the key before opens too while it is being replaced."""
        with self._busy:
            try:
                self._wrapper().unwrap_into(context, wrapped, out)
            except WrapError:
                if not self.rotating:
                    raise
                KeyWrapper(self._earlier, self._random_into).unwrap_into(context, wrapped, out)

    @property
    def rotating(self) -> bool:
        """See :attr:`RotatableRoot.rotating`."""
        return self._earlier_slot >= 0

    def begin_rotation(self) -> None:
        """See :meth:`RotatableRoot.begin_rotation`."""
        with self._busy:
            if self.rotating:
                return
            self._earlier[:] = self._key
            earlier_slot = self._root_slot
            try:
                self._write_root_key(self._facts.root_id)
            except BaseException:
                self._key[:] = self._earlier
                raise
            self._earlier_slot = earlier_slot

    def finish_rotation(self) -> None:
        """See :meth:`RotatableRoot.finish_rotation`."""
        with self._busy:
            if not self.rotating:
                return
            for epoch, slot in self._epochs.items():
                self.load_epoch(epoch, self._spare)
                try:
                    self._write_epoch(epoch, slot)
                finally:
                    self._spare[:] = bytes(KEY_BYTES)
            self._slots.sync()
            self._slots.erase([self._earlier_slot])
            self._earlier[:] = bytes(KEY_BYTES)
            self._earlier_slot = -1

    def check(self) -> None:
        """See :meth:`Root.check`: the folder must still be there, and be this one."""
        path = self._folder / SLOTS_NAME
        try:
            found = path.stat()
        except FileNotFoundError:
            raise RootRevokedError(f"The key root {path} was taken away") from None
        except OSError as error:
            raise RootUnavailableError(
                f"The key root {path} cannot be read: {error.strerror}"
            ) from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise RootRevokedError(f"The key root {path} was replaced by another file")

    def close(self) -> None:
        """Zero what is in memory and let the files go."""
        self._slots.close()
        for view in (self._key, self._spare, self._earlier, self._body):
            view.release()
        self._buffer.close()
        self._lock.close()

    def _load(self) -> bytes:
        root_id, newest = b"", 0
        for slot, record in self._slots.records():
            if record.kind == _KIND_ROOT and len(record.body) == 16 + KEY_BYTES:
                if root_id:  # a rotation was cut short: two keys, of which the later one wraps
                    later = record.sequence > newest
                    self._earlier[:] = self._key if later else record.body[16:]
                    self._earlier_slot = self._root_slot if later else slot
                    if not later:
                        continue
                root_id, newest, self._root_slot = bytes(record.body[:16]), record.sequence, slot
                self._key[:] = record.body[16:]
            elif record.kind == _KIND_EPOCH:
                self._epochs[_EPOCH.unpack_from(record.body)[0]] = slot
        self._slots.scrub_torn()
        if not root_id:
            if self._epochs:
                raise RootError(f"{self._folder} holds epoch keys but its root key is damaged")
            fresh = bytearray(16)
            self._random_into(memoryview(fresh))
            root_id = bytes(fresh)
            self._write_root_key(root_id)
        self._buffer.view[:HALF_BYTES] = bytes(HALF_BYTES)
        return root_id

    def _write_root_key(self, root_id: bytes) -> None:
        """Put a random root key in the place of the present one, into a slot of its own."""
        slot = self._slots.take_free()
        self._random_into(self._key)
        self._body[:16] = root_id
        self._body[16:] = self._key
        try:
            self._slots.write(slot, _KIND_ROOT, self._body)
            self._slots.sync()
        finally:
            self._body[:] = bytes(len(self._body))
        self._root_slot = slot
        self._buffer.view[:HALF_BYTES] = bytes(HALF_BYTES)

    def _write_epoch(self, epoch: int, slot: int) -> None:
        wrapped = self._wrapper().wrap(self._epoch_context(epoch), self._spare)
        self._slots.write(slot, _KIND_EPOCH, _EPOCH.pack(epoch) + wrapped)

    def _epoch_context(self, epoch: int) -> bytes:
        return wrap_context(b"epoch", _EPOCH.pack(epoch))


_KIND_ROOT = 16
_KIND_EPOCH = 17
_EPOCH = struct.Struct(">Q")
