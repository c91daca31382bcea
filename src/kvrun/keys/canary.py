"""A copy of a session's wrapped keys, kept to prove that it opens no more.

It is what a backup of the slot file holds of one session: its record, its tenant's, and those of
their groups. Erasure makes such copies worthless, so keeping one until that is shown gives nothing
away that a backup does not.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from kvrun.keys.errors import RootError, SlotFileError, WrapError
from kvrun.keys.keyring import Keyring
from kvrun.keys.records import KEY_BYTES, KeyHeader, RecordKind, split_key_record
from kvrun.keys.ring_entries import SessionEntry
from kvrun.keys.ring_groups import group_slot
from kvrun.keys.wrap import OVERHEAD_BYTES, KeyWrapper


class WrappedCopy(msgspec.Struct, frozen=True, array_like=True):
    """One slot's number and its record's body in base64."""

    slot: int
    body: str


class KeyCanary(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one session's key, as they stood on disk; ``key_id`` in hex."""

    key_id: str
    session: WrappedCopy
    tenant: WrappedCopy
    groups: list[WrappedCopy]


def take_canary(ring: Keyring, entry: SessionEntry) -> KeyCanary | None:
    """A copy of what stands on disk; None where the slots cannot be read."""

    def copy(slot: int) -> WrappedCopy:
        record = ring.store.slots.read(slot)
        if record is None:
            raise SlotFileError(f"slot {slot} is empty")
        return WrappedCopy(slot, base64.b64encode(bytes(record.body)).decode())

    tenant = entry.tenant.slot
    try:
        return KeyCanary(
            key_id=entry.key_id.hex(),
            session=copy(entry.slot),
            tenant=copy(tenant),
            groups=[copy(slot) for slot in {group_slot(entry.slot), group_slot(tenant)}],
        )
    except (SlotFileError, OSError):
        return None


def canary_opens(ring: Keyring, canary: KeyCanary) -> bool:
    """Whether the copy opens with any key that is left.

    Tried are group keys in memory and, under every epoch key of the root, the copies of group
    keys; below them the tenant's key as it is now and as it was.
    """
    store = ring.store
    try:
        for inner in _outer(ring, canary, canary.session, RecordKind.SESSION_KEYS):
            for parent in _tenant_wrappers(ring, canary):
                if _opens(ring, canary.session, RecordKind.SESSION_KEYS, parent, inner):
                    return True
    finally:
        store.wipe_payloads()
    return False


def _tenant_wrappers(ring: Keyring, canary: KeyCanary) -> Iterator[KeyWrapper]:
    """The inner wrap under each tenant key that opens."""
    store = ring.store
    tenant_id = KeyHeader.unpack(_record(canary.tenant)[0]).key_id
    for entry in ring.tenants():
        if entry.key_id == tenant_id:
            try:
                ring.groups.read_tenant(entry)
            except (WrapError, SlotFileError, OSError):
                continue
            yield ring.groups.tenant_wrapper(entry)
    for inner in _outer(ring, canary, canary.tenant, RecordKind.TENANT_KEY):
        parent = store.deriver.record_wrapper(store.deployment_key, store.deployment_id)
        if _opens(ring, canary.tenant, RecordKind.TENANT_KEY, parent, inner):
            yield store.deriver.record_wrapper(store.tenant_payload[:KEY_BYTES], tenant_id)


def _outer(
    ring: Keyring, canary: KeyCanary, copy: WrappedCopy, kind: RecordKind
) -> Iterator[bytes]:
    """What stands below the outer wrap, for each group key that opens it."""
    header, wrapped = _record(copy)
    inner = bytearray(len(wrapped) - OVERHEAD_BYTES)
    for key in _group_keys(ring, canary):
        try:
            wrapper = KeyWrapper(key, ring.store.random_into)
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


def _group_keys(ring: Keyring, canary: KeyCanary) -> Iterator[memoryview]:
    """Every group key that may have covered the copies."""
    store = ring.store
    for copy in canary.groups:
        living = ring.groups.get(copy.slot)
        if living is not None:
            for made_in in living.made_in_epochs:
                yield living.secret(made_in)
        header, wrapped = _record(copy)
        for number in store.root.epochs():
            with _unwrapped(ring, number, header, wrapped) as key:
                if key is not None:
                    yield key


@contextmanager
def _unwrapped(
    ring: Keyring, number: int, header: bytes, wrapped: bytes
) -> Iterator[memoryview | None]:
    store = ring.store
    secret = store.arena.take()
    try:
        epoch = store.epoch(number)
        try:
            epoch.wrapper.unwrap_into(
                store.ring.aad(RecordKind.GROUP_KEY, header), wrapped, secret.view
            )
        finally:
            epoch.close()
    except (WrapError, RootError):
        yield None
    else:
        yield secret.view
    finally:
        secret.wipe()


def _record(copy: WrappedCopy) -> tuple[bytes, bytes]:
    header, wrapped = split_key_record(memoryview(base64.b64decode(copy.body)))
    return bytes(header), bytes(wrapped)
