"""The control plane's own audit log. It is opened for each entry, so several commands may write."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kvrun.audit.checkpoint import Ed25519Signer, parse_checkpoint
from kvrun.audit.errors import AuditLogBusyError
from kvrun.audit.note import parse_note
from kvrun.audit.record import AuditEvent, Event, Outcome
from kvrun.audit.segment import CHECKPOINT_NAME
from kvrun.audit.settings import AuditLimits
from kvrun.audit.writer import AuditLog
from kvrun.config.layout import DataLayout
from kvrun.control.remembered import RememberedLog
from kvrun.erasure.certified import CertifiedRecords
from kvrun.erasure.logproof import LogInclusion
from kvrun.keys.signing import KeyPurpose, SigningRing

_LIMITS = AuditLimits(segment_bytes=2**20)
_MAX_REASON = 300
# An entry holds the log for some milliseconds.
_WAIT_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ControlJournal:
    """Writes what the control plane did to collected logs, and who read a log."""

    layout: DataLayout
    workspace: str
    now: Callable[[], float]

    @property
    def folder(self) -> Path:
        """The log's folder."""
        return self.layout.control_audit

    def append(self, entry: AuditEvent) -> None:
        """One durable record about people or deployments. Raises AuditError."""
        self._write(entry)

    def record(
        self,
        event: Event,
        remembered: RememberedLog,
        *,
        reason: str,
        document: bytes,
        size_bytes: int = 0,
        outcome: Outcome = Outcome.OK,
    ) -> None:
        """One durable record about a log.

        ``document`` is what its ``digest`` names: for a collection the text of the checkpoint.
        Raises AuditError when it cannot be written.
        """
        self._write(
            AuditEvent(
                event=event,
                outcome=outcome,
                workspace=remembered.workspace,
                deployment=remembered.deployment,
                request_id=remembered.log,
                reason=printable(reason),
                digest=sha256(document).hexdigest(),
                bytes=size_bytes,
            )
        )

    def record_read(self, note: bytes, *, reason: str, deployment: str = "") -> None:
        """One durable record that somebody reads a log, to be written before they see any of it.

        ``note`` is the log's latest signed checkpoint, b"" where it has none: it names the log and
        how far it had come. Raises AuditError when the record cannot be written, NoteFormatError
        when ``note`` is not a checkpoint.
        """
        text = parse_note(note).text if note else b""
        self._write(
            AuditEvent(
                event=Event.LOG_READ,
                workspace=self.workspace,
                deployment=deployment,
                request_id=printable(parse_checkpoint(text).origin) if text else "",
                reason=printable(reason),
                digest=sha256(text).hexdigest() if text else "",
            )
        )

    def certify(self, deployment: str, digests: Mapping[str, str]) -> dict[str, LogInclusion]:
        """Have certificates of a deployment on record, each once; the proof of each.

        ``digests``: by certificate id the digest (hex) of its statement. The log is held until they
        are on record, and not while proofs are made. Raises AuditError.
        """
        records = CertifiedRecords(self.folder)
        log, signer = self._open()
        try:
            _read_on(records)
            new = [
                AuditEvent(
                    event=Event.CERTIFIED,
                    request_id=certificate_id,
                    workspace=self.workspace,
                    deployment=deployment,
                    digest=digest,
                )
                for certificate_id, digest in digests.items()
                if not records.holds(digest)
            ]
            if new:
                log.append_durable(*new)
            note = log.sign_checkpoint()
            _read_on(records)
        finally:
            log.close()
        return {
            certificate_id: records.inclusion(digest, note, signer.key)
            for certificate_id, digest in digests.items()
        }

    def _write(self, entry: AuditEvent) -> None:
        log, _ = self._open()
        try:
            log.append_durable(entry)
        finally:
            log.close()

    def _open(self) -> tuple[AuditLog, Ed25519Signer]:
        log_id = self._log_id()
        ring = SigningRing(self.layout.control / "signing", now=self.now)
        signer = Ed25519Signer(log_id, ring.load_or_create(KeyPurpose.CHECKPOINT).private_key)
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                log = AuditLog.open(
                    self.folder, log_id=log_id, signer=signer, now=self.now, limits=_LIMITS
                )
                return log, signer
            except AuditLogBusyError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _log_id(self) -> str:
        # A machine that gets another name goes on with the log that it has.
        path = self.folder / CHECKPOINT_NAME
        if path.exists():
            return parse_checkpoint(parse_note(path.read_bytes()).text).origin
        return f"{self.workspace}/control/{socket.gethostname()}"


def _read_on(records: CertifiedRecords) -> None:
    for _ in records.read_on():
        pass


def printable(text: str) -> str:
    """Text of a person's as a record may hold it."""
    kept = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return kept[:_MAX_REASON]
