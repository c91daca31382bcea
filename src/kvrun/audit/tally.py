"""What a closed segment holds in a few numbers, so that a year can be summed without reading it.

A tally is made from the records of a segment whose digest it carries. Its file is one line of
canonical JSON and, after it, the segment's notable records as they are: those of the rare events
that reports list one by one. It proves nothing; whoever has the segment can make it again.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from kvrun.audit.decisions import DecisionCount, Decisions, decision_of
from kvrun.audit.errors import AuditError, AuditRecordError
from kvrun.audit.record import Count, Digest, Event, split_lines

NOTABLE = frozenset(
    {
        Event.KEY_ROTATED,
        Event.POLICY_ACTIVATED,
        Event.POLICY_REJECTED,
        Event.DEPLOYMENT_CREATED,
        Event.DEPLOYMENT_STARTED,
        Event.DEPLOYMENT_STOPPED,
        Event.DEPLOYMENT_DELETED,
        Event.DEPLOYMENT_ASKED,
        Event.SIGNED_IN,
        Event.ROLE_CHANGED,
        Event.LOG_READ,
        Event.WHOIS,
        Event.INTEGRITY_FAILURE,
        Event.GAP,
        Event.INSTANCE_RETIRED,
        Event.LOG_ALERT,
        Event.ALERT_ACKNOWLEDGED,
        Event.LOG_PRUNED,
    }
)
"""Events that happen rarely and are listed one by one."""


class EventCount(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """How many records of one UTC day (``2026-01-31``) share event, outcome and policy."""

    day: str
    event: str
    outcome: str
    policy_revision: str
    records: Count


class Tally(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment's counts. ``sha256`` is the segment's file's; both counts are in rising order."""

    counts: list[EventCount]
    decisions: list[DecisionCount] = []
    file_bytes: Count
    first_seq: Count
    log: str
    records: Count
    sha256: Digest
    v: Literal[2] = 2


class Tallier:
    """Counts records piece by piece; memory grows with the notable ones only."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self._decisions = Decisions()
        self.notable: list[bytes] = []
        self.records = 0

    def feed(self, lines: bytes) -> None:
        """Count whole lines of verified records. Raises AuditRecordError for what is none."""
        try:
            seen = _DECODER.decode_lines(lines)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise AuditRecordError(f"not an audit record: {error}") from None
        self.records += len(seen)
        self._counts.update(
            (item.ts[:10], item.event, item.outcome, item.policy_revision) for item in seen
        )
        events = {item.event for item in seen}
        if not _LOOKED_AT.isdisjoint(events):
            for line, item in zip(split_lines(lines), seen, strict=True):
                if item.event in _NOTABLE:
                    self.notable.append(line)
                elif item.event == Event.DENIED.value:
                    self._decide(line)

    @property
    def counts(self) -> list[EventCount]:
        """The counts so far, in rising order."""
        return [EventCount(*key, number) for key, number in sorted(self._counts.items())]

    @property
    def decisions(self) -> list[DecisionCount]:
        """What policies refused so far, in rising order."""
        return self._decisions.counts

    def _decide(self, line: bytes) -> None:
        item = _DENIED.decode(line)
        found = decision_of(
            item.ts[:10], item.policy_revision, item.tier, item.outcome, item.reason
        )
        if found is not None:
            self._decisions.add(found)


def encode_tally(tally: Tally, notable: Iterable[bytes]) -> bytes:
    """The tally's file."""
    return b"\n".join((_ENCODER.encode(tally), *notable)) + b"\n"


def parse_tally(data: bytes) -> tuple[Tally, list[bytes]]:
    """The tally in a file's bytes and the lines of its notable records. Raises AuditError."""
    head, *lines = data.removesuffix(b"\n").split(b"\n")
    try:
        return _TALLY.decode(head), lines
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise AuditError(f"the tally is malformed: {error}") from None


class _Seen(msgspec.Struct, gc=False):
    ts: str
    event: str
    outcome: str
    policy_revision: str = ""


class _Denied(_Seen, gc=False):
    reason: str = ""
    tier: str = ""


_DECODER = msgspec.json.Decoder(_Seen)
_DENIED = msgspec.json.Decoder(_Denied)
_ENCODER = msgspec.json.Encoder(order="sorted")
_TALLY = msgspec.json.Decoder(Tally)
_NOTABLE = frozenset(event.value for event in NOTABLE)
_LOOKED_AT = _NOTABLE | {Event.DENIED.value}
