"""Compare request counters around each collection; what is missing in the log is an alert."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvrun.audit.segment import replace_file
from kvrun.control.alerts import AlertKind
from kvrun.control.collector import CollectReport
from kvrun.control.plane import ControlPlane
from kvrun.control.reconcile import Finding, Sample, reconcile
from kvrun.control.remembered import log_folder


class _Noted(msgspec.Struct, frozen=True):
    """What an interval began with."""

    sample: Sample
    admissions: int


class Counting:
    """Made before a log is collected, which is when the interval ends."""

    def __init__(self, plane: ControlPlane, read: Callable[[], Sample]) -> None:
        self._plane, self._read = plane, read
        self._end = read()

    def compare(self, report: CollectReport) -> list[Finding]:
        """The interval's findings, each an alert that does not stop collection. Begins the next."""
        folder = self._plane.folder / "counts"
        path = folder / f"{log_folder(report.log)}.json"
        findings = []
        if path.exists():
            try:
                begin = msgspec.json.decode(path.read_bytes(), type=_Noted)
                admissions = report.admissions - begin.admissions
                findings = reconcile(report.log, begin.sample, self._end, admissions)
            except msgspec.MsgspecError:
                findings = []
        folder.mkdir(mode=0o700, exist_ok=True)
        noted = _Noted(self._read(), report.admissions)
        replace_file(path, msgspec.json.encode(noted))
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
