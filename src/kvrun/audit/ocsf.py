"""Audit records as events of the Open Cybersecurity Schema Framework, version 1.5.0. Pure.

Source: https://schema.ocsf.io/1.5.0. What is done to cached context is Datastore Activity, what is
done to keys, policies, deployments and logs is Entity Management, a sign-in is Authentication, and
what programs do is Application Lifecycle. ``docs/spec/audit-log.md`` has the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from kvrun.audit.record import SCHEMA_VERSION, Event, Outcome, Record, as_line, parse_time

OCSF_VERSION = "1.5.0"


class OcsfClass(IntEnum):
    """Event classes by their number."""

    AUTHENTICATION = 3002
    ENTITY_MANAGEMENT = 3004
    APPLICATION_LIFECYCLE = 6002
    DATASTORE_ACTIVITY = 6005


@dataclass(frozen=True, slots=True)
class OcsfKind:
    """What an event is in OCSF: class, activity, severity, and for an entity its type."""

    of: OcsfClass
    activity: int
    severity: int
    entity: str = ""


_INFO, _LOW, _MEDIUM, _HIGH = 1, 2, 3, 4
_OTHER = 99


def _data(activity: int, severity: int = _INFO) -> OcsfKind:
    return OcsfKind(OcsfClass.DATASTORE_ACTIVITY, activity, severity)


def _entity(entity: str, activity: int, severity: int = _INFO) -> OcsfKind:
    return OcsfKind(OcsfClass.ENTITY_MANAGEMENT, activity, severity, entity)


def _program(activity: int, severity: int = _INFO) -> OcsfKind:
    return OcsfKind(OcsfClass.APPLICATION_LIFECYCLE, activity, severity)


_CONNECT, _READ, _WRITE, _DELETE, _ENCRYPT, _DECRYPT = 3, 1, 5, 7, 9, 10
_CREATE, _SEE, _UPDATE, _REMOVE, _ACTIVATE, _DISABLE = 1, 2, 3, 4, 10, 9
_START, _STOP = 3, 4

KINDS: Mapping[Event, OcsfKind] = {
    Event.ALLOCATED: _data(_CONNECT),
    Event.SEALED: _data(_ENCRYPT),
    Event.OPENED: _data(_DECRYPT),
    Event.REUSED: _data(_READ),
    Event.EVICTED: _data(_DELETE),
    Event.PERSISTED: _data(_WRITE),
    Event.RESTORED: _data(_READ),
    Event.MOVED: _data(_WRITE),
    Event.DENIED: _data(_CONNECT, _MEDIUM),
    Event.EXPIRED: _data(_DELETE),
    Event.ERASED: _data(_DELETE),
    Event.INTEGRITY_FAILURE: _data(_DECRYPT, _HIGH),
    Event.KEY_CREATED: _entity("key", _CREATE),
    Event.KEY_LEASED: _entity("key", _SEE),
    Event.KEY_ROTATED: _entity("key", _UPDATE),
    Event.KEY_DESTROYED: _entity("key", _REMOVE),
    Event.SESSION_OPENED: _entity("session", _CREATE),
    Event.SESSION_CLOSED: _entity("session", _REMOVE),
    Event.POLICY_ACTIVATED: _entity("policy", _ACTIVATE),
    Event.POLICY_REJECTED: _entity("policy", _ACTIVATE, _MEDIUM),
    Event.DEPLOYMENT_CREATED: _entity("deployment", _CREATE),
    Event.DEPLOYMENT_STARTED: _program(_START),
    Event.DEPLOYMENT_STOPPED: _program(_STOP),
    Event.DEPLOYMENT_DELETED: _entity("deployment", _REMOVE),
    Event.DEPLOYMENT_ASKED: _entity("deployment", _UPDATE),
    Event.SIGNED_IN: OcsfKind(OcsfClass.AUTHENTICATION, 1, _INFO),
    Event.ROLE_CHANGED: _entity("role", _UPDATE, _LOW),
    Event.LOG_OPENED: _program(_START),
    Event.LOG_CLOSED: _program(_STOP),
    Event.LOG_COLLECTED: _entity("log", _SEE),
    Event.LOG_READ: _entity("log", _SEE, _LOW),
    Event.LOG_PRUNED: _entity("log", _REMOVE, _LOW),
    Event.LOG_ALERT: _entity("log", _OTHER, _HIGH),
    Event.ALERT_ACKNOWLEDGED: _entity("log", _UPDATE, _MEDIUM),
    Event.WHOIS: _entity("tenant", _SEE, _MEDIUM),
    Event.HEARTBEAT: _program(_OTHER),
    Event.GAP: _program(_OTHER, _HIGH),
    Event.INSTANCE_RETIRED: _entity("instance", _DISABLE, _MEDIUM),
    Event.CERTIFIED: _entity("erasure", _OTHER),
}

# What OCSF has no place for, kept under its own name.
_UNMAPPED = (
    "blocks",
    "blocks_root",
    "tokens",
    "tier_to",
    "key_id",
    "policy_revision",
    "digest",
    "lost",
    "epoch",
    "prev",
)


def ocsf_event(record: Record) -> bytes:
    """The record as one line of OCSF JSON, without a newline.

    ``metadata.uid`` is unique and stable; ``raw_data`` is the record's own line, so that the chain
    can still be checked. A ``ts`` that is no time gives 0.
    """
    kind = KINDS.get(record.event, _program(_OTHER))
    try:
        milliseconds = round(parse_time(record.ts) * 1000)
    except ValueError:
        milliseconds = 0
    event: dict[str, object] = {
        "activity_id": kind.activity,
        "activity_name": record.event.value if kind.activity == _OTHER else None,
        "category_uid": kind.of // 1000,
        "class_uid": int(kind.of),
        "message": record.event.value,
        "metadata": {
            "correlation_uid": record.request_id,
            "event_code": record.event.value,
            "log_name": record.log,
            "log_provider": "kvrun",
            "log_version": str(SCHEMA_VERSION),
            "original_time": record.ts,
            "product": {"name": "kvrun", "vendor_name": "kvrun"},
            "sequence": record.seq,
            "tenant_uid": record.workspace,
            "uid": f"{record.log}#{record.seq}",
            "version": OCSF_VERSION,
        },
        "raw_data": as_line(record),
        "severity_id": kind.severity,
        "status_code": record.outcome.value,
        "status_detail": record.reason,
        "status_id": 1 if record.outcome is Outcome.OK else 2,
        "time": milliseconds,
        "type_uid": kind.of * 100 + kind.activity,
        "unmapped": {name: getattr(record, name) for name in _UNMAPPED},
        **_about(record, kind),
    }
    return msgspec.json.encode(_without_empty(event), order="sorted")


def _about(record: Record, kind: OcsfKind) -> dict[str, object]:
    actor = {
        "app_name": record.deployment or "kvrun",
        "session": {"uid": record.session_ref} if record.session_ref else None,
        "user": {"uid": record.tenant_ref} if record.tenant_ref else None,
    }
    match kind.of:
        case OcsfClass.DATASTORE_ACTIVITY:
            bucket = {
                "is_encrypted": record.tier != "gpu",
                "name": record.tier or "cache",
                "size": record.bytes,
                "type": "KV cache tier",
                "type_id": _OTHER,
                "uid": record.deployment,
            }
            source = {"svc_name": "kvrun", "uid": record.log}
            return {"actor": actor, "databucket": bucket, "src_endpoint": source, "type_id": 2}
        case OcsfClass.ENTITY_MANAGEMENT:
            entity = {
                "name": kind.entity,
                "type": kind.entity,
                "type_id": _OTHER,
                "uid": _entity_id(record, kind),
            }
            return {"actor": actor, "entity": entity}
        case OcsfClass.AUTHENTICATION:
            user = {"uid": record.tenant_ref or record.workspace or "unknown"}
            return {"service": {"name": "kvrun"}, "user": user}
        case OcsfClass.APPLICATION_LIFECYCLE:
            return {"app": {"name": "kvrun", "uid": record.deployment or record.log}}


def _entity_id(record: Record, kind: OcsfKind) -> str:
    ids = {
        "key": record.key_id,
        "session": record.session_ref,
        "policy": record.policy_revision,
        "deployment": record.deployment,
        "tenant": record.tenant_ref,
    }
    return ids.get(kind.entity, record.request_id) or record.log


def _without_empty(value: dict[str, object]) -> dict[str, object]:
    return {
        key: _without_empty(item) if isinstance(item, dict) else item
        for key, item in value.items()
        if item not in (None, "", 0, {}) or key in _ZERO_IS_A_VALUE
    }


_ZERO_IS_A_VALUE = ("time", "sequence")
