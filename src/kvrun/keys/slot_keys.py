"""Slot keys: what stands between the epoch key and each record of tenants and sessions.

Every slot of the key file has a random key of its own. 128 of them are a table, wrapped under the
epoch key, in the file of upper keys beside the root. Destroying a record replaces its slot's key
and wraps every table again under a new epoch key: no other record has to be touched, and any
older copy of the key file still opens what lives, and nothing else.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from kvrun.keys.errors import SlotFileError, WrapError
from kvrun.keys.records import (
    KEY_BYTES,
    KeyHeader,
    RecordKind,
    key_header,
    split_key_record,
)
from kvrun.keys.ring_entries import SessionEntry, TenantEntry, microseconds
from kvrun.keys.ring_store import FIRST_TABLE_SLOT, TABLE_SLOTS, EpochKeys, RingStore
from kvrun.keys.wrap import OVERHEAD_BYTES, KeyWrapper


class SlotKeys:
    """The tables of one ring, and the records under them. Not thread-safe.

    One table at a time is in the clear, in the store's locked scratch, until that is wiped.
    """

    def __init__(self, store: RingStore) -> None:
        self._store = store
        self._tables: dict[int, KeyHeader] = {}

    def covers(self, slot: int) -> bool:
        """Whether the slot has a key."""
        return slot // TABLE_SLOTS in self._tables

    def slots(self) -> Iterator[int]:
        """Every slot that has a key."""
        for number in self._tables:
            yield from range(number * TABLE_SLOTS, (number + 1) * TABLE_SLOTS)

    def add(self, number: int, header: KeyHeader) -> None:
        """Take up a table that stands in the file.

        Raises WrapError or SlotFileError when it does not open.
        """
        self._tables[number] = header
        try:
            self._open(number)
        except (WrapError, SlotFileError):
            del self._tables[number]
            raise

    def reserve(self, slot: int) -> None:
        """Have room for the table of a slot. Raises OSError."""
        self._store.upper.reserve(_place(slot // TABLE_SLOTS))

    def ensure(self, slot: int, epoch: EpochKeys, now_us: int) -> None:
        """Make the table of a slot where there is none yet, in its reserved room; durable."""
        number, store = slot // TABLE_SLOTS, self._store
        if number in self._tables:
            return
        store.table_number = -1
        store.random_into(store.table)
        for one in range(number * TABLE_SLOTS, (number + 1) * TABLE_SLOTS):
            self._made_in(one)[:] = epoch.epoch.to_bytes(_NUMBER_BYTES, "big")
        header = KeyHeader(store.random_id(), store.deployment_id, number, 0, now_us, now_us)
        self._write(number, header, epoch)
        store.upper.sync()

    def made_in(self, slot: int) -> int:
        """The epoch in which the slot's key was made; records name it. Raises as ``wrapper``."""
        self._open(slot // TABLE_SLOTS)
        return int.from_bytes(self._made_in(slot), "big")

    def wrapper(self, slot: int) -> KeyWrapper:
        """The outer wrap of a slot's record.

        Raises WrapError or SlotFileError where its table does not open.
        """
        self._open(slot // TABLE_SLOTS)
        return KeyWrapper(self.key_in_scratch(slot), self._store.random_into)

    def key_in_scratch(self, slot: int) -> memoryview:
        """Where a slot's key is while its table is in the store's scratch."""
        at = slot % TABLE_SLOTS * _ENTRY_BYTES + _NUMBER_BYTES
        return self._store.table[at : at + KEY_BYTES]

    def move(self, new: EpochKeys, destroyed: Collection[int]) -> None:
        """Wrap every table under ``new``, with new keys for the ``destroyed`` slots; no sync.

        What is there already, after a crash or a root that did not answer, stays.
        """
        doomed: dict[int, list[int]] = {}
        for slot in destroyed:
            doomed.setdefault(slot // TABLE_SLOTS, []).append(slot)
        for number, header in list(self._tables.items()):
            mine = doomed.get(number, [])
            if header.epoch == new.epoch and not mine:
                continue
            old = [slot for slot in mine if self.made_in(slot) != new.epoch]
            if header.epoch == new.epoch and not old:
                continue
            self._open(number)
            self._store.table_number = -1
            for slot in old:
                self._made_in(slot)[:] = new.epoch.to_bytes(_NUMBER_BYTES, "big")
                self._store.random_into(self.key_in_scratch(slot))
            self._write(number, header, new)

    def write_record(
        self,
        slot: int,
        kind: RecordKind,
        header: KeyHeader,
        parent: KeyWrapper,
        payload: memoryview,
    ) -> None:
        """Wrap a payload under its parent's key and that under its slot's; no sync."""
        store = self._store
        inner = parent.wrap(store.ring.inner_aad(kind, header.pack()), payload)
        store.write(store.slots, slot, kind, header, self.wrapper(slot), memoryview(inner))

    def read_tenant(self, entry: TenantEntry) -> None:
        """Unwrap a tenant's key into the store's scratch.

        Raises WrapError or SlotFileError when it does not open.
        """
        self._read(
            entry.slot, RecordKind.TENANT_KEY, self.top_wrapper(), self._store.tenant_payload
        )

    def read_session(self, entry: SessionEntry, parent: KeyWrapper | None = None) -> None:
        """Unwrap a session's keys into the store's scratch, where its tenant's must be already.

        ``parent`` is ``tenant_wrapper``'s, for who reads several. Raises as ``read_tenant``.
        """
        parent = parent or self.tenant_wrapper(entry.tenant)
        self._read(entry.slot, RecordKind.SESSION_KEYS, parent, self._store.session_payload)

    def top_wrapper(self) -> KeyWrapper:
        """The inner wrap of tenants' keys."""
        store = self._store
        return store.deriver.record_wrapper(store.deployment_key, store.deployment_id)

    def tenant_wrapper(self, entry: TenantEntry) -> KeyWrapper:
        """The inner wrap of the tenant's sessions; its key must be in the store's scratch."""
        key = self._store.tenant_payload[:KEY_BYTES]
        return self._store.deriver.record_wrapper(key, entry.key_id)

    def outer(self, slot: int, kind: RecordKind, body: memoryview) -> bytes:
        """What stands below a record's outer wrap. Raises as ``wrapper``."""
        header, wrapped = split_key_record(body)
        inner = bytearray(len(wrapped) - OVERHEAD_BYTES)
        aad = self._store.ring.aad(kind, header)
        self.wrapper(slot).unwrap_into(aad, wrapped, memoryview(inner))
        return bytes(inner)

    def write_use(self, entry: SessionEntry) -> None:
        """Write a session's last use into its record; one that does not open stays; no sync.

        Only the outer wrap changes: no key of a tenant or session is in the clear.
        """
        store, kind = self._store, RecordKind.SESSION_KEYS
        try:
            body = memoryview(bytes(self._body(entry.slot, kind)))
            inner = memoryview(self.outer(entry.slot, kind, body))
        except (WrapError, SlotFileError):
            return
        header = key_header(body)
        fresh = replace(header, used_us=microseconds(entry.used))
        store.write(store.slots, entry.slot, kind, fresh, self.wrapper(entry.slot), inner)
        entry.used_on_disk = entry.used

    def _read(self, slot: int, kind: RecordKind, parent: KeyWrapper, out: memoryview) -> None:
        body = memoryview(bytes(self._body(slot, kind)))
        header, _ = split_key_record(body)
        parent.unwrap_into(
            self._store.ring.inner_aad(kind, header), self.outer(slot, kind, body), out
        )

    def _body(self, slot: int, kind: RecordKind) -> memoryview:
        record = self._store.slots.read(slot)
        if record is None or record.kind != kind:
            raise SlotFileError(f"Slot {slot} of {self._store.slots.path} holds no {kind.name}")
        return record.body

    def _open(self, number: int) -> None:
        """Have the table in the store's scratch."""
        store = self._store
        if store.table_number == number:
            return
        header = self._tables.get(number)
        if header is None:
            raise SlotFileError(f"The keys of the slots from {number * TABLE_SLOTS} are missing")
        store.table_number = -1
        wrapper = store.epoch(header.epoch).wrapper
        found = store.read(store.upper, _place(number), RecordKind.SLOT_KEYS, wrapper, store.table)
        if KeyHeader.unpack(found).generation != number:
            raise WrapError(f"Table {number} of slot keys holds another table")
        store.table_number = number

    def _write(self, number: int, header: KeyHeader, epoch: EpochKeys) -> None:
        """Wrap the table in the scratch under an epoch; no sync."""
        store, fresh = self._store, replace(header, epoch=epoch.epoch)
        kind = RecordKind.SLOT_KEYS
        store.write(store.upper, _place(number), kind, fresh, epoch.wrapper, store.table)
        self._tables[number] = fresh
        store.table_number = number

    def _made_in(self, slot: int) -> memoryview:
        at = slot % TABLE_SLOTS * _ENTRY_BYTES
        return self._store.table[at : at + _NUMBER_BYTES]


def _place(number: int) -> int:
    return FIRST_TABLE_SLOT + number


_NUMBER_BYTES = 8
_ENTRY_BYTES = _NUMBER_BYTES + KEY_BYTES
