"""Checks of what a bundle lists: certificates, populations, and the controls they stand for."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvrun.audit.tally import EventCount
from kvrun.audit.verdict import Verdict
from kvrun.erasure.check import check_certificate
from kvrun.erasure.document import MAX_CERTIFICATE_BYTES
from kvrun.erasure.trust import TrustAnchor
from kvrun.evidence.archive import Archive
from kvrun.evidence.check_logs import CheckedLog
from kvrun.evidence.controls import (
    Totals,
    control_map,
    file_matcher,
    says,
    with_results,
)
from kvrun.evidence.errors import BundleFormatError
from kvrun.evidence.manifest import CONTROLS_NAME, MANIFEST_NAME, PAGE_NAME, SUMMARY_NAME
from kvrun.evidence.period import Period
from kvrun.evidence.populations import (
    COLUMNS,
    Population,
    certificate_row,
    count_rows,
    decision_rows,
    header,
)
from kvrun.evidence.report import BundleCheck, CheckResult, Findings

_MAX_SMALL_BYTES = 64 << 20
_RECORD_LISTS = (
    Population.ACCESS_CHANGES,
    Population.KEY_ROTATIONS,
    Population.POLICY_REVISIONS,
    Population.DEPLOYMENT_CHANGES,
    Population.INCIDENTS,
)


@dataclass(slots=True)
class ListChecks:
    """Checks the lists of an archive. ``anchor``: the keys that are trusted, if any are."""

    archive: Archive
    anchor: TrustAnchor | None
    period: Period
    deployments: dict[str, str]
    logs: list[CheckedLog]
    proven_rows: set[tuple[Population, str]]
    proven_logs: set[str]
    now: float
    certificate_rows: set[str] = field(default_factory=set)
    certificates: int = 0

    def certificates_valid(self) -> CheckResult:
        """Whether every certificate passes its own checks and is of the period."""
        found = Findings(BundleCheck.CERTIFICATES)
        for name in self.archive.names:
            folder, _, rest = name.partition("/certificates/")
            if not rest or not name.startswith("deployments/"):
                continue
            self.certificates += 1
            data = self.archive.read(name, MAX_CERTIFICATE_BYTES)
            report = check_certificate(data, anchor=self.anchor, now=self.now)
            failed = [item for item in report.checks if item.verdict is Verdict.FAIL]
            if failed or report.statement is None:
                said = failed[0] if failed else report.checks[-1]
                found.fail(name, f"{said.name}: {said.detail}")
                continue
            if not self.period.has(report.statement.issued_at):
                found.fail(name, "it was not issued in the period")
            deployment = self.deployments.get(folder, "")
            self.certificate_rows.add(certificate_row(report.statement, deployment, self.period))
        return found.result(f"{self.certificates} certificate(s), each checked by itself")

    def populations(self) -> CheckResult:
        """Whether the lists have their columns, and rows that fit certificates and records."""
        found, rows = Findings(BundleCheck.POPULATIONS), 0
        for population in Population:
            try:
                rows += self._list(population, found)
            except (BundleFormatError, UnicodeDecodeError, csv.Error) as error:
                found.fail(population.file, str(error))
        return found.result(f"{len(Population)} lists with {rows} row(s)")

    def controls(self) -> CheckResult:
        """Whether the states of the controls follow from what is in the bundle."""
        found = Findings(BundleCheck.CONTROLS)
        own = (SUMMARY_NAME, CONTROLS_NAME, PAGE_NAME, MANIFEST_NAME)
        names = [name for name in self.archive.names if name not in own]
        try:
            totals = with_results(self._totals(), names)
            stated = self.archive.read(CONTROLS_NAME, _MAX_SMALL_BYTES)
            if not says(stated, control_map(totals, file_matcher(names))):
                found.fail(CONTROLS_NAME, "its states are not those of what is in the bundle")
        except (BundleFormatError, ValueError, csv.Error) as error:
            found.fail(CONTROLS_NAME, str(error))
        return found.result("each state follows from what is in the bundle")

    def rows(self, population: Population) -> Iterator[dict[str, str]]:
        """The rows of a list. Raises BundleFormatError, also for rows of another form."""
        try:
            yield from self._rows(population)
        except (UnicodeDecodeError, ValueError, csv.Error) as error:
            name = population.file
            raise BundleFormatError(f"its rows are malformed: {error}", name=name) from None

    def _list(self, population: Population, found: Findings) -> int:
        lines = self._lines(population)
        if next(lines, "") != header(population):
            found.fail(population.file, "its first line does not name its columns")
            return 0
        rows, seen = 0, set()
        for line in lines:
            rows += 1
            cells = next(csv.reader(io.StringIO(line)))
            if len(cells) != len(COLUMNS[population]):
                found.fail(population.file, f"row {rows} has {len(cells)} columns")
                return rows
            if self._must_be_proven(population, cells):
                seen.add(line)
        if population in _RECORD_LISTS:
            self._compare(population, seen, self._proven(population), found)
        elif population is Population.ERASURE_REQUESTS:
            self._compare(population, seen, self.certificate_rows, found)
        elif population is Population.LOG_EVENTS:
            self._compare(population, seen, self._recounted(), found)
        elif population is Population.POLICY_DECISIONS:
            self._compare(population, seen, self._decided(), found)
        return rows

    def _must_be_proven(self, population: Population, cells: list[str]) -> bool:
        """Whether a row is about something that is in the bundle itself."""
        columns = COLUMNS[population]
        if population in _RECORD_LISTS:
            return cells[columns.index("log")] in self.proven_logs
        if population is Population.ERASURE_REQUESTS:
            return bool(cells[columns.index("certificate_id")])
        if population in (Population.LOG_EVENTS, Population.POLICY_DECISIONS):
            log = cells[columns.index("log")]
            return any(item.log == log and item.recounted is not None for item in self.logs)
        return False

    def _compare(
        self, population: Population, seen: set[str], expected: set[str], found: Findings
    ) -> None:
        for line in sorted(seen - expected)[:1]:
            found.fail(population.file, f"a row fits nothing in the bundle: {line.strip()[:120]}")
        for line in sorted(expected - seen)[:1]:
            found.fail(population.file, f"a row is missing: {line.strip()[:120]}")

    def _proven(self, population: Population) -> set[str]:
        return {line for kind, line in self.proven_rows if kind is population}

    def _recounted(self) -> set[str]:
        return {
            line
            for log in self.logs
            if log.recounted is not None
            for line in count_rows(
                [EventCount(*key, number) for key, number in log.recounted.items()],
                log.deployment,
                log.log,
            )
        }

    def _decided(self) -> set[str]:
        return {
            line
            for log in self.logs
            if log.recounted is not None
            for line in decision_rows(log.decisions.counts, log.deployment, log.log)
        }

    def _totals(self) -> Totals:
        counted: Counter[str] = Counter()
        logs = {log.log for log in self.logs}
        for row in self._rows(Population.LOG_EVENTS):
            if row["log"] in logs:
                counted[row["event"]] += int(row["records"])
        return Totals(
            certificates=self.certificates,
            deployments=sum(1 for _ in self._rows(Population.DEPLOYMENTS)),
            denied=counted["denied"],
            keys_created=counted["key_created"],
            keys_destroyed=counted["key_destroyed"],
            records=sum(counted.values()),
            sealed=counted["sealed"],
        )

    def _rows(self, population: Population) -> Iterator[dict[str, str]]:
        lines = self._lines(population)
        next(lines, "")
        for line in lines:
            cells = next(csv.reader(io.StringIO(line)))
            yield dict(zip(COLUMNS[population], cells, strict=True))

    def _lines(self, population: Population) -> Iterator[str]:
        """A list's lines with their line ends."""
        for line in self.archive.lines(population.file):
            yield f"{line.decode()}\n"
