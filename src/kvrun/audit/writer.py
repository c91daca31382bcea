"""The writer of one log: append, group commit, checkpoints, segments, failure and recovery.

Two locks: ``_lock`` guards what is appended but not yet on disk, ``_io`` the files. ``_io`` is
always taken first. Whoever commits writes everything that is pending, so concurrent callers
share one sync; a background thread commits what nobody waits for.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path

from kvrun.audit.checkpoint import CheckpointSigner
from kvrun.audit.errors import AuditUnavailableError
from kvrun.audit.logfiles import LogFiles
from kvrun.audit.record import (
    AuditEvent,
    Event,
    Stamper,
    check_events,
    check_log_id,
    gap_event,
)
from kvrun.audit.recovery import RecoveredLog, recover
from kvrun.audit.segment import lock_folder
from kvrun.audit.settings import AuditLimits, AuditMode, LogHealth

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
                log._files.close()
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
        self._lock_file = lock
        self._io, self._lock = threading.Lock(), threading.Lock()
        self._wake = threading.Condition(self._lock)
        # Under _io: the files. Under _lock: accepted events with their times, and the rest.
        self._files = LogFiles(folder, log_id, signer, self.limits, recovered)
        self._next_seq = recovered.point.next_seq
        self._pending: list[tuple[AuditEvent, str]] = []
        self._available, self._why = True, ""
        self._lost, self._dropped, self._gap_pending = 0, 0, False
        self._closing = self._closed = self._asleep = False
        self._stamp = Stamper(now)
        self._tried_at = time.monotonic()
        periods = limits.checkpoint_seconds, limits.heartbeat_seconds, limits.segment_seconds
        self._nap = min(periods) / 4
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)

    def append(self, event: AuditEvent) -> int:
        """Take a record in; it is on disk after :meth:`commit` or soon by itself.

        Returns its sequence number, or -1 when best effort mode had to drop it. Raises
        AuditRecordError for an event outside the schema (nothing is appended), and
        AuditUnavailableError in require mode while the log cannot be written.
        """
        return self.append_all((event,))[0]

    def append_all(self, events: Sequence[AuditEvent]) -> list[int]:
        """Take in records of one moment: all of them or, when it raises, none; see ``append``."""
        seqs = self._take(events)
        if self._asleep or len(self._pending) >= self.limits.group_records:
            with self._lock:
                self._wake.notify()
        return seqs

    def _take(self, events: Sequence[AuditEvent]) -> list[int]:
        check_events(events)
        with self._lock:
            if self._closed or (not self._available and self.mode is AuditMode.REQUIRE):
                raise self._unavailable()
            if not self._available:
                self._lost += len(events)
                self._dropped += len(events)
                return [-1] * len(events)
            first = self._add(events)
            return list(range(first, self._next_seq))

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
            elif self._files.durable_size < target:
                self._guard(self._write_pending)
            if self._files.durable_size < target and self.mode is AuditMode.REQUIRE:
                raise self._unavailable()

    def append_durable(self, *events: AuditEvent) -> list[int]:
        """Append and commit, sharing the sync with other threads. Returns sequence numbers."""
        seqs = self._take(events)
        self.commit()
        return seqs

    def lose(self, count: int) -> None:
        """Say in the log that so many records are missing here, now or once it can be written."""
        with self._lock:
            self._dropped += count
            if self._available and not self._closed:
                self._add((gap_event("not_recorded", count),))
            else:
                self._lost += count

    def sign_checkpoint(self) -> bytes:
        """Commit, sign a checkpoint over everything durable and return the signed note."""
        self.commit()
        with self._io:
            self._guard(self._files.sign)
            if not self._available and self.mode is AuditMode.REQUIRE:
                raise self._unavailable()
            return self._files.note

    def release(self, through_seq: int) -> int:
        """Delete closed segments whose records are all at or below ``through_seq``.

        Call it only for what another party has stored. Manifests stay, so the log still chains.
        Returns the number of bytes freed.
        """
        with self._io:
            return self._files.release(through_seq)

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
        return self._files.durable_size

    @property
    def lost(self) -> int:
        """Records dropped since the last ``gap`` record (best effort mode)."""
        return self._lost

    def health(self) -> LogHealth:
        """How the log is doing."""
        with self._lock:
            return LogHealth(
                available=self.available,
                why=self._why,
                records=self._next_seq,
                stored_bytes=self._files.stored_bytes,
                quota_bytes=self.limits.quota_bytes,
                lost=self._dropped,
            )

    @property
    def checkpoint(self) -> bytes:
        """The latest signed checkpoint."""
        return self._files.note

    @property
    def usage(self) -> float:
        """Stored bytes as a share of the quota."""
        return self._files.stored_bytes / self.limits.quota_bytes

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
                    self._add((AuditEvent(event=Event.LOG_CLOSED),))
                # From here on appends are refused: nothing follows the record of the stop.
                self._closed = True
            self.commit()
            with self._io:
                self._guard(self._files.sign)
        finally:
            with self._io:
                self._files.close()
                os.close(self._lock_file)

    def _start(self, recovered: RecoveredLog) -> None:
        self._add((AuditEvent(event=Event.LOG_OPENED),))
        if not recovered.clean:
            reason = "torn_tail" if recovered.cut else "unclean_stop"
            self._add((gap_event(reason, recovered.cut_records),))
        with self._io:
            self._files.write_key()
            self._write_pending()
            self._files.sign()
        self._thread.start()

    def _add(self, events: Sequence[AuditEvent]) -> int:
        """Take in events that fit the schema; the first one's number. Needs ``_lock``."""
        first, ts = self._next_seq, self._stamp()
        self._pending.extend(zip(events, repeat(ts)))
        self._next_seq = first + len(events)
        return first

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
        self._files.roll_if_full()
        with self._lock:
            events, self._pending = self._pending, []
        self._files.chain(events)
        self._files.write()

    def _retry(self) -> None:
        """Try to write again, with a gap record as the probe. Needs ``_io``."""
        with self._lock:
            if self._available:
                return
            if not self._gap_pending:
                self._add((gap_event("write_failed", self._lost),))
                self._lost, self._gap_pending = 0, True
        if not self._guard(self._write_pending) or not self._guard(self._files.sign):
            return
        with self._lock:
            self._gap_pending = False
            if self._lost:
                self._add((gap_event("write_failed", self._lost),))
                self._lost = 0
            self._available, self._why = True, ""

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closing:
                    return
                quiet = time.monotonic() - self._files.appended_at > _POLL_AFTER_ACTIVITY_SECONDS
                self._asleep = quiet and not self._pending and self._available
                if self._asleep:
                    self._wake.wait(self._nap)
                few = len(self._pending) < self.limits.group_records
                if few and (self._pending or not self._asleep) and not self._closing:
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
        if moment - self._files.appended_at >= limits.heartbeat_seconds:
            with self._lock:
                self._add((AuditEvent(event=Event.HEARTBEAT),))
        if not self._guard(self._write_pending):
            return
        if moment - self._files.rolled_at >= limits.segment_seconds and self._files.segment_bytes:
            self._guard(self._files.roll)
        unsigned = self._files.durable_size - self._files.signed_size
        late = moment - self._files.signed_at >= limits.checkpoint_seconds
        if unsigned >= limits.checkpoint_records or (unsigned and late):
            self._guard(self._files.sign)

    def _unavailable(self) -> AuditUnavailableError:
        if self._closed and self._available:
            return AuditUnavailableError(f"the audit log {self.log_id} is closed")
        return AuditUnavailableError(
            f"the audit log {self.log_id} in {self.folder} cannot be written: {self._why}",
            hint="What needs a record is refused until the log can be written again.",
        )
