"""One pass over what is new of a log: verify it piece by piece, store what is closed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from kvrun.audit.checkpoint import Checkpoint
from kvrun.audit.record import Event
from kvrun.audit.segment import Manifest, TreePoint
from kvrun.control.alerts import AlertKind, DeviationError
from kvrun.control.collected import CollectedLog
from kvrun.control.cosigner import Cosigner
from kvrun.control.follow import Follower, LineReader, read_manifest
from kvrun.control.remembered import Memory, RememberedLog
from kvrun.control.sources import MAX_READ_BYTES, LogSource, SegmentInfo
from kvrun.control.tail import Tail
from kvrun.control.tallies import Tallies
from kvrun.control.witnessing import WitnessRound
from kvrun.storage import Storage

_ADMISSIONS = frozenset({Event.ALLOCATED, Event.DENIED})


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where what was verified goes."""

    storage: Storage
    memory: Memory
    cosigner: Cosigner


class Transfer:
    """Brings ``remembered`` up to date, which is saved after every stored segment."""

    def __init__(self, keeping: Keeping, source: LogSource, remembered: RememberedLog) -> None:
        self.remembered = remembered
        self.note, self._signed = b"", 0
        # What the last closed segment names as its key, and the checkpoint at its end.
        self.signer, self.signer_note = "", b""
        self.stored_bytes = self.freed_bytes = 0
        self._admissions = remembered.admissions
        self._keeping, self._source = keeping, source
        self._collected = CollectedLog.of(keeping.storage, remembered)
        self._tail = Tail(keeping.memory.tail(remembered.log), remembered.tail_bytes)

    def close(self) -> None:
        """Let go of the tail's file."""
        self._tail.close()

    def run(self, checkpoint: Checkpoint, note: bytes, witnessing: WitnessRound) -> None:
        """Verify everything up to ``checkpoint`` and store every closed segment.

        ``note`` then holds a checkpoint that the log signed for exactly what was verified, and
        ``remembered`` that place, which is not saved yet. Raises DeviationError.
        """
        self.note, self._signed = note, checkpoint.size
        follower = Follower(self.remembered.log, self.remembered.seen, [checkpoint])
        more = True
        while more:
            start = self.remembered.stored.size
            segments = [s for s in self._source.segments(start) if s.first_seq >= start]
            more = bool(segments) and all(
                self._take(segment, follower, checkpoint, witnessing) for segment in segments
            )
        if follower.size < checkpoint.size:
            what = f"the log signs for {checkpoint.size} records and shows {follower.size}"
            raise DeviationError(AlertKind.TRUNCATED, follower.size, what)
        self._tail.sync()
        self.remembered = msgspec.structs.replace(
            self.remembered,
            seen=follower.point,
            admissions=self._admissions,
            tail_bytes=self._tail.size_bytes,
        )

    def _take(
        self,
        segment: SegmentInfo,
        follower: Follower,
        checkpoint: Checkpoint,
        witnessing: WitnessRound,
    ) -> bool:
        """Whether the segment was closed, so that another one follows."""
        stored = self.remembered.stored
        if segment.first_seq != stored.size:
            what = f"the segment with record {stored.size} is not shown"
            raise DeviationError(AlertKind.MISSING_RECORDS, stored.size, what)
        if not segment.manifest:
            self._follow(segment, follower, None, checkpoint.size)
            return False
        key = self.remembered.verifier_key
        manifest = read_manifest(segment.manifest, key, self.remembered.log)
        if segment.size_bytes < manifest.file_bytes:
            what = f"the segment with record {stored.size} is shorter than its manifest says"
            raise DeviationError(AlertKind.TORN, stored.size, what)
        self._follow(segment, follower, manifest.file_bytes, None)
        self._check(segment, manifest, follower.point)
        self._store(manifest, witnessing)
        self.signer, self.signer_note = manifest.signer, manifest.checkpoint.encode()
        return True

    def _follow(
        self, segment: SegmentInfo, follower: Follower, end: int | None, size: int | None
    ) -> None:
        """Follow a segment from the tail's end to a byte or to a number of records."""
        reader = LineReader()
        offset = self._tail.size_bytes
        while (end is None or offset < end) and (size is None or follower.size < size):
            wanted = MAX_READ_BYTES if end is None else min(MAX_READ_BYTES, end - offset)
            piece = self._source.read(segment.first_seq, offset, wanted)
            if not piece:
                break
            offset += len(piece)
            lines = reader.take(piece, None if size is None else size - follower.size)
            records = follower.feed(lines)
            self._admissions += sum(record.event in _ADMISSIONS for record in records)
            self._tail.append(lines)
        if end is not None and (reader.rest or offset != end):
            what = f"the segment with record {segment.first_seq} ends within a record"
            raise DeviationError(AlertKind.TORN, follower.size, what)

    def _check(self, segment: SegmentInfo, manifest: Manifest, point: TreePoint) -> None:
        with self._tail.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        agrees = (
            manifest.before == self.remembered.stored
            and manifest.after == point
            and manifest.after.size > manifest.before.size
            and manifest.sha256 == digest
            and manifest.file_bytes == self._tail.size_bytes == segment.size_bytes
        )
        if not agrees:
            what = f"the segment with record {segment.first_seq} is not what its manifest says"
            raise DeviationError(AlertKind.MANIFEST_MISMATCH, segment.first_seq, what)

    def _store(self, manifest: Manifest, witnessing: WitnessRound) -> None:
        keeping, size = self._keeping, manifest.after.size
        self._tail.sync()
        note = keeping.cosigner.cosign(manifest.checkpoint.encode())
        note, asked = witnessing.ask(note, size, self._collected, self.remembered, self._tail.path)
        stored, note = self._collected.keep_segment(
            self._tail.path, manifest, note, self.remembered.verifier_key
        )
        tallies = Tallies(keeping.memory.tallies)
        tallies.note(asked.log, asked.generation, manifest, self._tail.path)
        self.stored_bytes += stored
        self.remembered = msgspec.structs.replace(
            asked,
            note=note.decode(),
            seen=manifest.after,
            admissions=self._admissions,
            stored=manifest.after,
            tail_bytes=0,
            collected_at=keeping.cosigner.now(),
        )
        keeping.memory.save(self.remembered)
        self._tail.clear()
        self.freed_bytes += self._source.release(size - 1)
        if size >= self._signed:
            self.note, self._signed = manifest.checkpoint.encode(), size
