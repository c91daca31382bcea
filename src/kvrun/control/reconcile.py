"""Compare how many requests the engine, the gateway and the log counted. No I/O.

A record that was never written leaves no gap in the chain. What shows it is another counter: every
request that the engine finished and the gateway gave a claim to was admitted, and every admission
is a record. So over an interval the log must hold at least as many admissions as there were such
requests, less those that were under way when it began. What is under way is allowed for anew in
each interval, so a long interval shows what many short ones hide.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """One side's counters at a moment.

    ``finished`` grows with each finished request, ``in_flight`` is how many were under way, and
    ``uncached`` grows with each that went on without a claim (the gateway alone knows those).
    """

    finished: int
    in_flight: int
    uncached: int = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The counters at a moment; None for a side that was not reached."""

    engine: Counts | None = None
    gateway: Counts | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of an interval without a record. ``side`` is who counted more than the log."""

    log: str
    side: str
    finished: int
    admissions: int
    uncached: int
    in_flight: int
    missing: int
    message: str


def reconcile(log: str, begin: Sample, end: Sample, admissions: int) -> list[Finding]:
    """What one interval shows.

    ``begin`` was taken after the log was read at the interval's beginning, ``end`` before it was
    read at its end, and ``admissions`` counts its admission records between the two. A side that
    was not reached or was restarted meanwhile (its counters fell) shows nothing. The engine's count
    can only be compared while the gateway's is known, which knows what went on without a claim.
    """
    gateway = _between(begin.gateway, end.gateway)
    if gateway is None:
        return []
    findings = []
    for side, counted in (("engine", _between(begin.engine, end.engine)), ("gateway", gateway)):
        if counted is None:
            continue
        missing = counted.finished - admissions - gateway.uncached - counted.in_flight
        if missing > 0:
            message = (
                f"log {log}: the {side} finished {counted.finished} requests, {gateway.uncached} "
                f"without a claim and {counted.in_flight} begun before, and the log holds "
                f"{admissions} admissions: at least {missing} requests have no record"
            )
            findings.append(
                Finding(
                    log=log,
                    side=side,
                    finished=counted.finished,
                    admissions=admissions,
                    uncached=gateway.uncached,
                    in_flight=counted.in_flight,
                    missing=missing,
                    message=message,
                )
            )
    return findings


def continues(begin: Sample, end: Sample) -> bool:
    """Whether no side was restarted, or not reached, between or at the two moments."""
    return _between(begin.gateway, end.gateway) is not None and (
        begin.engine is end.engine is None or _between(begin.engine, end.engine) is not None
    )


def most_missing(findings: Iterable[Finding]) -> list[Finding]:
    """Of findings over several intervals with one end, the worst of each side."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        known = worst.setdefault(finding.side, finding)
        if finding.missing > known.missing:
            worst[finding.side] = finding
    return list(worst.values())


def _between(begin: Counts | None, end: Counts | None) -> Counts | None:
    if begin is None or end is None:
        return None
    finished, uncached = end.finished - begin.finished, end.uncached - begin.uncached
    if finished < 0 or uncached < 0:
        return None
    return Counts(finished=finished, in_flight=begin.in_flight, uncached=uncached)
