"""Close the log of a machine that will not come back: what is known of it, and what never is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvrun.audit.record import Event, Outcome, format_time
from kvrun.audit.segment import segment_name
from kvrun.audit.statement import RETIREMENT, sign_statement
from kvrun.control.collected import CollectedLog
from kvrun.control.cosigner import Cosigner
from kvrun.control.journal import ControlJournal, printable
from kvrun.control.remembered import Memory, RememberedLog
from kvrun.errors import KvrunError
from kvrun.storage import Storage

RETIRED_NAME = "retired"


class RetireError(KvrunError):
    """There is no such log, or it is retired already."""

    status = 404


class Retirement(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log that its own writer did not record.

    ``size`` records with ``root`` (hex) were verified; whatever was written after them, between
    ``uncollected_from`` (the last verified record's time, by its writer's clock) and
    ``uncollected_until``, is not known and never will be.
    """

    checkpoint: str
    last_collected: str
    reason: str
    root: str
    size: int
    uncollected_from: str
    uncollected_until: str


def retire(
    log: str,
    reason: str,
    *,
    storage: Storage,
    memory: Memory,
    journal: ControlJournal,
    cosigner: Cosigner,
    now: Callable[[], float],
) -> Retirement:
    """Store the tail, sign the last size and root, and collect nothing of that log any more.

    Repeating it after a crash ends what was begun. Raises RetireError.
    """
    remembered = memory.find(log)
    if remembered is None or not remembered.note:
        known = ", ".join(item.log for item in memory.all()) or "none"
        raise RetireError(f"no log {log} was ever collected", hint=f"collected are: {known}")
    if remembered.retired:
        raise RetireError(f"the log {log} is retired already: {remembered.retired}")
    collected = CollectedLog.of(storage, remembered)
    seen = remembered.seen
    if seen.size > remembered.stored.size:
        tail = memory.tail(log)
        with tail.open("r+b") as file:
            file.truncate(remembered.tail_bytes)
        collected.keep(segment_name(remembered.stored.size), tail)
        collected.keep_checkpoint(seen.size, remembered.note.encode())
    statement = Retirement(
        checkpoint=remembered.note,
        last_collected=format_time(remembered.collected_at),
        reason=printable(reason),
        root=remembered.root.hex(),
        size=seen.size,
        uncollected_from=seen.ts,
        uncollected_until=format_time(now()),
    )
    note = _sign(remembered, statement, cosigner)
    found = storage.find(f"{collected.folder}/{RETIRED_NAME}")
    if found is None:
        collected.keep(RETIRED_NAME, note)
    journal.record(
        Event.INSTANCE_RETIRED, remembered, reason=reason, document=note, outcome=Outcome.FAILED
    )
    what = f"{statement.reason} ({statement.size} records, then unknown)"
    memory.save(msgspec.structs.replace(remembered, retired=what))
    return statement


def _sign(remembered: RememberedLog, statement: Retirement, cosigner: Cosigner) -> bytes:
    body = msgspec.json.encode(statement, order="sorted")
    return sign_statement(
        RETIREMENT,
        remembered.log,
        body,
        cosigner.name,
        cosigner.private_key,
        int(cosigner.now()),
    )
