"""Ship a log's records elsewhere as they come: resume, at least once, bounded memory, back off.

A batch is delivered before the place after it is written down, so a crash delivers a batch again
and loses none; receivers tell a repeated record by its log and number. The place names the hash of
the last record, so that a log that was rewritten meanwhile is noticed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from kvrun.audit.cursor import LogCursor
from kvrun.audit.errors import AuditError
from kvrun.audit.merkle import leaf_hash
from kvrun.audit.record import Record, as_line
from kvrun.audit.segment import replace_file

BATCH_RECORDS = 500
MAX_PLACE_BYTES = 4096


class ShipError(AuditError):
    """Records cannot be shipped, and trying again will not help."""


class DeliveryError(AuditError):
    """A receiver did not take a batch now; ``after_s`` is how long it asked to be left alone."""

    status = 503

    def __init__(self, message: str, *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class Sink(Protocol):
    """Where records go."""

    @property
    def name(self) -> str:
        """For people, and for the place's file."""

    def deliver(self, records: Sequence[Record]) -> int:
        """Take a batch for good; how many of it the receiver refused for good.

        Raises DeliveryError when trying again may help, ShipError when not.
        """


class ShippedPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a log was shipped: up to ``next_seq``, whose ``prev`` must be this one."""

    log: str
    next_seq: int
    prev: str


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait after so many failures in a row."""

    first_s: float = 1.0
    longest_s: float = 60.0

    def delay(self, failures: int) -> float:
        """Doubles from ``first_s`` up to ``longest_s``."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 32))


def load_place(path: Path) -> ShippedPlace | None:
    """The place in ``path``; None where there is no such file. Raises ShipError."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_PLACE_BYTES), type=ShippedPlace)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ShipError(
            f"{path} does not say how far the log was shipped: {error}",
            hint="Remove it to ship the log from its start; receivers get records again.",
        ) from None


class Shipper:
    """Ships the log in ``folder`` to ``sink``; the place lives in the file ``place``."""

    def __init__(
        self,
        folder: Path,
        sink: Sink,
        place: Path,
        *,
        skip_missing: bool = False,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        self._sink = sink
        self._path = place
        self._skip_missing = skip_missing
        self._batch = batch_records
        self._place = load_place(place)
        self._cursor = LogCursor(folder, self._place.next_seq if self._place else 0)
        self._waiting: list[Record] = []
        self.delivered = 0
        self.refused = 0

    @property
    def next_seq(self) -> int:
        """The number of the next record to ship."""
        return self._place.next_seq if self._place else 0

    def step(self) -> int:
        """Deliver one batch; how many records it had, 0 when nothing is new.

        After a DeliveryError the next step tries the same batch. Raises ShipError.
        """
        if not self._waiting:
            self._waiting = self._cursor.read()
            self._check(self._waiting)
        batch = self._waiting[: self._batch]
        if not batch:
            return 0
        self.refused += self._sink.deliver(batch)
        last = batch[-1]
        prev = leaf_hash(as_line(last).encode()).hex()
        self._place = ShippedPlace(last.log, last.seq + 1, prev)
        replace_file(self._path, msgspec.json.encode(self._place) + b"\n")
        del self._waiting[: len(batch)]
        self.delivered += len(batch)
        return len(batch)

    def run(
        self,
        *,
        wait: Callable[[float], bool],
        follow: bool,
        poll_s: float = 0.5,
        backoff: Backoff | None = None,
        on_failure: Callable[[DeliveryError, float], None] = lambda _error, _delay: None,
    ) -> None:
        """Ship what is there, and with ``follow`` what comes, until ``wait`` says to stop.

        ``wait`` sleeps so many seconds and returns whether to stop. Raises ShipError.
        """
        backoff = backoff or Backoff()
        failures = 0
        while True:
            try:
                shipped = self.step()
            except DeliveryError as error:
                failures += 1
                delay = max(error.after_s, backoff.delay(failures))
                on_failure(error, delay)
                if wait(delay):
                    return
                continue
            failures = 0
            if wait(0.0):
                return
            if not shipped and (not follow or wait(poll_s)):
                return

    def _check(self, records: Sequence[Record]) -> None:
        if not records:
            return
        first, place = records[0], self._place
        expected = place.next_seq if place else 0
        if place is not None and first.log != place.log:
            raise ShipError(
                f"the records are of log {first.log}, shipped was {place.log}",
                hint=f"Ship each log with a place of its own; {self._path} is another one's.",
            )
        if first.seq > expected and not self._skip_missing:
            raise ShipError(
                f"records {expected} to {first.seq - 1} are no longer here",
                hint="They may be in the collected log. --skip-missing goes on without them.",
            )
        if place is not None and first.seq == expected and first.prev != place.prev:
            raise ShipError(
                f"record {first.seq} does not follow the one that was shipped before: the log was "
                "changed since",
                hint="Keep the log's folder and what was shipped: run `kvrun verify` on both.",
            )
