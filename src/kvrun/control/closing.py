"""Store the rest of a log that nobody writes any more: its open segment was only remembered."""

from __future__ import annotations

from kvrun.audit.segment import segment_name
from kvrun.control.collected import CollectedLog
from kvrun.control.plane import ControlPlane
from kvrun.control.remembered import RememberedLog


def store_rest(plane: ControlPlane) -> None:
    """Put every log's verified tail into Storage, as an open segment with its checkpoint.

    For a deployment that is deleted; again does nothing. A log that an alert stopped, and one that
    was retired, is left alone. Raises StorageError, or DeviationError where Storage holds something
    else there.
    """
    with plane.hold():
        storage = plane.log_storage()
        for item in plane.memory.all():
            if item.seen.size > item.stored.size and not item.alert and not item.retired:
                _store(CollectedLog.of(storage, item), item, plane)


def _store(collected: CollectedLog, item: RememberedLog, plane: ControlPlane) -> None:
    tail = plane.memory.tail(item.log)
    with tail.open("r+b") as file:
        file.truncate(item.tail_bytes)
    collected.keep(segment_name(item.stored.size), tail)
    collected.keep_checkpoint(item.seen.size, item.note.encode())
