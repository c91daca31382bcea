"""Epoch rotation: a new epoch key, every table of slot keys moved under it, the old one gone."""

from collections.abc import Collection

from kvrun.keys.ring_store import RingStore
from kvrun.keys.root import EpochEvidence
from kvrun.keys.slot_keys import SlotKeys


def rotate(
    store: RingStore, slot_keys: SlotKeys, old: int, destroyed: Collection[int]
) -> EpochEvidence:
    """Go to the epoch after ``old``, with new keys for the ``destroyed`` slots; destroy ``old``.

    Resumes a rotation that a crash cut short, or a root that did not answer: what is already at
    the new epoch stays.
    """
    number = old + 1
    if number not in store.root.epochs():
        store.root.create_epoch(number)
    slot_keys.move(store.epoch(number), destroyed)
    store.upper.sync()
    evidence = _destroy_epoch(store, old)
    store.close_epoch(old)
    return evidence


def _destroy_epoch(store: RingStore, epoch: int) -> EpochEvidence:
    if epoch in store.root.epochs():
        return store.root.destroy_epoch(epoch)
    # Asked again after the root did it and its answer was lost.
    root = store.root.facts
    return EpochEvidence(root.kind, epoch, root.claim, "destroyed before it was asked again")
