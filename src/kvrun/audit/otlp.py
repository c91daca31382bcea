"""Audit records as an OTLP logs request in JSON. Pure.

Sources: https://opentelemetry.io/docs/specs/otlp/ (OTLP/HTTP, JSON encoding: 64-bit integers are
decimal strings) and https://opentelemetry.io/docs/specs/otel/logs/data-model/.
"""

from collections.abc import Sequence

import msgspec

from kvrun.audit.record import SCHEMA_VERSION, Event, Outcome, Record, as_line, parse_time

_INFO, _WARN, _ERROR = 9, 13, 17
_SERIOUS = (Event.GAP, Event.INTEGRITY_FAILURE, Event.LOG_ALERT)
_ATTRIBUTES = (
    "deployment",
    "workspace",
    "request_id",
    "tenant_ref",
    "session_ref",
    "tier",
    "tier_to",
    "blocks",
    "bytes",
    "tokens",
    "reason",
    "policy_revision",
    "seq",
)


class PartialSuccess(msgspec.Struct, frozen=True, rename="camel"):
    """What the receiver did not take, for good: it must not be sent again."""

    rejected_log_records: str | int = 0
    error_message: str = ""


class LogsResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The receiver's answer to a logs request."""

    partial_success: PartialSuccess | None = None

    @property
    def rejected(self) -> int:
        """How many records it refused."""
        return int(self.partial_success.rejected_log_records) if self.partial_success else 0


def encode_logs(records: Sequence[Record]) -> bytes:
    """The ``ExportLogsServiceRequest`` for records of one log.

    The body of each is the record's own line; ``log.record.uid`` is unique and stable, so that a
    record that came twice can be told.
    """
    resource = [_text("service.name", "kvrun"), _text("kvrun.log", records[0].log)]
    scope = {"name": "kvrun.audit", "version": str(SCHEMA_VERSION)}
    logs = [{"logRecords": [_log(record) for record in records], "scope": scope}]
    return msgspec.json.encode(
        {"resourceLogs": [{"resource": {"attributes": resource}, "scopeLogs": logs}]}
    )


def _log(record: Record) -> dict[str, object]:
    try:
        nanoseconds = str(round(parse_time(record.ts) * 1_000_000) * 1000)
    except ValueError:
        nanoseconds = "0"
    severity, name = _INFO, "INFO"
    if record.event in _SERIOUS:
        severity, name = _ERROR, "ERROR"
    elif record.outcome is not Outcome.OK:
        severity, name = _WARN, "WARN"
    attributes = [_text("log.record.uid", f"{record.log}#{record.seq}")]
    attributes.append(_text("kvrun.outcome", record.outcome.value))
    for field in _ATTRIBUTES:
        value = getattr(record, field)
        if isinstance(value, int) and (value or field == "seq"):
            attributes.append({"key": f"kvrun.{field}", "value": {"intValue": str(value)}})
        elif isinstance(value, str) and value:
            attributes.append(_text(f"kvrun.{field}", value))
    return {
        "attributes": attributes,
        "body": {"stringValue": as_line(record)},
        "eventName": f"kvrun.audit.{record.event.value}",
        "severityNumber": severity,
        "severityText": name,
        "observedTimeUnixNano": nanoseconds,
        "timeUnixNano": nanoseconds,
    }


def _text(key: str, value: str) -> dict[str, object]:
    return {"key": key, "value": {"stringValue": value}}
