"""What tombstones say about the records before the first one that is there. Pure."""

from collections.abc import Sequence

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import VerifierKey
from kvrun.audit.record import format_time
from kvrun.audit.segment import TreePoint
from kvrun.audit.statement import OpenedStatement, Tombstone, open_tombstone
from kvrun.audit.verdict import Aspect, Code, Finding, Verdict


def judge_start(
    log_id: str,
    start: TreePoint | None,
    first_seq: int,
    notes: Sequence[bytes],
    keys: tuple[VerifierKey, ...],
) -> list[Finding]:
    """The findings about a log that begins with record ``first_seq`` at ``start``.

    A tombstone counts when one of ``keys`` signed it and it ends in the very state from which the
    records go on. ``start`` None: that state is not known.
    """
    found: list[Finding] = []
    signed: list[tuple[Tombstone, OpenedStatement]] = []
    for note in notes:
        try:
            tombstone, opened = open_tombstone(note, keys)
        except NoteFormatError as error:
            what = f"a tombstone is not valid: {error.message}"
            found.append(_finding(Code.BAD_TOMBSTONE, Verdict.FAIL, what))
            continue
        if opened.log == log_id and opened.signed_by:
            signed.append((tombstone, opened))
    place = start
    while place is not None and place.size:
        before = [
            item for item in signed if item[0].after == place and item[0].before.size < place.size
        ]
        if not before:
            break
        tombstone, opened = min(before, key=lambda item: item[0].before.size)
        name, time = opened.signed_by[0]
        what = (
            f"records {tombstone.before.size} to {tombstone.after.size - 1} were pruned "
            f"({tombstone.reason}), as {name} signed at {format_time(time)}"
        )
        found.append(_finding(Code.PRUNED, Verdict.PASS, what))
        place = tombstone.before
    if place is None or place.size:
        reach = place.size if place is not None else first_seq
        what = f"what is here starts at record {first_seq}; "
        what += f"nothing says what became of the first {reach}"
        found.append(_finding(Code.STARTS_LATE, Verdict.UNKNOWN, what))
    return found


def _finding(code: Code, verdict: Verdict, detail: str) -> Finding:
    return Finding(Aspect.COMPLETENESS, code, verdict, detail)
