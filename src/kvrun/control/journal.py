"""The control plane's own audit log. It is opened for each entry, so several commands may write."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kvrun.audit.checkpoint import Ed25519Signer, parse_checkpoint
from kvrun.audit.note import parse_note
from kvrun.audit.record import AuditEvent, Event, Outcome
from kvrun.audit.segment import CHECKPOINT_NAME
from kvrun.audit.settings import AuditLimits
from kvrun.audit.writer import AuditLog
from kvrun.config.layout import DataLayout
from kvrun.control.remembered import RememberedLog
from kvrun.keys.signing import KeyPurpose, SigningRing

_LIMITS = AuditLimits(segment_bytes=2**20)
_MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class ControlJournal:
    """Writes what the control plane did to collected logs."""

    layout: DataLayout
    workspace: str
    now: Callable[[], float]

    @property
    def folder(self) -> Path:
        """The log's folder."""
        return self.layout.control / "audit"

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
        entry = AuditEvent(
            event=event,
            outcome=outcome,
            workspace=remembered.workspace,
            deployment=remembered.deployment,
            request_id=remembered.log,
            reason=printable(reason),
            digest=sha256(document).hexdigest(),
            bytes=size_bytes,
        )
        log_id = self._log_id()
        ring = SigningRing(self.layout.control / "signing", now=self.now)
        key = ring.load_or_create(KeyPurpose.CHECKPOINT).private_key
        signer = Ed25519Signer(log_id, key)
        log = AuditLog.open(self.folder, log_id=log_id, signer=signer, now=self.now, limits=_LIMITS)
        try:
            log.append_durable(entry)
        finally:
            log.close()

    def _log_id(self) -> str:
        # A machine that gets another name goes on with the log that it has.
        path = self.folder / CHECKPOINT_NAME
        if path.exists():
            return parse_checkpoint(parse_note(path.read_bytes()).text).origin
        return f"{self.workspace}/control/{socket.gethostname()}"


def printable(text: str) -> str:
    """Text of a person's as a record may hold it."""
    kept = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return kept[:_MAX_REASON]
