"""The hash chain of a log: each record names the leaf hash of the record before it. Pure.

The chain value of a record is its RFC 6962 leaf hash, ``SHA-256(0x00 || line)``, so one hash
serves both the chain and the Merkle tree. The first record names ``genesis(log id)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from kvrun.audit.errors import AuditRecordError
from kvrun.audit.merkle import leaf_hash, leaf_hashes
from kvrun.audit.record import (
    MAX_LINE_BYTES,
    AuditEvent,
    Event,
    Record,
    decode_lines,
    decode_record,
    encode_checked,
    split_lines,
)

MAX_BREAKS = 100


def genesis(log_id: str) -> str:
    """The ``prev`` of a log's first record: hex SHA-256 over a fixed label and the log's id."""
    return sha256(b"kvrun audit log v1\n" + log_id.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ChainPoint:
    """A place between two records: what the next record must carry."""

    next_seq: int
    prev: str
    epoch: int = 0
    ts: str = ""

    @staticmethod
    def start(log_id: str) -> "ChainPoint":
        """The place before a log's first record."""
        return ChainPoint(0, genesis(log_id))


def chain_events(
    events: Sequence[tuple[AuditEvent, str]], point: ChainPoint, log_id: str
) -> tuple[bytearray, list[bytes], ChainPoint]:
    """The lines and leaf hashes of events with their times, and the place after them.

    Each line ends with a newline. The events must have passed ``check_events``. ``point.epoch`` is
    the epoch of the new records.
    """
    lines, line, leaves = bytearray(), bytearray(MAX_LINE_BYTES), []
    seq, prev, epoch = point.next_seq, point.prev, point.epoch
    for event, ts in events:
        encode_checked(event, log_id, epoch, seq, prev, ts, line)
        leaf = leaf_hash(line)
        lines += line
        lines += b"\n"
        leaves.append(leaf)
        prev = leaf.hex()
        seq += 1
    return lines, leaves, ChainPoint(seq, prev, epoch, events[-1][1] if events else point.ts)


class BreakKind(StrEnum):
    """Where the lines of a log stop being one unbroken chain."""

    MALFORMED = "malformed"
    FOREIGN_LOG = "foreign_log"
    MISSING_RECORDS = "missing_records"
    OUT_OF_ORDER = "out_of_order"
    CHAIN_BROKEN = "chain_broken"
    EPOCH_ORDER = "epoch_order"


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """One break: its kind, the sequence number that was expected there, and what was found."""

    kind: BreakKind
    seq: int
    detail: str


@dataclass(slots=True)
class ChainWalker:
    """Walks whole lines of one log and notes every break.

    ``start`` None takes the first record's place as given (a log seen from the middle). ``point``
    moves along; ``breaks`` holds at most ``MAX_BREAKS``. ``gaps`` are the gap records seen.
    """

    log_id: str
    start: ChainPoint | None
    breaks: list[ChainBreak] = field(default_factory=list)
    gaps: list[Record] = field(default_factory=list)
    point: ChainPoint | None = None
    first_ts: str = ""
    last_event: Event | None = None
    records: int = 0

    def __post_init__(self) -> None:
        self.point = self.start

    def feed(self, data: bytes) -> tuple[list[Record], list[bytes]]:
        """The records and leaf hashes of ``data``, which must end with a newline or be empty.

        The fast path checks all lines at once; only when they are not in perfect order does the
        walker go line by line to say what is wrong where.
        """
        if not data:
            return [], []
        lines = split_lines(data)
        if self.breaks:
            return self._walk(lines)
        records = decode_lines(data)
        if records is None or max(map(len, lines)) > MAX_LINE_BYTES:
            return self._walk(lines)
        leaves = leaf_hashes(lines)
        first = records[0]
        point = self.point or ChainPoint(first.seq, first.prev, first.epoch, first.ts)
        chain = [leaf.hex() for leaf in leaves]
        after = point.next_seq + len(records)
        epochs = [record.epoch for record in records]
        in_order = (
            [record.seq for record in records] == list(range(point.next_seq, after))
            and [record.prev for record in records] == [point.prev, *chain[:-1]]
            and {record.log for record in records} == {self.log_id}
            and epochs[0] >= point.epoch
            and sorted(epochs) == epochs
        )
        if not in_order:
            return self._walk(lines)
        self._note(records)
        self.point = ChainPoint(after, chain[-1], epochs[-1], records[-1].ts)
        return records, leaves

    def _walk(self, lines: list[bytes]) -> tuple[list[Record], list[bytes]]:
        records: list[Record] = []
        for line in lines:
            try:
                record = decode_record(line)
            except AuditRecordError as error:
                self._break(BreakKind.MALFORMED, error.message)
                if self.point is not None:
                    chained = leaf_hash(line).hex()
                    seq = self.point.next_seq + 1
                    self.point = ChainPoint(seq, chained, self.point.epoch, self.point.ts)
                continue
            self._step(record, line)
            records.append(record)
        self._note(records)
        return records, leaf_hashes(lines)

    def _step(self, record: Record, line: bytes) -> None:
        point = self.point or ChainPoint(record.seq, record.prev, record.epoch, record.ts)
        if record.log != self.log_id:
            self._break(BreakKind.FOREIGN_LOG, f"the record belongs to log {record.log}")
        elif record.seq > point.next_seq:
            count = record.seq - point.next_seq
            self._break(BreakKind.MISSING_RECORDS, f"{count} missing before seq {record.seq}")
        elif record.seq < point.next_seq:
            self._break(BreakKind.OUT_OF_ORDER, f"found seq {record.seq}, repeated or misplaced")
        elif record.prev != point.prev:
            self._break(BreakKind.CHAIN_BROKEN, "prev is not the hash of the record before")
        elif record.epoch < point.epoch:
            self._break(BreakKind.EPOCH_ORDER, f"epoch {record.epoch} follows {point.epoch}")
        # Resume from what was found, so that one change is not reported at every later record.
        self.point = ChainPoint(record.seq + 1, leaf_hash(line).hex(), record.epoch, record.ts)

    def _break(self, kind: BreakKind, detail: str) -> None:
        if len(self.breaks) < MAX_BREAKS:
            seq = self.point.next_seq if self.point else 0
            self.breaks.append(ChainBreak(kind, seq, detail))

    def _note(self, records: list[Record]) -> None:
        if not records:
            return
        self.records += len(records)
        self.first_ts = self.first_ts or records[0].ts
        self.last_event = records[-1].event
        gap = Event.GAP
        self.gaps += [record for record in records if record.event is gap]
