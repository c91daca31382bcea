"""Key records in and out of slots, with every key in locked memory on the way.

:class:`RingStore` knows formats and wraps; :mod:`kvrun.keys.keyring` knows which records exist.
"""

from pathlib import Path

from kvrun.keys.entropy import RandomInto
from kvrun.keys.errors import (
    EpochGoneError,
    RootError,
    SlotFileError,
    WrapError,
    WrongRootError,
)
from kvrun.keys.hierarchy import Deriver, RingContext, TagIndex
from kvrun.keys.locked import LockedBuffer, Protection, Secret, SecretArena
from kvrun.keys.records import (
    ID_BYTES,
    KEY_BYTES,
    SESSION_PAYLOAD_BYTES,
    TENANT_PAYLOAD_BYTES,
    KeyHeader,
    RecordKind,
    split_key_record,
)
from kvrun.keys.root import Root, RotatableRoot
from kvrun.keys.slots import SlotFile, SlotIO
from kvrun.keys.wrap import KeyWrapper

GROUP_SLOTS = 128
"""A group of slots shares one key, which is in the first of them."""


class EpochKeys:
    """One live epoch: its key in locked memory and the wrapper of group keys under it."""

    def __init__(self, store: "RingStore", epoch: int) -> None:
        self.epoch = epoch
        self._secret = store.arena.take()
        store.root.load_epoch(epoch, self._secret.view)
        self._wrapper: KeyWrapper | None = store.deriver.group_wrapper(
            self._secret.view, epoch, store.deployment_key, store.deployment_id
        )

    @property
    def wrapper(self) -> KeyWrapper:
        """Wraps and unwraps group keys. Raises EpochGoneError after ``close``."""
        if self._wrapper is None:
            raise EpochGoneError(f"The key of epoch {self.epoch} was let go")
        return self._wrapper

    def close(self) -> None:
        """Zero the epoch's keys."""
        self._secret.wipe()
        self._wrapper = None  # its key schedule is cleansed with it


class RingStore:
    """The slot file, the root and the upper keys of one ring. Not thread-safe.

    ``tenant_payload`` and ``session_payload`` are locked scratch views; a caller zeroes them
    with ``wipe_payloads`` when it is done.
    """

    def __init__(
        self, path: Path, root: Root, *, strict: bool, random_into: RandomInto, io: SlotIO
    ) -> None:
        self.root = root
        self.random_into = random_into
        self.arena = SecretArena(strict=strict)
        self._buffer = LockedBuffer(1024, strict=strict)
        view = self._buffer.view
        self._derive_scratch = view[: 3 * KEY_BYTES]
        self.tenant_payload = view[128 : 128 + TENANT_PAYLOAD_BYTES]
        self.session_payload = view[320 : 320 + SESSION_PAYLOAD_BYTES]
        self._deployment: Secret = self.arena.take()
        self.deployment_id = bytes(ID_BYTES)
        self._upper_slots = (-1, -1)
        index_key = self.arena.take()
        random_into(index_key.view)
        self.tags = TagIndex(index_key.view)
        index_key.wipe()
        self.use_ring(bytes(ID_BYTES), "", "")
        try:
            self.slots = SlotFile(path, group_slots=GROUP_SLOTS, io=io)
        except BaseException:
            self._close_memory()
            raise

    @property
    def deployment_key(self) -> memoryview:
        """The deployment key, 32 bytes in locked memory."""
        return self._deployment.view

    @property
    def protection(self) -> Protection:
        """The weakest protection that any key in memory has."""
        order = list(Protection)
        return max(self.arena.protection, self._buffer.protection, key=order.index)

    def use_ring(self, keyring_id: bytes, workspace: str, deployment: str) -> None:
        """Whose ring this is, once the state record says it."""
        self.ring = RingContext(keyring_id, workspace, deployment)
        self.deriver = Deriver(keyring_id, self._derive_scratch, self.random_into)

    def write(
        self, slot: int, kind: RecordKind, header: KeyHeader, wrap: KeyWrapper, payload: memoryview
    ) -> None:
        """Wrap ``payload`` and put the record into the slot; no sync."""
        packed = header.pack()
        wrapped = wrap.wrap(self.ring.aad(kind, packed), payload)
        self.slots.write(slot, kind, packed + wrapped)

    def read(self, slot: int, kind: RecordKind, wrap: KeyWrapper, out: memoryview) -> bytes:
        """Unwrap the slot's record into ``out`` and give its packed header.

        Raises WrapError or SlotFileError when it does not open.
        """
        record = self.slots.read(slot)
        if record is None or record.kind != kind:
            raise SlotFileError(f"Slot {slot} of {self.slots.path} holds no {kind.name}")
        header, wrapped = split_key_record(record.body)
        wrap.unwrap_into(self.ring.aad(kind, header), wrapped, out)
        return header

    def create_upper_keys(self, workspace_slot: int, deployment_slot: int, now_us: int) -> None:
        """Make random workspace and deployment keys and write them; no sync."""
        workspace = self.arena.take()
        try:
            self.random_into(workspace.view)
            self.random_into(self._deployment.view)
            top = self._fresh_header(self.root.facts.root_id, now_us)
            wrapped = self.root.wrap(
                self.ring.aad(RecordKind.WORKSPACE_KEY, top.pack()), workspace.view
            )
            self.slots.write(workspace_slot, RecordKind.WORKSPACE_KEY, top.pack() + wrapped)
            header = self._fresh_header(top.key_id, now_us)
            wrapper = KeyWrapper(workspace.view, self.random_into)
            self.write(
                deployment_slot,
                RecordKind.DEPLOYMENT_KEY,
                header,
                wrapper,
                self._deployment.view,
            )
            self.deployment_id = header.key_id
            self._upper_slots = (workspace_slot, deployment_slot)
        finally:
            workspace.wipe()

    def load_upper_keys(self, workspace_slot: int, deployment_slot: int) -> None:
        """Open the workspace key by the root and the deployment key by it."""
        record = self.slots.read(workspace_slot)
        if record is None:
            raise SlotFileError(f"The workspace key in {self.slots.path} is missing")
        header, wrapped = split_key_record(record.body)
        workspace = self.arena.take()
        try:
            self.root.unwrap_into(
                self.ring.aad(RecordKind.WORKSPACE_KEY, header), bytes(wrapped), workspace.view
            )
            wrapper = KeyWrapper(workspace.view, self.random_into)
            found = self.read(
                deployment_slot, RecordKind.DEPLOYMENT_KEY, wrapper, self._deployment.view
            )
            self.deployment_id = KeyHeader.unpack(found).key_id
            self._upper_slots = (workspace_slot, deployment_slot)
        except WrapError:
            raise WrongRootError(
                f"The root key does not open the keys in {self.slots.path}",
                hint="The root's id fits but its key does not, or the file was changed.",
            ) from None
        finally:
            workspace.wipe()

    def finish_root_rotation(self, root: RotatableRoot) -> None:
        """Wrap the workspace key under a root's new key and let the earlier one be destroyed."""
        slot = self._upper_slots[0]
        record = self.slots.read(slot)
        if record is None:
            raise SlotFileError(f"The workspace key in {self.slots.path} is missing")
        header, wrapped = split_key_record(record.body)
        context = self.ring.aad(RecordKind.WORKSPACE_KEY, header)
        workspace = self.arena.take()
        try:
            root.unwrap_into(context, bytes(wrapped), workspace.view)
            again = root.wrap(context, workspace.view)
        finally:
            workspace.wipe()
        self.slots.write(slot, RecordKind.WORKSPACE_KEY, header + again)
        self.slots.sync()
        root.finish_rotation()

    def put_away(self) -> None:
        """Zero the deployment key until ``take_up``."""
        self._deployment.view[:] = bytes(KEY_BYTES)

    def take_up(self) -> None:
        """Open the upper keys again. Raises KeysError when the root does not."""
        self.load_upper_keys(*self._upper_slots)

    def epoch(self, number: int) -> EpochKeys:
        """A live epoch's keys; the caller closes them."""
        try:
            return EpochKeys(self, number)
        except WrapError as error:
            raise RootError(f"Epoch {number} does not open: {error}") from None

    def wipe_payloads(self) -> None:
        """Zero the buffers through which payloads of slots pass."""
        self.tenant_payload[:] = bytes(TENANT_PAYLOAD_BYTES)
        self.session_payload[:] = bytes(SESSION_PAYLOAD_BYTES)

    def close(self) -> None:
        """Zero all keys in memory and close the file."""
        self.slots.close()
        self._close_memory()

    def random_id(self) -> bytes:
        """A fresh random id, 16 bytes."""
        fresh = bytearray(ID_BYTES)
        self.random_into(memoryview(fresh))
        return bytes(fresh)

    def _fresh_header(self, parent_id: bytes, now_us: int) -> KeyHeader:
        return KeyHeader(self.random_id(), parent_id, 0, 0, now_us, now_us)

    def _close_memory(self) -> None:
        self._deployment.wipe()
        self.arena.close()
        self._buffer.close()
