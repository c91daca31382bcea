"""Follow a log's records from a remembered place: chain, tree and signed sizes. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvrun.audit.chain import ChainWalker
from kvrun.audit.checkpoint import Checkpoint, open_checkpoint
from kvrun.audit.errors import AuditError, NoteFormatError
from kvrun.audit.note import VerifierKey
from kvrun.audit.record import MAX_LINE_BYTES, Record
from kvrun.audit.segment import Manifest, TreePoint, parse_manifest
from kvrun.control.alerts import AlertKind, DeviationError


class Follower:
    """Goes from ``point`` on through records and compares roots with signed checkpoints.

    Every method raises DeviationError where the log is not what it must be. Memory is bounded by
    the piece that is fed.
    """

    def __init__(self, log_id: str, point: TreePoint, checkpoints: Iterable[Checkpoint]) -> None:
        self._walker = ChainWalker(log_id, point.chain_point())
        self._frontier = point.merkle_frontier()
        self._expected = {item.size: item.root for item in checkpoints}
        self._compare()

    @property
    def size(self) -> int:
        """How many records of the log were followed."""
        return self._frontier.size

    @property
    def point(self) -> TreePoint:
        """Where the log was followed to."""
        assert self._walker.point is not None
        return TreePoint.of(self._walker.point, self._frontier)

    @property
    def root(self) -> bytes:
        """The root over the records followed."""
        return self._frontier.root()

    def feed(self, lines: bytes) -> list[Record]:
        """Follow whole lines; their records."""
        records, leaves = self._walker.feed(lines)
        if self._walker.breaks:
            first = self._walker.breaks[0]
            what = f"at record {first.seq}: {first.detail}"
            raise DeviationError(AlertKind(first.kind.value), first.seq, what)
        done = 0
        for size in sorted(self._expected):
            ahead = size - self._frontier.size
            if 0 < ahead <= len(leaves) - done:
                self._frontier.extend(leaves[done : done + ahead])
                done += ahead
                self._compare()
        self._frontier.extend(leaves[done:])
        return records

    def _compare(self) -> None:
        wanted = self._expected.get(self.size)
        if wanted is not None and wanted != self.root:
            what = f"the first {self.size} records are not the ones that the log signed for"
            raise DeviationError(AlertKind.ROOT_MISMATCH, self.size, what)


class LineReader:
    """Cuts pieces of a file into whole lines, up to a number of lines."""

    def __init__(self) -> None:
        self.rest = b""

    def take(self, data: bytes, most: int | None = None) -> bytes:
        """The whole lines so far, at most ``most``; what follows them waits in ``rest``.

        Raises DeviationError for a line that is longer than any record.
        """
        data = self.rest + data
        cut = data.rfind(b"\n") + 1
        if most is not None and data.count(b"\n", 0, cut) > most:
            cut = _end_of_line(data, most)
        self.rest = data[cut:]
        if b"\n" not in self.rest and len(self.rest) > MAX_LINE_BYTES:
            raise DeviationError(AlertKind.MALFORMED, 0, "a line is longer than any record")
        return data[:cut]


def read_note(note: bytes, key: VerifierKey, log_id: str) -> Checkpoint:
    """The checkpoint in ``note``, signed by ``key`` for that log. Raises DeviationError."""
    try:
        opened = open_checkpoint(note, [key])
    except NoteFormatError as error:
        raise DeviationError(AlertKind.BAD_CHECKPOINT, 0, error.message) from None
    if opened.checkpoint.origin != log_id:
        what = f"the checkpoint belongs to log {opened.checkpoint.origin}, not {log_id}"
        raise DeviationError(AlertKind.FOREIGN_LOG, opened.checkpoint.size, what)
    if not opened.signed_by or opened.broken:
        what = "the checkpoint carries no valid signature of the log's remembered key"
        raise DeviationError(AlertKind.NOT_SIGNED, opened.checkpoint.size, what)
    return opened.checkpoint


def read_manifest(data: str, key: VerifierKey, log_id: str) -> Manifest:
    """The manifest of a closed segment, whose checkpoint is at its end. Raises DeviationError."""
    try:
        manifest = parse_manifest(data.encode())
        manifest.before.merkle_frontier()
        frontier = manifest.after.merkle_frontier()
    except (AuditError, ValueError) as error:
        raise DeviationError(AlertKind.MANIFEST_MISMATCH, 0, str(error)) from None
    checkpoint = read_note(manifest.checkpoint.encode(), key, log_id)
    if manifest.log != log_id or (checkpoint.size, checkpoint.root) != (
        frontier.size,
        frontier.root(),
    ):
        what = "a manifest does not agree with the checkpoint in it"
        raise DeviationError(AlertKind.MANIFEST_MISMATCH, frontier.size, what)
    return manifest


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of a file as runs of whole lines; a torn end is left out."""
    reader = LineReader()
    for piece in pieces:
        lines = reader.take(piece)
        if lines:
            yield lines


def _end_of_line(data: bytes, count: int) -> int:
    at = 0
    for _ in range(count):
        at = data.index(b"\n", at) + 1
    return at
