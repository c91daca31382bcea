"""Epoch rotation: a new epoch key, everything that survives moved under it, the old one gone.

Every group key is wrapped under the new epoch key. Groups that lose a record get a new group key
with it, and their other records are wrapped again under that.
"""

from collections.abc import Collection
from dataclasses import dataclass

from kvrun.keys.ring_entries import SessionEntry, TenantEntry
from kvrun.keys.ring_groups import Group, GroupKeys
from kvrun.keys.ring_store import EpochKeys, RingStore
from kvrun.keys.root import EpochEvidence


@dataclass(frozen=True, slots=True)
class Rotation:
    """The outcome: the new epoch, the evidence, and entries that did not open any more."""

    epoch: EpochKeys
    evidence: EpochEvidence
    lost: list[TenantEntry | SessionEntry]


def rotate(
    store: RingStore, old: EpochKeys, groups: GroupKeys, renewed: Collection[int]
) -> Rotation:
    """Move every group to the epoch after ``old`` and destroy ``old``.

    The groups at the slots ``renewed`` get new keys. Resumes a rotation that a crash cut short, or
    a root that did not answer: what is already at the new epoch stays. A record that does not open
    is left where it is; it could never be opened again, and the next start removes it.
    """
    number = old.epoch + 1
    if number not in store.root.epochs():
        store.root.create_epoch(number)
    new = store.epoch(number)
    lost: list[TenantEntry | SessionEntry] = []
    try:
        for group in groups:
            if group.slot in renewed and group.made_in != number:
                groups.renew(group, number)
            if group.header.epoch != number:
                groups.write(group, new)
        # A record must never be under a group key that a crash could take away.
        store.slots.sync()
        moving = [group for group in groups if group.earlier is not None]
        for group in moving:
            lost += _move(groups, group)
        if moving:
            store.slots.sync()
        for group in moving:
            group.forget_earlier()
        evidence = _destroy_epoch(store, old.epoch)
    except BaseException:
        new.close()
        raise
    old.close()
    return Rotation(new, evidence, lost)


def _destroy_epoch(store: RingStore, epoch: int) -> EpochEvidence:
    if epoch in store.root.epochs():
        return store.root.destroy_epoch(epoch)
    # Asked again after the root did it and its answer was lost.
    root = store.root.facts
    return EpochEvidence(root.kind, epoch, root.claim, "destroyed before it was asked again")


def _move(groups: GroupKeys, group: Group) -> list[TenantEntry | SessionEntry]:
    """Wrap the group's records under its present key; what is lost, a tenant's sessions too."""
    slots = groups.rewrap(group, [*group.tenants.values(), *group.sessions.values()])
    lost: list[TenantEntry | SessionEntry] = []
    for slot in slots:
        tenant = group.tenants.get(slot)
        lost += [group.sessions[slot]] if tenant is None else [tenant, *tenant.sessions.values()]
    return lost
