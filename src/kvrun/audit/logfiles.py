"""A log's files as their one writer sees them: what is chained, on disk, signed and closed.

Not thread-safe, and no failure is handled here: after an ``OSError`` the records that were chained
are kept, and the next ``write`` puts them on disk first.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvrun.audit.chain import chain_events
from kvrun.audit.checkpoint import Checkpoint, CheckpointSigner, sign_checkpoint
from kvrun.audit.reading import release_segments
from kvrun.audit.record import AuditEvent, decode_record
from kvrun.audit.recovery import RecoveredLog
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    SIGNER_NAME,
    Manifest,
    SegmentFile,
    TreePoint,
    list_segments,
    manifest_path,
    replace_file,
    segment_name,
)
from kvrun.audit.settings import AuditLimits


class LogFiles:
    """The live segment, the chain and the tree of one log, from where ``recovered`` left them.

    ``durable_size`` counts the records on disk, ``stored_bytes`` what the segments take, ``note``
    is the latest signed checkpoint and ``signed_size`` what it covers. The moments ``rolled_at``,
    ``signed_at`` and ``appended_at`` are of the monotonic clock.
    """

    def __init__(
        self,
        folder: Path,
        log_id: str,
        signer: CheckpointSigner,
        limits: AuditLimits,
        recovered: RecoveredLog,
    ) -> None:
        self._folder, self._log_id, self._signer, self._limits = folder, log_id, signer, limits
        # Chained lines not yet on disk, the chain and tree after them, and the same as on disk.
        self._unwritten = bytearray()
        self._head = replace(recovered.point, epoch=recovered.point.epoch + 1)
        self._frontier = recovered.frontier
        self._durable = (recovered.point, recovered.frontier.copy())
        self._segment_start, self._first_ts = recovered.before, recovered.first_ts
        if recovered.segment is None:
            self._file = SegmentFile(folder / segment_name(recovered.point.next_seq))
        else:
            self._file = SegmentFile(recovered.segment, content=recovered.content)
        self._must_roll = False
        self.stored_bytes = sum(path.stat().st_size for path in list_segments(folder))
        self.note, self.signed_size = b"", recovered.signed_size
        self.rolled_at = self.signed_at = self.appended_at = time.monotonic()

    @property
    def durable_size(self) -> int:
        """How many records are on disk."""
        return self._durable[0].next_seq

    @property
    def segment_bytes(self) -> int:
        """The size of the live segment."""
        return self._file.size

    def write_key(self) -> None:
        """State the signing key beside the segments."""
        replace_file(self._folder / SIGNER_NAME, self._signer.key.text().encode() + b"\n")

    def chain(self, events: Sequence[tuple[AuditEvent, str]]) -> None:
        """Take in events with their times; ``write`` puts them on disk."""
        if events:
            lines, leaves, self._head = chain_events(events, self._head, self._log_id)
            self._frontier.extend(leaves)
            self._unwritten += lines

    def write(self) -> None:
        """Make what was taken in durable. Raises OSError, also when the quota is used up."""
        if not self._unwritten:
            return
        data = bytes(self._unwritten)
        if self.stored_bytes + len(data) > self._limits.quota_bytes:
            raise OSError(0, f"its quota of {self._limits.quota_bytes} bytes is used up")
        self._file.append(data)
        self._first_ts = self._first_ts or decode_record(data[: data.index(b"\n")]).ts
        self._unwritten = bytearray()
        self.stored_bytes += len(data)
        self._durable = (self._head, self._frontier.copy())
        self.appended_at = time.monotonic()

    def sign(self) -> None:
        """Write a signed checkpoint over what is durable, unless there is one."""
        _, frontier = self._durable
        if frontier.size == self.signed_size and self.note:
            return
        checkpoint = Checkpoint(self._log_id, frontier.size, frontier.root())
        note = sign_checkpoint(checkpoint, self._signer)
        replace_file(self._folder / CHECKPOINT_NAME, note)
        self.note, self.signed_size, self.signed_at = note, frontier.size, time.monotonic()

    def roll_if_full(self) -> None:
        """Start the next segment when the live one is full, or a roll broke off half way."""
        if self._must_roll or self._file.size >= self._limits.segment_bytes:
            self.roll()

    def roll(self) -> None:
        """Close the live segment with its manifest and start the next."""
        point, frontier = self._durable
        # Once a manifest may be there, nothing more goes into this segment.
        self._must_roll = True
        self.sign()
        after = TreePoint.of(point, frontier)
        manifest = Manifest(
            after=after,
            before=self._segment_start,
            file_bytes=self._file.size,
            checkpoint=self.note.decode(),
            first_ts=self._first_ts,
            log=self._log_id,
            sha256=self._file.sha256(),
            signer=self._signer.key.text(),
        )
        replace_file(manifest_path(self._file.path), manifest.encode())
        path = self._folder / segment_name(frontier.size)
        # Left by a roll that failed after it made the file: nothing was ever written to it.
        path.unlink(missing_ok=True)
        following = SegmentFile(path)
        self._file.close()
        self._file, self._segment_start, self._first_ts = following, after, ""
        self.rolled_at, self._must_roll = time.monotonic(), False

    def release(self, through_seq: int) -> int:
        """Delete closed segments whose records are all at or below ``through_seq``.

        Manifests stay, so the log still chains. Returns the number of bytes freed.
        """
        freed = release_segments(self._folder, through_seq)
        self.stored_bytes -= freed
        return freed

    def close(self) -> None:
        """Close the live segment's file."""
        self._file.close()
