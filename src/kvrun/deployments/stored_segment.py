"""A stored segment, read whole and checked before anything of it is shown.

Storage is not trusted: who can write there could change records, and the manifest with them. What
counts is the checkpoint at the segment's end that the collector countersigned when it had verified
it; for the end of a log that ended, what the collector remembers.
"""

from __future__ import annotations

from hashlib import sha256

from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.errors import AuditError
from kvrun.audit.merkle import leaf_hashes
from kvrun.audit.note import VerifierKey, parse_verifier_key
from kvrun.audit.segment import TreePoint, segment_name
from kvrun.config.layout import DataLayout
from kvrun.control.collected import CollectedLog
from kvrun.control.cosigner import VERIFIER_KEYS
from kvrun.control.remembered import RememberedLog
from kvrun.errors import KvrunError
from kvrun.storage import Storage
from kvrun.storage.errors import ObjectMissingError


class StoredAlteredError(KvrunError):
    """A segment in Storage is not what was stored there."""

    status = 409


class CheckedSegments:
    """Reads stored segments; the digests of those that a checkpoint vouched for are kept."""

    def __init__(self) -> None:
        self._good: dict[str, str] = {}

    def read(
        self, storage: Storage, layout: DataLayout, item: RememberedLog, first_seq: int
    ) -> bytes:
        """The segment that begins with record ``first_seq``.

        Raises StoredAlteredError, ObjectMissingError where there is none, and StorageError.
        """
        collected = CollectedLog.of(storage, item)
        name = segment_name(first_seq)
        path = f"{collected.folder}/{name}"
        data = storage.get(path)
        digest = sha256(data).hexdigest()
        if self._good.get(path) != digest:
            try:
                _check(collected, layout, item, first_seq, data)
            except (AuditError, ObjectMissingError, ValueError, _DiffersError) as error:
                raise StoredAlteredError(
                    f"{name} in Storage is not what was collected: {error}",
                    hint="Nothing of it is shown. Storage may have been tampered with; compare its "
                    "versions, and see `kvrun verify`.",
                ) from None
            self._good[path] = digest
        return data


class _DiffersError(Exception):
    """What does not fit."""


def _check(
    collected: CollectedLog, layout: DataLayout, item: RememberedLog, first_seq: int, data: bytes
) -> None:
    if first_seq == item.stored.size:
        # The open segment of a log that ended: nothing but the memory says what it is.
        if _extended(item.stored, data) != (item.seen.size, item.root):
            raise _DiffersError("its records are not those that were verified")
        return
    manifest = collected.manifest(first_seq)
    if manifest.before.size != first_seq or manifest.file_bytes != len(data):
        raise _DiffersError("its size or place is not the manifest's")
    if manifest.sha256 != sha256(data).hexdigest():
        raise _DiffersError("its digest is not the manifest's")
    found = open_checkpoint(collected.note_at(manifest.after.size), [], _own_keys(layout))
    if found.broken or not found.cosigned_by:
        raise _DiffersError("the checkpoint at its end is not countersigned by this collector")
    stated = found.checkpoint
    size, root = _extended(manifest.before, data)
    if (stated.origin, stated.size, stated.root) != (item.log, size, root):
        raise _DiffersError("its records are not those of the checkpoint at its end")


def _extended(before: TreePoint, data: bytes) -> tuple[int, bytes]:
    """Size and root of the tree with these lines after what was before."""
    tree = before.merkle_frontier()
    tree.extend(leaf_hashes(data.removesuffix(b"\n").split(b"\n")))
    return tree.size, tree.root()


def _own_keys(layout: DataLayout) -> list[VerifierKey]:
    path = layout.control / VERIFIER_KEYS
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [parse_verifier_key(line) for line in lines]
