"""How collected logs lie in Storage: below ``<workspace>/deployments/<deployment>/audit/<log>/``.

The names are those of a log's own folder, so ``kvrun verify`` reads a copy of it as it is. A closed
segment is its records, then its manifest, then the countersigned checkpoint at its end: where that
is there, all is. Nothing is ever replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.consistency import TreeRange, prove_consistency
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import leaf_hashes
from kvrun.audit.note import VerifierKey, parse_note
from kvrun.audit.segment import SIGNER_NAME, Manifest, TreePoint, parse_manifest, segment_name
from kvrun.config.layout import storage_prefix
from kvrun.control.alerts import AlertKind, DeviationError
from kvrun.control.follow import whole_lines
from kvrun.control.remembered import RememberedLog, log_folder
from kvrun.storage import ObjectExistsError, Storage

_PIECE_BYTES = 4 * 2**20
_SEGMENT, _MANIFEST, _CHECKPOINT = "segment-", ".manifest.json", "checkpoint-"


@dataclass(frozen=True, slots=True)
class CollectedLog:
    """One log's folder in Storage. Methods raise StorageError where it cannot be used."""

    storage: Storage
    folder: str

    @staticmethod
    def of(storage: Storage, remembered: RememberedLog) -> CollectedLog:
        """Where a log is collected to."""
        prefix = storage_prefix(remembered.workspace, remembered.deployment)
        name = log_folder(remembered.log, remembered.generation)
        return CollectedLog(storage, f"{prefix}/audit/{name}")

    def keep(self, name: str, data: bytes | Path) -> int:
        """Store a file, or find the same one there; the bytes that were stored now.

        Raises DeviationError when another content has that name.
        """
        path = f"{self.folder}/{name}"
        try:
            self.storage.create(path, data)
        except ObjectExistsError:
            if self._digest(path) != _digest(_pieces_of(data)):
                what = f"{path} in Storage is not what is to be stored there"
                raise DeviationError(AlertKind.STORED_DIFFERS, 0, what) from None
            return 0
        return data.stat().st_size if isinstance(data, Path) else len(data)

    def keep_checkpoint(self, size: int, note: bytes) -> bytes:
        """Store the note at a segment's end; the one that is there if an earlier try stored it."""
        path = f"{self.folder}/{checkpoint_name(size)}"
        try:
            self.storage.create(path, note)
        except ObjectExistsError:
            found = self.storage.get(path)
            if parse_note(found).text != parse_note(note).text:
                what = f"{path} in Storage is another checkpoint"
                raise DeviationError(AlertKind.STORED_DIFFERS, size, what) from None
            return found
        return note

    def keep_segment(
        self, records: Path, manifest: Manifest, note: bytes, key: VerifierKey
    ) -> tuple[int, bytes]:
        """Store a closed segment whole. The bytes stored now, and the note as it is stored.

        ``key`` is the one that verified it.
        """
        name = segment_name(manifest.before.size)
        stored = 0
        # The key it began with: later ones show by signing beside the ones before them.
        if self.storage.find(f"{self.folder}/{SIGNER_NAME}") is None:
            stored = self.keep(SIGNER_NAME, key.text().encode() + b"\n")
        stored += self.keep(name, records)
        stored += self.keep(manifest_name(manifest.before.size), manifest.encode())
        return stored, self.keep_checkpoint(manifest.after.size, note)

    def manifests(self) -> list[int]:
        """The first records of the segments whose manifests are there, in order."""
        names = (item.name.rsplit("/", 1)[1] for item in self.storage.list(self.folder))
        return sorted(
            int(name.removeprefix(_SEGMENT).removesuffix(_MANIFEST))
            for name in names
            if name.startswith(_SEGMENT) and name.endswith(_MANIFEST)
        )

    def manifest(self, first_seq: int) -> Manifest:
        """The manifest of one segment."""
        return parse_manifest(self.storage.get(f"{self.folder}/{manifest_name(first_seq)}"))

    def note_at(self, size: int) -> bytes:
        """The countersigned checkpoint at a segment's end. Raises ObjectMissingError."""
        return self.storage.get(f"{self.folder}/{checkpoint_name(size)}")

    def end(
        self, key: VerifierKey, own: Sequence[VerifierKey]
    ) -> tuple[TreePoint, TreePoint, bytes] | None:
        """Where what is stored begins and ends, and the checkpoint there; None for nothing.

        Only a checkpoint that this collector countersigned counts.
        """
        firsts = self.manifests()
        for first_seq in reversed(firsts):
            manifest = self.manifest(first_seq)
            if self.storage.find(f"{self.folder}/{checkpoint_name(manifest.after.size)}") is None:
                continue
            note = self.note_at(manifest.after.size)
            try:
                opened = open_checkpoint(note, [key], own)
            except NoteFormatError:
                continue
            found = opened.checkpoint
            root = manifest.after.merkle_frontier().root()
            if not opened.cosigned_by or (found.size, found.root) != (manifest.after.size, root):
                continue
            if not opened.signed_by:
                what = "Storage holds this log under another verifier key"
                raise DeviationError(AlertKind.KEY_CHANGED, found.size, what)
            return self.manifest(firsts[0]).before, manifest.after, note
        return None

    def pieces(self, first_seq: int) -> Iterator[bytes]:
        """A stored segment in pieces."""
        return self._pieces(f"{self.folder}/{segment_name(first_seq)}")

    def _digest(self, path: str) -> str:
        return _digest(self._pieces(path))

    def _pieces(self, path: str) -> Iterator[bytes]:
        offset = 0
        while piece := self.storage.get_range(path, offset, _PIECE_BYTES):
            yield piece
            offset += len(piece)


def prove(
    collected: CollectedLog, stored: TreePoint, tail: Path, old: int, new: int
) -> list[bytes]:
    """The consistency proof from size ``old`` to ``new``, from Storage and the tail.

    Raises ValueError where the records that it needs are not there any more.
    """
    start = stored
    if old < stored.size:
        firsts = [first for first in collected.manifests() if first <= old]
        if not firsts:
            raise ValueError(f"the records from {old} on are not in Storage")
        start = collected.manifest(firsts[-1]).before
    frontier = start.merkle_frontier()
    newer = TreeRange(old)
    for lines in _lines_from(collected, start.size, stored, tail):
        leaves = leaf_hashes(lines)
        at = newer.end if frontier.size == old else frontier.size
        before = leaves[: max(0, old - at)]
        frontier.extend(before)
        newer.extend(leaves[len(before) : new - at])
        if newer.end == new:
            break
    return prove_consistency(frontier, newer)


def manifest_name(first_seq: int) -> str:
    """The file name of the manifest of the segment that starts there."""
    return f"{_SEGMENT}{first_seq:016d}{_MANIFEST}"


def checkpoint_name(size: int) -> str:
    """The file name of the countersigned checkpoint of that size."""
    return f"{_CHECKPOINT}{size:016d}"


def tombstone_name(first_seq: int, end: int) -> str:
    """The file name of the tombstone of records ``first_seq`` up to but without ``end``."""
    return f"pruned-{first_seq:016d}-{end:016d}.tombstone"


def _lines_from(
    collected: CollectedLog, start: int, stored: TreePoint, tail: Path
) -> Iterator[list[bytes]]:
    for first_seq in collected.manifests() if start < stored.size else ():
        if start <= first_seq < stored.size:
            for data in whole_lines(collected.pieces(first_seq)):
                yield data[:-1].split(b"\n")
    if tail.exists():
        for data in whole_lines(_pieces_of(tail)):
            yield data[:-1].split(b"\n")


def _digest(pieces: Iterator[bytes]) -> str:
    state = sha256()
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def _pieces_of(data: bytes | Path) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    with data.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
