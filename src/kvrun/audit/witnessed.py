"""The verdict "witnessed": who else saw the checkpoints that cover a log. Pure."""

from collections.abc import Iterator, Sequence

from kvrun.audit.attestation import Attestation
from kvrun.audit.checkpoint import OpenedCheckpoint
from kvrun.audit.record import format_time
from kvrun.audit.verdict import Aspect, Code, Finding, Verdict

# The last second of the year 9999, beyond which no time can be written.
_LAST_SECOND = 253_402_300_799


def witness_findings(
    covered: Sequence[tuple[OpenedCheckpoint, Attestation | None]],
) -> Iterator[Finding]:
    """One finding a witness, for the largest size that it saw; or that there was none.

    ``covered``: verified checkpoints whose size and root are those of the records.
    """
    largest: dict[tuple[Code, str], tuple[int, float]] = {}
    for opened, attestation in covered:
        size = opened.checkpoint.size
        seen = [(Code.COSIGNED, who.name, float(who.time)) for who in opened.cosigned_by]
        if attestation is not None:
            seen.append((attestation.code, attestation.by, attestation.time))
        for code, name, time in seen:
            found = (size, time)
            largest[code, name] = max(found, largest.get((code, name), found))
    if not largest:
        what = "no evidence of a known witness: a fork shown to others would not show"
        yield Finding(Aspect.WITNESSED, Code.NO_WITNESS, Verdict.UNKNOWN, what)
    for (code, name), (size, time) in sorted(largest.items()):
        what = _TEXT[code].format(name=name, size=size, at=_at(time))
        yield Finding(Aspect.WITNESSED, code, Verdict.PASS, what)


_TEXT = {
    Code.COSIGNED: "{name} cosigned the first {size} records{at}",
    Code.COMMITTED: "{name} holds the first {size} records, committed{at} by the committer's clock",
    Code.TIMESTAMPED: "{name}: the checkpoint of the first {size} records was there{at}",
}


def _at(time: float) -> str:
    if not time:
        return ""
    return f" at {format_time(time)}" if time <= _LAST_SECOND else " at an impossible time"
