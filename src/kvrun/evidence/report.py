"""What checking a bundle says: one line a check, with a verdict and what was found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kvrun.audit.verdict import Verdict

MAX_NAMED = 20


class BundleCheck(StrEnum):
    """The questions, in the order in which they are asked."""

    CONTAINER = "container"
    MANIFEST = "manifest"
    FILES = "files"
    SIGNER = "signer"
    LOGS = "logs"
    SEGMENTS = "segments"
    SAMPLE = "sample"
    JOURNALS = "journals"
    CERTIFICATES = "certificates"
    RESULTS = "results"
    POLICIES = "policies"
    CONFIGURATION = "configuration"
    POPULATIONS = "populations"
    CONTROLS = "controls"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. ``named`` are the files that show it, ``MAX_NAMED`` of them at most."""

    check: BundleCheck
    verdict: Verdict
    detail: str
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleReport:
    """All answers. ``trusted``: the keys came from a trust anchor, not from the bundle."""

    results: tuple[CheckResult, ...]
    trusted: bool

    def of(self, check: BundleCheck) -> CheckResult:
        """One answer."""
        return next(item for item in self.results if item.check is check)

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The answers that something is wrong."""
        return tuple(item for item in self.results if item.verdict is Verdict.FAIL)

    @property
    def exit_code(self) -> int:
        """1: something failed. 2: nothing did, but the signer is self-asserted. 0: otherwise."""
        if self.failed:
            return 1
        return 0 if self.trusted else 2


class Findings:
    """What one check finds wrong, for one line of the report."""

    def __init__(self, check: BundleCheck) -> None:
        self.check = check
        self._what: list[tuple[str, str]] = []

    def fail(self, name: str, what: str) -> None:
        """Something is wrong with a file of the bundle."""
        self._what.append((name, what))

    def result(self, well: str, *, verdict: Verdict = Verdict.PASS) -> CheckResult:
        """The line: ``well`` with ``verdict`` where nothing is wrong."""
        if not self._what:
            return CheckResult(check=self.check, verdict=verdict, detail=well)
        names = tuple(dict.fromkeys(name for name, _ in self._what if name))
        first = "; ".join(
            f"{name}: {what}" if name else what for name, what in self._what[:MAX_NAMED]
        )
        more = len(self._what) - MAX_NAMED
        return CheckResult(
            check=self.check,
            verdict=Verdict.FAIL,
            detail=first + (f"; and {more} more" if more > 0 else ""),
            named=names[:MAX_NAMED],
        )
