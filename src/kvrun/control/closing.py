"""Store the rest of a log that nobody writes any more: its open segment was only remembered."""

from __future__ import annotations

from kvrun.audit.segment import segment_name
from kvrun.control.collected import CollectedLog
from kvrun.control.plane import ControlPlane
from kvrun.control.remembered import RememberedLog
from kvrun.storage.objectlock import HoldingStorage


def store_rest(plane: ControlPlane) -> tuple[str, ...]:
    """Put every log's verified tail into Storage, as an open segment with its checkpoint.

    For a deployment that is deleted; again does nothing. A log that an alert stopped, and one that
    was retired, is left alone. What was there and stays held for another time than asked is
    returned in words. Raises StorageError, or DeviationError where Storage holds something else
    there.
    """
    with plane.hold():
        storage = plane.log_storage()
        for item in plane.memory.all():
            if item.seen.size > item.stored.size and not item.alert and not item.retired:
                _store(CollectedLog.of(storage, item), item, plane)
    return storage.notes if isinstance(storage, HoldingStorage) else ()


def _store(collected: CollectedLog, item: RememberedLog, plane: ControlPlane) -> None:
    tail = plane.memory.tail(item.log)
    with tail.open("r+b") as file:
        file.truncate(item.tail_bytes)
    collected.keep(segment_name(item.stored.size), tail)
    collected.keep_checkpoint(item.seen.size, item.note.encode())
