"""A copy of a session's wrapped keys, kept to prove that it opens no more.

It is what a backup holds of one session: its record, its tenant's, and the tables of their slots'
keys. Erasure makes such copies worthless, so keeping one until that is shown gives nothing away
that a backup does not.
"""

import base64
import contextlib
from collections.abc import Iterator

import msgspec

from kvrun.keys.errors import RootError, SlotFileError, WrapError
from kvrun.keys.keyring import Keyring
from kvrun.keys.records import KEY_BYTES, KeyHeader, RecordKind, split_key_record
from kvrun.keys.ring_entries import SessionEntry
from kvrun.keys.ring_store import FIRST_TABLE_SLOT, TABLE_SLOTS
from kvrun.keys.slots import SlotFile
from kvrun.keys.wrap import OVERHEAD_BYTES, KeyWrapper


class WrappedCopy(msgspec.Struct, frozen=True, array_like=True):
    """The number of a slot, or of a table, and its record's body in base64."""

    slot: int
    body: str


class KeyCanary(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one session's key, as they stood on disk; ``key_id`` in hex."""

    key_id: str
    session: WrappedCopy
    tenant: WrappedCopy
    tables: list[WrappedCopy]


def take_canary(ring: Keyring, entry: SessionEntry) -> KeyCanary | None:
    """A copy of what stands on disk; None where the slots cannot be read."""

    def copy(file: SlotFile, slot: int, number: int) -> WrappedCopy:
        record = file.read(slot)
        if record is None:
            raise SlotFileError(f"slot {slot} is empty")
        return WrappedCopy(number, base64.b64encode(bytes(record.body)).decode())

    slots, upper, tenant = ring.store.slots, ring.store.upper, entry.tenant.slot
    tables = {slot // TABLE_SLOTS for slot in (entry.slot, tenant)}
    try:
        return KeyCanary(
            key_id=entry.key_id.hex(),
            session=copy(slots, entry.slot, entry.slot),
            tenant=copy(slots, tenant, tenant),
            tables=[copy(upper, FIRST_TABLE_SLOT + number, number) for number in tables],
        )
    except (SlotFileError, OSError):
        return None


def canary_opens(ring: Keyring, canary: KeyCanary) -> bool:
    """Whether the copy opens with any key that is left.

    Tried are the slots' keys as they are now and, under every epoch key of the root, the copies of
    them; below them the tenant's key as it is now and as it was.
    """
    store = ring.store
    try:
        for inner in _outer(ring, canary, canary.session, RecordKind.SESSION_KEYS):
            for parent in _tenant_wrappers(ring, canary):
                if _opens(ring, canary.session, RecordKind.SESSION_KEYS, parent, inner):
                    return True
    finally:
        store.wipe_scratch()
    return False


def _tenant_wrappers(ring: Keyring, canary: KeyCanary) -> Iterator[KeyWrapper]:
    """The inner wrap under each tenant key that opens."""
    store = ring.store
    tenant_id = KeyHeader.unpack(_record(canary.tenant)[0]).key_id
    for entry in ring.tenants():
        if entry.key_id == tenant_id:
            try:
                ring.slot_keys.read_tenant(entry)
            except (WrapError, SlotFileError, OSError):
                continue
            yield ring.slot_keys.tenant_wrapper(entry)
    for inner in _outer(ring, canary, canary.tenant, RecordKind.TENANT_KEY):
        if _opens(ring, canary.tenant, RecordKind.TENANT_KEY, ring.slot_keys.top_wrapper(), inner):
            yield store.deriver.record_wrapper(store.tenant_payload[:KEY_BYTES], tenant_id)


def _outer(
    ring: Keyring, canary: KeyCanary, copy: WrappedCopy, kind: RecordKind
) -> Iterator[bytes]:
    """What stands below the outer wrap, for each slot key that opens it."""
    header, wrapped = _record(copy)
    inner = bytearray(len(wrapped) - OVERHEAD_BYTES)
    for wrapper in _slot_wrappers(ring, canary, copy.slot):
        try:
            wrapper.unwrap_into(ring.store.ring.aad(kind, header), wrapped, memoryview(inner))
        except WrapError:
            continue
        yield bytes(inner)


def _opens(
    ring: Keyring, copy: WrappedCopy, kind: RecordKind, parent: KeyWrapper, inner: bytes
) -> bool:
    """Whether the inner wrap opens; the key is in the ring's scratch memory then."""
    store = ring.store
    out = store.session_payload if kind is RecordKind.SESSION_KEYS else store.tenant_payload
    try:
        parent.unwrap_into(store.ring.inner_aad(kind, _record(copy)[0]), inner, out)
    except WrapError:
        return False
    return True


def _slot_wrappers(ring: Keyring, canary: KeyCanary, slot: int) -> Iterator[KeyWrapper]:
    """The outer wrap under every key that the slot has or had."""
    store = ring.store
    with contextlib.suppress(WrapError, SlotFileError, OSError):
        yield ring.slot_keys.wrapper(slot)
    for copy in canary.tables:
        if copy.slot != slot // TABLE_SLOTS:
            continue
        header, wrapped = _record(copy)
        for number in store.root.epochs():
            store.table_number = -1
            try:
                aad = store.ring.aad(RecordKind.SLOT_KEYS, header)
                store.epoch(number).wrapper.unwrap_into(aad, wrapped, store.table)
            except (WrapError, RootError):
                continue
            yield KeyWrapper(ring.slot_keys.key_in_scratch(slot), store.random_into)


def _record(copy: WrappedCopy) -> tuple[bytes, bytes]:
    header, wrapped = split_key_record(memoryview(base64.b64decode(copy.body)))
    return bytes(header), bytes(wrapped)
