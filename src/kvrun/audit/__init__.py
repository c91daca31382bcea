"""The audit log: what happened, in a form that others can check without trusting the writer."""

from kvrun.audit.checkpoint import Checkpoint, CheckpointSigner, Ed25519Signer
from kvrun.audit.errors import (
    AuditError,
    AuditLogBusyError,
    AuditLogDamagedError,
    AuditRecordError,
    AuditUnavailableError,
)
from kvrun.audit.merkle import blocks_root
from kvrun.audit.record import AuditEvent, Event, Outcome, Record
from kvrun.audit.settings import AuditLimits, AuditMode
from kvrun.audit.writer import AuditLog

__all__ = [
    "AuditError",
    "AuditEvent",
    "AuditLimits",
    "AuditLog",
    "AuditLogBusyError",
    "AuditLogDamagedError",
    "AuditMode",
    "AuditRecordError",
    "AuditUnavailableError",
    "Checkpoint",
    "CheckpointSigner",
    "Ed25519Signer",
    "Event",
    "Outcome",
    "Record",
    "blocks_root",
]
