"""One audit record: the schema, its canonical bytes, and what callers hand in.

A record is one line of JSON whose bytes are the RFC 8785 canonical form. msgspec writes them
directly because this schema keeps to the subset where the two agree: ASCII keys in sorted order,
printable ASCII strings, no floating-point numbers, integers from 0 to 2^53 - 1. A field that
is empty or zero is left out.
"""

import time
from calendar import timegm
from collections.abc import Callable, Sequence
from enum import StrEnum
from io import BytesIO
from operator import itemgetter
from typing import Annotated, TypedDict

import msgspec

from kvrun.audit.errors import AuditRecordError

SCHEMA_VERSION = 1
MAX_LOG_ID = 200

MAX_LINE_BYTES = 2048
MAX_COUNT = 2**53 - 1
TIME_CHARACTERS = 27
DIGEST_CHARACTERS = 64


# What a reader's decoder checks of a present value while it decodes, which costs next to nothing.
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Digest = Annotated[str, msgspec.Meta(min_length=DIGEST_CHARACTERS, max_length=DIGEST_CHARACTERS)]
Time = Annotated[str, msgspec.Meta(min_length=TIME_CHARACTERS, max_length=TIME_CHARACTERS)]
Version = Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]


class Event(StrEnum):
    """What happened."""

    ALLOCATED = "allocated"
    SEALED = "sealed"
    OPENED = "opened"
    REUSED = "reused"
    EVICTED = "evicted"
    PERSISTED = "persisted"
    RESTORED = "restored"
    MOVED = "moved"
    DENIED = "denied"
    EXPIRED = "expired"
    ERASED = "erased"
    INTEGRITY_FAILURE = "integrity_failure"
    KEY_CREATED = "key_created"
    KEY_LEASED = "key_leased"
    KEY_ROTATED = "key_rotated"
    KEY_DESTROYED = "key_destroyed"
    SESSION_OPENED = "session_opened"
    SESSION_CLOSED = "session_closed"
    POLICY_ACTIVATED = "policy_activated"
    POLICY_REJECTED = "policy_rejected"
    DEPLOYMENT_CREATED = "deployment_created"
    DEPLOYMENT_STARTED = "deployment_started"
    DEPLOYMENT_STOPPED = "deployment_stopped"
    DEPLOYMENT_DELETED = "deployment_deleted"
    DEPLOYMENT_ASKED = "deployment_asked"
    SIGNED_IN = "signed_in"
    ROLE_CHANGED = "role_changed"
    LOG_OPENED = "log_opened"
    LOG_CLOSED = "log_closed"
    LOG_COLLECTED = "log_collected"
    LOG_READ = "log_read"
    WHOIS = "whois"
    HEARTBEAT = "heartbeat"
    GAP = "gap"
    INSTANCE_RETIRED = "instance_retired"
    LOG_ALERT = "log_alert"
    ALERT_ACKNOWLEDGED = "alert_acknowledged"
    LOG_PRUNED = "log_pruned"
    CERTIFIED = "certified"


class Outcome(StrEnum):
    """How it ended."""

    OK = "ok"
    DENIED = "denied"
    FAILED = "failed"


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a caller reports. The writer sets ``v``, ``log``, ``epoch``, ``seq``, ``ts``, ``prev``.

    ``tenant_ref``, ``session_ref`` and ``key_id`` are keyed pseudonyms or random ids, never names.
    ``tier`` is where the blocks are (for a move: where they were), ``tier_to`` where they went.
    ``blocks``, ``bytes`` and ``tokens`` are counts; ``blocks_root`` is the hex Merkle root over
    keyed block names; ``digest`` the hex SHA-256 of the document that the record is about (a
    certificate's statement); ``lost`` counts records that a gap stands for; ``reason`` is a short
    code.
    """

    blocks: int = 0
    blocks_root: str = ""
    bytes: int = 0
    deployment: str = ""
    digest: str = ""
    epoch: int = -1
    event: Event
    key_id: str = ""
    log: str = ""
    lost: int = 0
    # Not a real default: the outcome is always written, so it must differ from what is left out.
    outcome: Outcome = msgspec.field(default_factory=lambda: Outcome.OK)
    policy_revision: str = ""
    prev: str = ""
    reason: str = ""
    request_id: str = ""
    seq: int = -1
    session_ref: str = ""
    tenant_ref: str = ""
    tier: str = ""
    tier_to: str = ""
    tokens: int = 0
    ts: str = ""
    v: int = 0
    workspace: str = ""


def gap_event(reason: str, lost: int) -> AuditEvent:
    """The record that stands where others may be missing."""
    return AuditEvent(event=Event.GAP, outcome=Outcome.FAILED, reason=reason, lost=lost)


class Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """One record of a log. The fields stand in sorted order: it is the order of the bytes."""

    blocks: Count = 0
    blocks_root: Digest = ""
    bytes: Count = 0
    deployment: str = ""
    digest: Digest = ""
    epoch: Count
    event: Event
    key_id: str = ""
    log: str
    lost: Count = 0
    outcome: Outcome
    policy_revision: str = ""
    prev: str
    reason: str = ""
    request_id: str = ""
    seq: Count
    session_ref: str = ""
    tenant_ref: str = ""
    tier: str = ""
    tier_to: str = ""
    tokens: Count = 0
    ts: Time
    v: Version
    workspace: str = ""


class _Place(TypedDict):
    log: str
    epoch: int
    seq: int
    prev: str
    ts: str


def check_events(events: Sequence[AuditEvent]) -> None:
    """Raise AuditRecordError if one of ``events`` has a value outside the schema.

    Joining the strings and or-ing the numbers checks them all in a few fast calls; what that does
    not settle is decided by encoding and decoding each event as a record.
    """
    try:
        texts = [_text(event) for event in events]
        fits = (
            max(map(len, texts), default=0) <= _SHORT_TEXT
            and not "".join(texts).encode().translate(None, _PLAIN)
            and all(map(_is_typical, events))
        )
    except (TypeError, UnicodeEncodeError):
        fits = False
    if not fits:
        for event in events:
            encode_event(event, **_ANYWHERE)


def encode_event(event: AuditEvent, *, log: str, epoch: int, seq: int, prev: str, ts: str) -> bytes:
    """The canonical line, without a newline, of ``event`` at a place of a log.

    Raises AuditRecordError for a value outside the schema.
    """
    stamped = msgspec.structs.replace(
        event, log=log, epoch=epoch, seq=seq, prev=prev, ts=ts, v=SCHEMA_VERSION
    )
    try:
        # Bytes would be written as base64, so their record would decode.
        if not all(isinstance(value, str) for value in _STRINGS(_astuple(stamped))):
            raise AuditRecordError("a field that holds text is not a str")
        line = _ENCODER.encode(stamped)
        decode_record(line)
    except (AuditRecordError, msgspec.MsgspecError, ValueError, OverflowError, TypeError) as error:
        raise AuditRecordError(
            f"the audit event {event.event} does not fit the schema: {error}",
            hint="Strings are printable ASCII, counts are from 0 to 2^53 - 1, and a record is at "
            f"most {MAX_LINE_BYTES} bytes.",
        ) from None
    return line


def encode_checked(
    event: AuditEvent, log: str, epoch: int, seq: int, prev: str, ts: str, line: bytearray
) -> None:
    """Put what ``encode_event`` returns into ``line``, for an event that passed the checks."""
    stamped = _replace(event, log=log, epoch=epoch, seq=seq, prev=prev, ts=ts, v=SCHEMA_VERSION)
    # A buffer that is used again does not have to grow, which costs as much as the encoding.
    _ENCODER.encode_into(stamped, line)


def decode_record(line: bytes) -> Record:
    """The record of one line. Raises AuditRecordError unless it is valid and canonical."""
    try:
        record = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise AuditRecordError(f"not an audit record: {error}") from None
    if _ENCODER.encode(record) != line:
        raise AuditRecordError("the audit record is not in canonical form (RFC 8785)")
    if len(line) > MAX_LINE_BYTES:
        raise AuditRecordError(f"the audit record is longer than {MAX_LINE_BYTES} bytes")
    if not lines_are_plain(line) and not _strings_are_printable(record):
        raise AuditRecordError("the audit record has a character outside printable ASCII")
    return record


def decode_lines(data: bytes) -> list[Record] | None:
    """The records of whole lines if every one is valid and canonical, else None. Fast."""
    try:
        records = _DECODER.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    if _ENCODER.encode_lines(records) != data:
        return None
    if not lines_are_plain(data) and not all(map(_strings_are_printable, records)):
        return None
    return records


def split_lines(data: bytes) -> list[bytes]:
    """The lines of ``data``, which ends with a newline, without their newlines."""
    # BytesIO looks for newlines with memchr; bytes.split compares byte by byte.
    return [line[:-1] for line in BytesIO(data)]


def as_line(record: Record) -> str:
    """A record's canonical line as text, without a newline."""
    return _ENCODER.encode(record).decode()


def lines_are_plain(data: bytes) -> bool:
    """Whether the JSON is printable ASCII without escapes, which is nearly always the case."""
    # JSON itself admits control characters only as escapes, so DEL is the one left to exclude.
    return data.isascii() and b"\\" not in data and b"\x7f" not in data


def check_log_id(log_id: str) -> str:
    """``log_id`` if it can name a log and be a checkpoint's origin, else AuditRecordError."""
    usable = log_id.isascii() and log_id.isprintable() and not set(log_id) & set(' +"\\')
    if not usable or not 1 <= len(log_id) <= MAX_LOG_ID:
        raise AuditRecordError(
            f"{log_id!r} cannot name an audit log",
            hint=f"Use 1 to {MAX_LOG_ID} printable ASCII characters, no space, plus, quote or "
            "backslash.",
        )
    return log_id


def format_time(seconds: float) -> str:
    """RFC 3339 UTC with microseconds, always 27 characters, so that text order is time order."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micros:06d}Z"


class Stamper:
    """Gives records their time from a clock (seconds since 1970).

    A clock that steps back by less than ``SLACK_SECONDS`` is held where it was; a larger step is
    recorded as it is, for the verifier to report.
    """

    SLACK_SECONDS = 1.0

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last = 0.0
        self._second, self._second_text = -1, ""

    def __call__(self) -> str:
        """The time of the next record as its ``ts``."""
        seconds, last = self._now(), self._last
        if last - self.SLACK_SECONDS < seconds < last:
            seconds = last
        self._last = seconds
        whole = int(seconds)
        if whole != self._second:
            self._second, self._second_text = whole, format_time(whole)[:20]
        return f"{self._second_text}{int((seconds - whole) * 1_000_000):06d}Z"


def parse_time(text: str) -> float:
    """Seconds since the epoch of a record's ``ts``. Raises ValueError."""
    if len(text) != 27 or text[19] != "." or text[26] != "Z" or not text[20:26].isdigit():
        raise ValueError(f"{text!r} is not a timestamp of the form 2026-01-31T12:00:00.000000Z")
    parts = time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")
    return timegm(parts) + int(text[20:26]) / 1_000_000


def _text(event: AuditEvent) -> str:
    """What a caller may set as text. Raises TypeError where it is no text."""
    return "".join(
        (
            event.blocks_root,
            event.deployment,
            event.digest,
            event.key_id,
            event.policy_revision,
            event.reason,
            event.request_id,
            event.session_ref,
            event.tenant_ref,
            event.tier,
            event.tier_to,
            event.workspace,
        )
    )


def _is_typical(event: AuditEvent) -> bool:
    """Whether numbers, digests and enums are in order. Raises TypeError for what is no number."""
    blocks, size, tokens, lost = event.blocks, event.bytes, event.tokens, event.lost
    return (
        not (blocks | size | tokens | lost) >> 53
        and type(blocks) is type(size) is type(tokens) is type(lost) is int
        and len(event.blocks_root) in _DIGEST_LENGTHS
        and len(event.digest) in _DIGEST_LENGTHS
        and type(event.event) is Event
        and type(event.outcome) is Outcome
    )


def _strings_are_printable(record: Record) -> bool:
    values = msgspec.structs.astuple(record)
    return all(
        value.isascii() and value.isprintable() for value in values if isinstance(value, str)
    )


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Record)
_replace, _astuple = msgspec.structs.replace, msgspec.structs.astuple
# Leaves room for every other part of a line, at its longest, within MAX_LINE_BYTES.
_SHORT_TEXT = 900
_DIGEST_LENGTHS = {0, DIGEST_CHARACTERS}
_PLAIN = bytes(code for code in range(0x20, 0x7F) if code != ord("\\"))
_STRINGS = itemgetter(
    *(n for n, item in enumerate(msgspec.structs.fields(AuditEvent)) if item.type is str)
)
_ANYWHERE = _Place(
    log="x" * MAX_LOG_ID,
    epoch=MAX_COUNT,
    seq=MAX_COUNT,
    prev="0" * DIGEST_CHARACTERS,
    ts=format_time(0),
)
