"""Epoch rotation: a new epoch key, everything that survives wrapped under it, the old one gone.

Linear in the number of survivors, with one sync for all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvrun.keys.errors import SlotFileError, WrapError
from kvrun.keys.records import KEY_BYTES, RecordKind, get_name
from kvrun.keys.ring_entries import (
    SessionEntry,
    TenantEntry,
    session_header,
    tenant_header,
)
from kvrun.keys.ring_store import EpochKeys, RingStore
from kvrun.keys.root import EpochEvidence
from kvrun.keys.wrap import KeyWrapper


@dataclass(frozen=True, slots=True)
class Rotation:
    """The outcome: the new epoch, the index by the new epoch's tags, and the evidence."""

    epoch: EpochKeys
    tenants: dict[bytes, TenantEntry]
    evidence: EpochEvidence
    lost_slots: int


def rotate(store: RingStore, old: EpochKeys, tenants: Mapping[bytes, TenantEntry]) -> Rotation:
    """Move every entry of ``tenants`` to the epoch after ``old`` and destroy ``old``.

    Resumes a rotation that a crash cut short: entries that are already at the new epoch stay.
    A record that does not open is removed: it could never be opened again.
    """
    number = old.epoch + 1
    if number not in store.root.epochs():
        store.root.create_epoch(number)
    new = store.epoch(number)
    try:
        mover = _Mover(store, old, new)
        moved: dict[bytes, TenantEntry] = {}
        for tenant in tenants.values():
            if mover.move_tenant(tenant):
                moved[tenant.tag] = tenant
        store.slots.sync()
        if mover.lost:
            store.slots.erase(mover.lost)
        evidence = store.root.destroy_epoch(old.epoch)
    except BaseException:
        new.close()
        raise
    finally:
        store.wipe_payloads()
    old.close()
    return Rotation(new, moved, evidence, len(mover.lost))


class _Mover:
    def __init__(self, store: RingStore, old: EpochKeys, new: EpochKeys) -> None:
        self._store = store
        self._epochs = {old.epoch: old, new.epoch: new}
        self._new = new
        self._tenant_wrappers = {e.epoch: e.tenant_wrapper() for e in (old, new)}
        self.lost: list[int] = []

    def move_tenant(self, tenant: TenantEntry) -> bool:
        """Move a tenant key and its sessions; False when the tenant key does not open."""
        store, new = self._store, self._new
        payload = store.tenant_payload
        try:
            wrapper = self._tenant_wrappers[tenant.epoch]
            store.read(tenant.slot, RecordKind.TENANT_KEY, wrapper, payload)
        except (WrapError, SlotFileError):
            self.lost += [tenant.slot, *(entry.slot for entry in tenant.sessions.values())]
            return False
        name = get_name(payload[KEY_BYTES:])
        if tenant.epoch != new.epoch:
            tenant.tag = new.tags.tenant_tag(name)
            header = tenant_header(tenant, store.deployment_id, tenant.tag, new.epoch)
            target = self._tenant_wrappers[new.epoch]
            store.write(tenant.slot, RecordKind.TENANT_KEY, header, target, payload)
            tenant.epoch = new.epoch
        wrappers = {
            number: keys.session_wrapper(payload[:KEY_BYTES], tenant.key_id)
            for number, keys in self._epochs.items()
        }
        moved: dict[bytes, SessionEntry] = {}
        for entry in tenant.sessions.values():
            if self._move_session(entry, name, wrappers):
                moved[entry.tag] = entry
        tenant.sessions = moved
        return True

    def _move_session(
        self, entry: SessionEntry, tenant_name: str, wrappers: Mapping[int, KeyWrapper]
    ) -> bool:
        if entry.epoch == self._new.epoch:
            return True
        store, epoch = self._store, self._new.epoch
        payload = store.session_payload
        try:
            store.read(entry.slot, RecordKind.SESSION_KEYS, wrappers[entry.epoch], payload)
        except (WrapError, SlotFileError):
            self.lost.append(entry.slot)
            return False
        entry.tag = self._new.tags.session_tag(tenant_name, get_name(payload[3 * KEY_BYTES :]))
        header = session_header(entry, entry.tag, epoch)
        store.write(entry.slot, RecordKind.SESSION_KEYS, header, wrappers[epoch], payload)
        entry.epoch = epoch
        entry.used_on_disk = entry.used
        return True
