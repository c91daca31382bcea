"""Reading a log's folder piece by piece, as a collector does, and letting go of what it stored."""

from itertools import pairwise
from pathlib import Path

import msgspec

from kvrun.audit.errors import AuditError
from kvrun.audit.record import Count
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    SIGNER_NAME,
    first_seq_of,
    list_segments,
    manifest_path,
    segment_name,
)

MAX_SEGMENTS = 256
MAX_READ_BYTES = 4 * 2**20
MAX_SMALL_FILE_BYTES = 1 << 20


class SegmentInfo(msgspec.Struct, frozen=True):
    """A segment that is there: its first record, its size, its manifest ("" while it is open)."""

    first_seq: Count
    size_bytes: Count
    manifest: str


class LogFolder:
    """The folder of a log that one process writes or nobody does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def checkpoint(self) -> bytes:
        """The latest signed checkpoint; nothing where there is none."""
        return self._small(self.folder / CHECKPOINT_NAME)

    def verifier_key(self) -> str:
        """The log's verifier key as the log states it, or ""."""
        return self._small(self.folder / SIGNER_NAME).decode("ascii", "replace").strip()

    def segments(self, from_seq: int) -> list[SegmentInfo]:
        """The segments in order from the one with record ``from_seq`` on.

        At most ``MAX_SEGMENTS`` of them. Raises AuditError for a folder that cannot be read.
        """
        try:
            paths = list_segments(self.folder)
            starts = [first_seq_of(path) or 0 for path in paths]
            skipped = sum(1 for start in starts[1:] if start <= from_seq)
            return [
                SegmentInfo(
                    start,
                    path.stat().st_size,
                    self._small(manifest_path(path)).decode("utf-8", "replace"),
                )
                for path, start in list(zip(paths, starts, strict=True))[skipped:][:MAX_SEGMENTS]
            ]
        except OSError as error:
            raise AuditError(f"the audit log in {self.folder} cannot be read: {error}") from None

    def read(self, first_seq: int, offset: int, size_bytes: int) -> bytes:
        """Bytes of a segment, ``MAX_READ_BYTES`` at most; nothing at its end. Raises AuditError."""
        path = self.folder / segment_name(first_seq)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(max(0, min(size_bytes, MAX_READ_BYTES)))
        except OSError as error:
            raise AuditError(f"the segment {path} cannot be read: {error.strerror}") from None

    def _small(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(MAX_SMALL_FILE_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise AuditError(f"{path} cannot be read: {error.strerror}") from None


def release_segments(folder: Path, through_seq: int) -> int:
    """Delete closed segments whose records are all at or below ``through_seq``; bytes freed.

    Only the log's writer, or whoever holds its lock, may call this.
    """
    freed = 0
    for segment, following in pairwise(list_segments(folder)):
        if (first_seq_of(following) or 0) - 1 > through_seq:
            break
        freed += segment.stat().st_size
        segment.unlink()
    return freed
