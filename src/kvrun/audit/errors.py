"""Errors of the audit log."""

from kvrun.errors import KvrunError


class AuditError(KvrunError):
    """Something is wrong with an audit log or with what it was asked to hold."""


class AuditRecordError(AuditError):
    """A record does not fit the schema; nothing was appended."""


class AuditUnavailableError(AuditError):
    """The log cannot be written now, so what needs a record must not be done."""

    status = 503


class AuditLogBusyError(AuditError):
    """Another process holds the log open for writing."""

    status = 409


class AuditLogDamagedError(AuditError):
    """The log on disk contradicts its own signed checkpoint; it must not be continued."""


class NoteFormatError(AuditError):
    """A signed note, checkpoint, verifier key or proof is malformed."""

    status = 400


class TimestampError(AuditError):
    """A timestamp is malformed, or is not a trusted authority's over these bytes."""

    status = 400
