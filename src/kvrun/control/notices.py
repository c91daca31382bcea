"""Which alerts somebody has to be told of, and what to say. No I/O.

What was told is remembered an alert; whatever an alert says beyond that is a notice. So a crash
between telling and remembering tells once more, under the same id, and never leaves one out.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from kvrun.audit.record import format_time
from kvrun.control.alerts import Alert

FORMAT_VERSION = 1
_MAX_DETAIL = 500


class NoticeKind(StrEnum):
    """What happened to an alert."""

    RAISED = "raised"
    UPDATED = "updated"
    ACKNOWLEDGED = "acknowledged"


class Told(msgspec.Struct, frozen=True):
    """What the receiver knows of an alert: its ``count`` then, and whether it was acknowledged."""

    count: int = 0
    acknowledged: bool = False


class Notice(msgspec.Struct, frozen=True):
    """Something to tell. ``id`` is the same however often it is told."""

    id: str
    kind: NoticeKind
    alert: Alert


def pending(alerts: Sequence[Alert], told: Mapping[str, Told]) -> list[Notice]:
    """What is left to tell, in the order in which alerts were raised."""
    found = []
    for alert in alerts:
        known = told.get(alert.id)
        if known is None:
            found.append(Notice(f"{alert.id}.raised", NoticeKind.RAISED, alert))
        elif alert.count > known.count:
            number = f"{alert.id}.updated-{alert.count}"
            found.append(Notice(number, NoticeKind.UPDATED, alert))
        if alert.acknowledged_at is not None and not (known and known.acknowledged):
            number = f"{alert.id}.acknowledged"
            found.append(Notice(number, NoticeKind.ACKNOWLEDGED, alert))
    return found


def told_of(notice: Notice, known: Told | None) -> Told:
    """What the receiver knows after a notice."""
    acknowledged = notice.kind is NoticeKind.ACKNOWLEDGED or bool(known and known.acknowledged)
    return Told(notice.alert.count, acknowledged)


def already_settled(alerts: Sequence[Alert]) -> dict[str, Told]:
    """What to take as told where nobody was told before: the alerts that nobody waits for."""
    return {
        alert.id: Told(alert.count, acknowledged=True)
        for alert in alerts
        if alert.acknowledged_at is not None
    }


def json_message(notice: Notice, sent_at: float) -> bytes:
    """The whole notice as JSON; docs/operations.md lists the fields."""
    alert = notice.alert
    acknowledged = None if alert.acknowledged_at is None else format_time(alert.acknowledged_at)
    return msgspec.json.encode(
        {
            "version": FORMAT_VERSION,
            "id": notice.id,
            "event": notice.kind,
            "sent_at": format_time(sent_at),
            "text": text_of(notice),
            "alert": {
                "id": alert.id,
                "kind": alert.kind,
                "log": alert.log,
                "record": alert.seq,
                "detail": alert.detail[:_MAX_DETAIL],
                "raised_at": format_time(alert.raised_at),
                "collection_stopped": alert.stops,
                "missing_requests": alert.count,
                "acknowledged_at": acknowledged,
                "acknowledged_because": alert.acknowledged_because,
            },
        }
    )


def slack_message(notice: Notice) -> bytes:
    """What Slack's incoming webhooks take; what a log says can neither link nor call anybody."""
    text = text_of(notice)
    for char, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, escaped)
    return msgspec.json.encode({"text": text})


def trial_message(message_id: str, sent_at: float, *, slack: bool) -> bytes:
    """A message that is about no alert."""
    text = "kvrun: this is a test message; no alert was raised"
    if slack:
        return msgspec.json.encode({"text": text})
    return msgspec.json.encode(
        {
            "version": FORMAT_VERSION,
            "id": message_id,
            "event": "test",
            "sent_at": format_time(sent_at),
            "text": text,
        }
    )


def text_of(notice: Notice) -> str:
    """The notice for people, on one line."""
    alert = notice.alert
    if notice.kind is NoticeKind.ACKNOWLEDGED:
        return (
            f"kvrun: {alert.kind} in log {alert.log} was acknowledged: {alert.acknowledged_because}"
        )
    effect = "collection is stopped" if alert.stops else "collection goes on"
    again = " again" if notice.kind is NoticeKind.UPDATED else ""
    return (
        f"kvrun: {alert.kind}{again} in log {alert.log} at record {alert.seq} ({effect}): "
        f"{alert.detail[:_MAX_DETAIL]}"
    )


def signature(secret: bytes, body: bytes, sent_at: float) -> str:
    """The value of the header ``X-Kvrun-Signature``: HMAC-SHA256 over time, dot and body."""
    moment = str(int(sent_at))
    digest = hmac.new(secret, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"
