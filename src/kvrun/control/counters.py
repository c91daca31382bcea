"""Compare request counters around each collection; what is missing in the log is an alert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kvrun.control.alerts import AlertKind
from kvrun.control.collector import CollectReport
from kvrun.control.plane import ControlPlane
from kvrun.control.reconcile import Finding, Sample, continues, most_missing, reconcile
from kvrun.control.remembered import log_folder
from kvrun.durable import replace_private_file


class _Noted(msgspec.Struct, frozen=True):
    """What an interval began with."""

    sample: Sample
    admissions: int


class _Begun(msgspec.Struct, frozen=True):
    """What the last interval and the longest one without a gap or a restart began with.

    ``reported`` says that the longest one showed an omission.
    """

    last: _Noted
    oldest: _Noted
    reported: bool = False


class Counting:
    """Made before a log is collected, which is when the interval ends."""

    def __init__(self, plane: ControlPlane, read: Callable[[], Sample]) -> None:
        self._plane, self._read = plane, read
        self._end = read()

    def compare(self, report: CollectReport) -> list[Finding]:
        """The interval's findings, each an alert that does not stop collection. Begins the next."""
        folder = self._plane.folder / "counts"
        path = folder / f"{log_folder(report.log)}.json"
        begun = _load(path)
        findings: list[Finding] = []
        oldest: _Noted | None = None
        reported = False
        if begun is not None and begun.last.admissions <= report.admissions:
            if continues(begun.last.sample, self._end):
                seen = begun.reported and not self._waits(report.log)
                # What a person has looked into is not found again.
                oldest = begun.last if seen else begun.oldest
                reported = begun.reported and not seen
            findings = most_missing(
                finding
                for begin in (begun.last, oldest)
                if begin is not None
                for finding in reconcile(
                    report.log, begin.sample, self._end, report.admissions - begin.admissions
                )
            )
        folder.mkdir(mode=0o700, exist_ok=True)
        noted = _Noted(self._read(), report.admissions)
        if oldest is None or not continues(self._end, noted.sample):
            oldest, reported = noted, False
        begins = _Begun(noted, oldest, reported or bool(findings))
        replace_private_file(path, msgspec.json.encode(begins))
        remembered = self._plane.memory.find(report.log)
        for finding in findings:
            if remembered is not None:
                files = {"counts.json": msgspec.json.format(msgspec.json.encode(finding))}
                self._plane.alarm.warn(
                    AlertKind.OMISSION,
                    remembered,
                    finding.message,
                    files,
                    about=finding.side,
                    count=finding.missing,
                )
        return findings

    def _waits(self, log: str) -> bool:
        """Whether an omission that was found waits for a person."""
        return any(
            item.acknowledged_at is None and (item.log, item.kind) == (log, AlertKind.OMISSION)
            for item in self._plane.alerts.all()
        )


def _load(path: Path) -> _Begun | None:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Begun)
    except msgspec.MsgspecError:
        return None
