"""What a bundle takes as it is from a collected log's folder: its keys and tombstones."""

from __future__ import annotations

from collections.abc import Iterator

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.segment import SIGNER_NAME
from kvrun.audit.statement import open_tombstone
from kvrun.control.collected import CollectedLog
from kvrun.control.remembered import RememberedLog
from kvrun.evidence.period import Period
from kvrun.storage import ObjectMissingError


def collected_key(collected: CollectedLog, item: RememberedLog) -> bytes:
    """The verifier key that a log began with, and the one that is pinned, one a line."""
    try:
        first = collected.storage.get(f"{collected.folder}/{SIGNER_NAME}").decode("ascii").strip()
    except ObjectMissingError:
        first = item.key
    return "".join(f"{key}\n" for key in dict.fromkeys((first, item.key))).encode()


def tombstones_of(collected: CollectedLog, period: Period) -> Iterator[tuple[str, bytes]]:
    """Those of the period's records: what was pruned of before it says nothing about it."""
    for found in collected.storage.list(collected.folder):
        name = found.name.rpartition("/")[2]
        if name.endswith(".tombstone"):
            note = collected.storage.get(f"{collected.folder}/{name}")
            try:
                earlier = open_tombstone(note, ())[0].after.ts < period.since
            except NoteFormatError:
                earlier = False  # who verifies the bundle is told what it is
            if not earlier:
                yield name, note
