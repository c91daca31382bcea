"""The writer of one log: append, group commit, checkpoints, segments, failure and recovery.

Two locks: ``_lock`` guards what is appended but not yet on disk, ``_io`` the files. ``_io`` is
always taken first. Whoever commits writes everything that is pending, so concurrent callers
share one sync; a background thread commits what nobody waits for.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from kvrun.audit.chain import chain_events
from kvrun.audit.checkpoint import Checkpoint, CheckpointSigner, sign_checkpoint
from kvrun.audit.errors import AuditUnavailableError
from kvrun.audit.record import (
    AuditEvent,
    Event,
    Stamper,
    check_event,
    check_log_id,
    decode_record,
    gap_event,
)
from kvrun.audit.recovery import RecoveredLog, recover
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    SIGNER_NAME,
    Manifest,
    SegmentFile,
    TreePoint,
    first_seq_of,
    list_segments,
    lock_folder,
    manifest_path,
    replace_file,
    segment_name,
)
from kvrun.audit.settings import AuditLimits, AuditMode

__all__ = ["AuditLimits", "AuditLog", "AuditMode"]

_POLL_AFTER_ACTIVITY_SECONDS = 0.2


class AuditLog:
    """One append-only log with one writer. Thread-safe. Made by :meth:`open`."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        log_id: str,
        signer: CheckpointSigner,
        now: Callable[[], float],
        mode: AuditMode = AuditMode.REQUIRE,
        limits: AuditLimits | None = None,
    ) -> "AuditLog":
        """Open or create the log in ``folder``, durably record that, and sign a checkpoint.

        ``now`` gives seconds since 1970. After a crash a torn tail is cut off and a ``gap`` is
        recorded. Raises AuditLogBusyError when another process writes this log,
        AuditLogDamagedError when the records contradict the log's own checkpoint,
        AuditUnavailableError when the folder cannot be written.
        """
        check_log_id(log_id)
        lock = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = lock_folder(folder)
            recovered = recover(folder, log_id, signer)
            log = cls(folder, log_id, signer, now, mode, limits or AuditLimits(), lock, recovered)
            try:
                log._start(recovered)
            except BaseException:
                log._file.close()
                raise
        except BaseException as error:
            if lock >= 0:
                os.close(lock)
            if isinstance(error, OSError):
                raise AuditUnavailableError(
                    f"the audit log in {folder} cannot be written: {error.strerror or error}"
                ) from error
            raise
        return log

    def __init__(
        self,
        folder: Path,
        log_id: str,
        signer: CheckpointSigner,
        now: Callable[[], float],
        mode: AuditMode,
        limits: AuditLimits,
        lock: int,
        recovered: RecoveredLog,
    ) -> None:
        self.folder, self.log_id, self.mode, self.limits = folder, log_id, mode, limits
        self._signer, self._lock_file = signer, lock
        self._io, self._lock = threading.Lock(), threading.Lock()
        self._wake = threading.Condition(self._lock)
        # Under _lock: accepted events with their times. Under _io: chained lines not yet on disk,
        # the chain and tree after them, and the same two as they are on disk.
        self._next_seq = recovered.point.next_seq
        self._pending: list[tuple[AuditEvent, str]] = []
        self._unwritten: list[bytes] = []
        self._head = replace(recovered.point, epoch=recovered.point.epoch + 1)
        self._frontier = recovered.frontier
        self._available, self._why = True, ""
        self._lost, self._gap_pending, self._must_roll = 0, False, False
        self._closing = self._closed = self._asleep = False
        self._stamp = Stamper(now)
        self._durable = (recovered.point, recovered.frontier.copy())
        self._segment_start, self._first_ts = recovered.before, recovered.first_ts
        if recovered.segment is None:
            path = folder / segment_name(self._next_seq)
            self._file = SegmentFile(path)
        else:
            self._file = SegmentFile(recovered.segment, content=recovered.content)
        self._stored = sum(path.stat().st_size for path in list_segments(folder))
        self._note, self._signed_size = b"", recovered.signed_size
        started = time.monotonic()
        self._rolled_at = self._signed_at = self._appended_at = self._tried_at = started
        periods = limits.checkpoint_seconds, limits.heartbeat_seconds, limits.segment_seconds
        self._nap = min(periods) / 4
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)

    def append(self, event: AuditEvent) -> int:
        """Take a record in; it is on disk after :meth:`commit` or soon by itself.

        Returns its sequence number, or -1 when best effort mode had to drop it. Raises
        AuditRecordError for an event outside the schema (nothing is appended), and
        AuditUnavailableError in require mode while the log cannot be written.
        """
        check_event(event)
        with self._lock:
            if self._closed or (not self._available and self.mode is AuditMode.REQUIRE):
                raise self._unavailable()
            if not self._available:
                self._lost += 1
                return -1
            seq = self._add(event)
            if self._asleep:
                self._wake.notify()
            return seq

    def commit(self) -> None:
        """Make everything appended so far durable.

        Raises AuditUnavailableError in require mode when that fails. The records are kept and
        written before the ``gap`` record of the recovery: a record of an operation that was then
        refused can appear, a record of one that happened is not lost.
        """
        with self._lock:
            target, retry = self._next_seq, not self._available
        with self._io:
            if retry:
                self._retry()
            elif self._durable[0].next_seq < target:
                self._guard(self._write_pending)
            if self._durable[0].next_seq < target and self.mode is AuditMode.REQUIRE:
                raise self._unavailable()

    def append_durable(self, *events: AuditEvent) -> list[int]:
        """Append and commit, sharing the sync with other threads. Returns sequence numbers."""
        seqs = [self.append(event) for event in events]
        self.commit()
        return seqs

    def sign_checkpoint(self) -> bytes:
        """Commit, sign a checkpoint over everything durable and return the signed note."""
        self.commit()
        with self._io:
            self._guard(self._write_checkpoint)
            if not self._available and self.mode is AuditMode.REQUIRE:
                raise self._unavailable()
            return self._note

    def release(self, through_seq: int) -> int:
        """Delete closed segments whose records are all at or below ``through_seq``.

        Call it only for what another party has stored. Manifests stay, so the log still chains.
        Returns the number of bytes freed.
        """
        freed = 0
        with self._io:
            segments = list_segments(self.folder)
            for segment, following in pairwise(segments):
                if (first_seq_of(following) or 0) - 1 > through_seq:
                    break
                freed += segment.stat().st_size
                segment.unlink()
            self._stored -= freed
        return freed

    @property
    def available(self) -> bool:
        """Whether records can be written; False from a failure until a retry succeeds."""
        return self._available and not self._closed

    @property
    def size(self) -> int:
        """How many records the log has, those that are not yet durable included."""
        return self._next_seq

    @property
    def durable_size(self) -> int:
        """How many records are on disk."""
        return self._durable[0].next_seq

    @property
    def lost(self) -> int:
        """Records dropped since the last ``gap`` record (best effort mode)."""
        return self._lost

    @property
    def checkpoint(self) -> bytes:
        """The latest signed checkpoint."""
        return self._note

    @property
    def usage(self) -> float:
        """Stored bytes as a share of the quota; warn from ``settings.QUOTA_WARNING`` on."""
        return self._stored / self.limits.quota_bytes

    def close(self) -> None:
        """Record the stop, commit, sign, and let go of the folder.

        Raises AuditUnavailableError in require mode when the last records could not be written.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        self._thread.join()
        try:
            with self._lock:
                if self._available:
                    self._add(AuditEvent(event=Event.LOG_CLOSED))
                # From here on appends are refused: nothing follows the record of the stop.
                self._closed = True
            self.commit()
            with self._io:
                self._guard(self._write_checkpoint)
        finally:
            with self._io:
                self._file.close()
                os.close(self._lock_file)

    def _start(self, recovered: RecoveredLog) -> None:
        self._add(AuditEvent(event=Event.LOG_OPENED))
        if not recovered.clean:
            reason = "torn_tail" if recovered.cut else "unclean_stop"
            self._add(gap_event(reason, recovered.cut_records))
        replace_file(self.folder / SIGNER_NAME, self._signer.key.text().encode() + b"\n")
        with self._io:
            self._write_pending()
            self._write_checkpoint()
        self._thread.start()

    def _add(self, event: AuditEvent) -> int:
        """Take in an event that fits the schema. Needs ``_lock``."""
        seq = self._next_seq
        self._pending.append((event, self._stamp()))
        self._next_seq = seq + 1
        return seq

    def _guard(self, action: Callable[[], None]) -> bool:
        """Whether ``action`` worked; a failure stops the log. Needs ``_io``."""
        try:
            action()
        except Exception as error:  # a signer may fail in its own ways; all of them stop the log
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            with self._lock:
                self._available, self._why = False, why
            self._tried_at = time.monotonic()
            return False
        return True

    def _write_pending(self) -> None:
        if self._must_roll or self._file.size >= self.limits.segment_bytes:
            self._roll()
        with self._lock:
            events, self._pending = self._pending, []
        if events:
            lines, leaves, self._head = chain_events(events, self._head, self.log_id)
            self._frontier.extend(leaves)
            self._unwritten += lines
        if not self._unwritten:
            return
        data = b"\n".join(self._unwritten) + b"\n"
        if self._stored + len(data) > self.limits.quota_bytes:
            raise OSError(0, f"its quota of {self.limits.quota_bytes} bytes is used up")
        self._file.append(data)
        self._first_ts = self._first_ts or decode_record(self._unwritten[0]).ts
        self._unwritten = []
        self._stored += len(data)
        self._durable = (self._head, self._frontier.copy())
        self._appended_at = time.monotonic()

    def _retry(self) -> None:
        """Try to write again, with a gap record as the probe. Needs ``_io``."""
        with self._lock:
            if self._available:
                return
            if not self._gap_pending:
                self._add(gap_event("write_failed", self._lost))
                self._lost, self._gap_pending = 0, True
        if not self._guard(self._write_pending) or not self._guard(self._write_checkpoint):
            return
        with self._lock:
            self._gap_pending = False
            if self._lost:
                self._add(gap_event("write_failed", self._lost))
                self._lost = 0
            self._available, self._why = True, ""

    def _write_checkpoint(self) -> None:
        """Sign what is durable. Needs ``_io``."""
        _, frontier = self._durable
        if frontier.size == self._signed_size and self._note:
            return
        checkpoint = Checkpoint(self.log_id, frontier.size, frontier.root())
        note = sign_checkpoint(checkpoint, self._signer)
        replace_file(self.folder / CHECKPOINT_NAME, note)
        self._note, self._signed_size, self._signed_at = note, frontier.size, time.monotonic()

    def _roll(self) -> None:
        """Close the live segment with its manifest and start the next. Needs ``_io``."""
        point, frontier = self._durable
        # Once a manifest may be there, nothing more goes into this segment.
        self._must_roll = True
        self._write_checkpoint()
        after = TreePoint.of(point, frontier)
        manifest = Manifest(
            after=after,
            before=self._segment_start,
            file_bytes=self._file.size,
            checkpoint=self._note.decode(),
            first_ts=self._first_ts,
            log=self.log_id,
            sha256=self._file.sha256(),
            signer=self._signer.key.text(),
        )
        replace_file(manifest_path(self._file.path), manifest.encode())
        path = self.folder / segment_name(frontier.size)
        # Left by a roll that failed after it made the file: nothing was ever written to it.
        path.unlink(missing_ok=True)
        following = SegmentFile(path)
        self._file.close()
        self._file, self._segment_start, self._first_ts = following, after, ""
        self._rolled_at, self._must_roll = time.monotonic(), False

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closing:
                    return
                quiet = time.monotonic() - self._appended_at > _POLL_AFTER_ACTIVITY_SECONDS
                self._asleep = quiet and not self._pending and self._available
                self._wake.wait(self._nap if self._asleep else self.limits.group_seconds)
                if self._asleep and self._pending:
                    self._wake.wait(self.limits.group_seconds)
                self._asleep = False
            with self._io:
                self._guard(self._tick)

    def _tick(self) -> None:
        moment, limits = time.monotonic(), self.limits
        if self._closing:
            return
        if not self._available:
            if moment - self._tried_at >= limits.retry_seconds:
                self._retry()
            return
        if moment - self._appended_at >= limits.heartbeat_seconds:
            with self._lock:
                self._add(AuditEvent(event=Event.HEARTBEAT))
        if not self._guard(self._write_pending):
            return
        if moment - self._rolled_at >= limits.segment_seconds and self._file.size:
            self._guard(self._roll)
        unsigned = self._durable[0].next_seq - self._signed_size
        late = moment - self._signed_at >= limits.checkpoint_seconds
        if unsigned >= limits.checkpoint_records or (unsigned and late):
            self._guard(self._write_checkpoint)

    def _unavailable(self) -> AuditUnavailableError:
        if self._closed and self._available:
            return AuditUnavailableError(f"the audit log {self.log_id} is closed")
        return AuditUnavailableError(
            f"the audit log {self.log_id} in {self.folder} cannot be written: {self._why}",
            hint="What needs a record is refused until the log can be written again.",
        )
