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
    KeyringState,
    Mark,
    RecordKind,
    split_key_record,
)
from kvrun.keys.root import Root, RotatableRoot
from kvrun.keys.slots import SlotFile, SlotIO
from kvrun.keys.wrap import KeyWrapper

UPPER_NAME = "upper.slots"
TABLE_SLOTS = 128
"""The keys of so many neighbouring slots are one table."""
TABLE_BYTES = TABLE_SLOTS * (8 + KEY_BYTES)
STATE_SLOT, WORKSPACE_SLOT, DEPLOYMENT_SLOT, MARK_SLOT, FIRST_TABLE_SLOT = range(5)
"""What is where in the file of upper keys; table ``n`` is ``n`` slots after the first."""
UPPER_HALF_BYTES = 5632


class EpochKeys:
    """One live epoch: its key in locked memory and the wrapper of tables under it."""

    def __init__(self, store: "RingStore", epoch: int) -> None:
        self.epoch = epoch
        self._secret = store.arena.take()
        try:
            store.root.load_epoch(epoch, self._secret.view)
        except BaseException:
            self._secret.wipe()
            raise
        self._wrapper: KeyWrapper | None = store.deriver.table_wrapper(
            self._secret.view, epoch, store.deployment_key, store.deployment_id
        )

    @property
    def wrapper(self) -> KeyWrapper:
        """Wraps and unwraps tables of slot keys. Raises EpochGoneError after ``close``."""
        if self._wrapper is None:
            raise EpochGoneError(f"The key of epoch {self.epoch} was let go")
        return self._wrapper

    def close(self) -> None:
        """Zero the epoch's keys."""
        self._secret.wipe()
        self._wrapper = None  # its key schedule is cleansed with it


class RingStore:
    """The slot files, the root and the upper keys of one ring. Not thread-safe.

    ``slots`` holds tenants and sessions; ``upper``, beside the root where that has a folder, what
    they stand on. ``tenant_payload``, ``session_payload`` and ``table``, which holds the slot keys
    of table ``table_number`` (-1: of none), are locked scratch views; a caller zeroes them with
    ``wipe_scratch`` when it is done.
    """

    def __init__(
        self, path: Path, root: Root, *, strict: bool, random_into: RandomInto, io: SlotIO
    ) -> None:
        self.root = root
        self.random_into = random_into
        self.arena = SecretArena(strict=strict)
        self._buffer = LockedBuffer(1024 + TABLE_BYTES, strict=strict)
        view = self._buffer.view
        self._derive_scratch = view[: 3 * KEY_BYTES]
        self.tenant_payload = view[128 : 128 + TENANT_PAYLOAD_BYTES]
        self.session_payload = view[320 : 320 + SESSION_PAYLOAD_BYTES]
        self.table, self.table_number = view[1024 : 1024 + TABLE_BYTES], -1
        self._deployment: Secret = self.arena.take()
        self.deployment_id = bytes(ID_BYTES)
        self._live: dict[int, EpochKeys] = {}
        index_key = self.arena.take()
        random_into(index_key.view)
        self.tags = TagIndex(index_key.view)
        index_key.wipe()
        self.use_ring(bytes(ID_BYTES), "", "")
        upper = (root.folder or path.parent) / UPPER_NAME
        try:
            self.slots = SlotFile(path, io=io)
            try:
                self.upper = SlotFile(upper, half_bytes=UPPER_HALF_BYTES, grow_by=4, io=io)
            except BaseException:
                self.slots.close()
                raise
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
        self,
        file: SlotFile,
        slot: int,
        kind: RecordKind,
        header: KeyHeader,
        wrap: KeyWrapper,
        payload: memoryview,
    ) -> None:
        """Wrap ``payload`` and put the record into a file's slot; no sync."""
        packed = header.pack()
        wrapped = wrap.wrap(self.ring.aad(kind, packed), payload)
        file.write(slot, kind, packed + wrapped)

    def read(
        self, file: SlotFile, slot: int, kind: RecordKind, wrap: KeyWrapper, out: memoryview
    ) -> bytes:
        """Unwrap a slot's record into ``out`` and give its packed header.

        Raises WrapError or SlotFileError when it does not open.
        """
        record = file.read(slot)
        if record is None or record.kind != kind:
            raise SlotFileError(f"Slot {slot} of {file.path} holds no {kind.name}")
        header, wrapped = split_key_record(record.body)
        wrap.unwrap_into(self.ring.aad(kind, header), wrapped, out)
        return header

    def write_state(self, state: KeyringState, state_slot: int) -> None:
        """Write the state to both files; no sync."""
        packed = state.pack()
        self.upper.reserve(STATE_SLOT)
        self.upper.write(STATE_SLOT, RecordKind.STATE, packed)
        self.slots.write(state_slot, RecordKind.STATE, packed)

    def write_mark(self) -> None:
        """Note beside the root how far the key file is: an older copy ends before it; no sync."""
        mark = Mark(self.slots.file_id, self.slots.sequence)
        self.upper.reserve(MARK_SLOT)
        self.upper.write(MARK_SLOT, RecordKind.MARK, mark.pack())

    def settle_mark(self, found: Mark | None) -> None:
        """Have a durable mark that nothing in the key file is beyond; ``found`` is today's.

        The key file is synced before, so that no power cut leaves it behind its mark.
        """
        if found is None or found.sequence < self.slots.sequence:
            self.slots.sync()
            self.write_mark()
            self.upper.sync()

    def create_upper_keys(self, now_us: int) -> None:
        """Make random workspace and deployment keys and write them; durable."""
        self.upper.reserve(DEPLOYMENT_SLOT)
        workspace = self.arena.take()
        try:
            self.random_into(workspace.view)
            self.random_into(self._deployment.view)
            top = self._fresh_header(self.root.facts.root_id, now_us)
            wrapped = self.root.wrap(
                self.ring.aad(RecordKind.WORKSPACE_KEY, top.pack()), workspace.view
            )
            self.upper.write(WORKSPACE_SLOT, RecordKind.WORKSPACE_KEY, top.pack() + wrapped)
            header = self._fresh_header(top.key_id, now_us)
            wrapper = KeyWrapper(workspace.view, self.random_into)
            key, kind = self._deployment.view, RecordKind.DEPLOYMENT_KEY
            self.write(self.upper, DEPLOYMENT_SLOT, kind, header, wrapper, key)
            self.upper.sync()
            self.deployment_id = header.key_id
        finally:
            workspace.wipe()

    def load_upper_keys(self) -> None:
        """Open the workspace key by the root and the deployment key by it."""
        header, wrapped = self._workspace_record()
        workspace = self.arena.take()
        try:
            self.root.unwrap_into(
                self.ring.aad(RecordKind.WORKSPACE_KEY, header), wrapped, workspace.view
            )
            wrapper = KeyWrapper(workspace.view, self.random_into)
            key, kind = self._deployment.view, RecordKind.DEPLOYMENT_KEY
            found = self.read(self.upper, DEPLOYMENT_SLOT, kind, wrapper, key)
            self.deployment_id = KeyHeader.unpack(found).key_id
        except WrapError:
            raise WrongRootError(
                f"The root key does not open the keys in {self.upper.path}",
                hint="The root's id fits but its key does not, or the file was changed.",
            ) from None
        finally:
            workspace.wipe()

    def finish_root_rotation(self, root: RotatableRoot) -> None:
        """Wrap the workspace key under a root's new key and let the earlier one be destroyed."""
        header, wrapped = self._workspace_record()
        context = self.ring.aad(RecordKind.WORKSPACE_KEY, header)
        workspace = self.arena.take()
        try:
            root.unwrap_into(context, wrapped, workspace.view)
            again = root.wrap(context, workspace.view)
        finally:
            workspace.wipe()
        self.upper.write(WORKSPACE_SLOT, RecordKind.WORKSPACE_KEY, header + again)
        self.upper.sync()
        root.finish_rotation()

    def put_away(self) -> None:
        """Zero every key in memory until ``take_up``."""
        self._deployment.view[:] = bytes(KEY_BYTES)
        for number in list(self._live):
            self.close_epoch(number)
        self.wipe_scratch()

    def take_up(self) -> None:
        """Open the upper keys again. Raises KeysError when the root does not."""
        self.load_upper_keys()
        for number in self.root.epochs():
            self.epoch(number)

    def epoch(self, number: int) -> EpochKeys:
        """A live epoch's keys, kept until ``close_epoch``. Raises RootError."""
        found = self._live.get(number)
        if found is None:
            try:
                found = self._live[number] = EpochKeys(self, number)
            except WrapError as error:
                raise RootError(f"Epoch {number} does not open: {error}") from None
        return found

    def close_epoch(self, number: int) -> None:
        """Zero an epoch's keys in memory."""
        found = self._live.pop(number, None)
        if found is not None:
            found.close()

    def wipe_scratch(self) -> None:
        """Zero the buffers through which keys in slots pass."""
        self.table_number = -1
        self.table[:] = bytes(TABLE_BYTES)
        self.tenant_payload[:] = bytes(TENANT_PAYLOAD_BYTES)
        self.session_payload[:] = bytes(SESSION_PAYLOAD_BYTES)

    def close(self) -> None:
        """Zero all keys in memory and close the files."""
        self.slots.close()
        self.upper.close()
        self._close_memory()

    def random_id(self) -> bytes:
        """A fresh random id, 16 bytes."""
        fresh = bytearray(ID_BYTES)
        self.random_into(memoryview(fresh))
        return bytes(fresh)

    def _workspace_record(self) -> tuple[bytes, bytes]:
        record = self.upper.read(WORKSPACE_SLOT)
        if record is None:
            raise SlotFileError(f"The workspace key in {self.upper.path} is missing")
        header, wrapped = split_key_record(record.body)
        return header, bytes(wrapped)

    def _fresh_header(self, parent_id: bytes, now_us: int) -> KeyHeader:
        return KeyHeader(self.random_id(), parent_id, 0, 0, now_us, now_us)

    def _close_memory(self) -> None:
        self._deployment.wipe()
        self.arena.close()
        self._buffer.close()
