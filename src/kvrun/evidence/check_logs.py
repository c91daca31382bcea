"""Checks of a bundle's logs: segments follow each other, records are in their trees, counts fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from kvrun.audit.checkpoint import Checkpoint
from kvrun.audit.decisions import Decisions, decision_of
from kvrun.audit.errors import AuditError
from kvrun.audit.record import Event, Record, decode_record
from kvrun.audit.segment import TreePoint
from kvrun.control.alerts import DeviationError
from kvrun.control.follow import Follower, whole_lines
from kvrun.evidence.archive import Archive
from kvrun.evidence.errors import BundleFormatError
from kvrun.evidence.journals import CHECKPOINT_NAME, RECORDS_NAME
from kvrun.evidence.log_trust import LogTrust, UntrustedNoteError
from kvrun.evidence.logs import SAMPLE_NAME, SEGMENTS_NAME, SegmentEntry, parse_entry
from kvrun.evidence.manifest import BundleStatement
from kvrun.evidence.period import Period
from kvrun.evidence.populations import Population, population_of, record_row
from kvrun.evidence.proofs import ProvenRecord
from kvrun.evidence.report import BundleCheck, CheckResult, Findings
from kvrun.evidence.sample import Drawn, Frame, draw

CountKey = tuple[str, str, str, str]
"""Day, event, outcome and policy revision."""


@dataclass(slots=True)
class CheckedLog:
    """A log as the bundle shows it.

    ``roots`` are those at the ends of its segments; ``recounted`` the counts of the period, made
    again from the segments where the bundle has them, and ``decisions`` what policies refused.
    """

    deployment: str
    folder: str
    log: str
    frame: Frame
    roots: dict[int, bytes] = field(default_factory=dict)
    recounted: Counter[CountKey] | None = None
    decisions: Decisions = field(default_factory=Decisions)


@dataclass(slots=True)
class LogChecks:
    """Checks the logs of an archive; ``logs`` and ``proven_rows`` are what other checks need."""

    archive: Archive
    trust: LogTrust
    statement: BundleStatement
    period: Period
    deployments: dict[str, str]
    logs: list[CheckedLog] = field(default_factory=list)
    proven_rows: set[tuple[Population, str]] = field(default_factory=set)
    proven_logs: set[str] = field(default_factory=set)

    def segments_listed(self) -> CheckResult:
        """Whether each log's segments follow each other under checkpoints that it signed."""
        found, cosigned, count = Findings(BundleCheck.LOGS), 0, 0
        for name in self._files(SEGMENTS_NAME):
            try:
                log, entries, witnessed = self._list(name)
                self.logs.append(log)
                count, cosigned = count + entries, cosigned + witnessed
            except BundleFormatError as error:
                found.fail(name, error.message)
        well = f"{len(self.logs)} log(s), {count} segment(s), {cosigned} of them countersigned"
        return found.result(well if self.logs else "no log has a record of the period")

    def segments_whole(self) -> CheckResult:
        """Whether the segments that are in the bundle are what was listed; counts them again."""
        found, records = Findings(BundleCheck.SEGMENTS), 0
        for log in self.logs:
            try:
                records += self._follow(log, found)
            except BundleFormatError as error:
                found.fail(error.name or log.folder, error.message)
        if not self.statement.full:
            return found.result("named by digest only: the counts are the collector's")
        return found.result(f"{records} record(s) followed and counted again")

    def sample(self) -> CheckResult:
        """Whether the sample is the one of the seed, and each of its records in its log."""
        found, asked = Findings(BundleCheck.SAMPLE), self.statement.sample
        expected = set(draw([log.frame for log in self.logs], asked.records, asked.seed))
        for log in self.logs:
            name = f"{log.folder}/{SAMPLE_NAME}"
            for item in self._proven(name, found):
                drawn = Drawn(log.deployment, item.log, item.index)
                root = log.roots.get(item.size)
                if drawn not in expected or item.log != log.log:
                    found.fail(name, f"record {item.index} was not drawn by the seed")
                elif root is None or not item.is_under(root):
                    found.fail(name, f"record {item.index} is not in the log's tree")
                expected.discard(drawn)
        for missing in sorted(expected)[:3]:
            whose = (missing.deployment, missing.log)
            folder = next(log.folder for log in self.logs if (log.deployment, log.log) == whose)
            found.fail(f"{folder}/{SAMPLE_NAME}", f"record {missing.seq} was drawn and is missing")
        total = sum(log.frame.end - log.frame.first for log in self.logs)
        drawn_count = min(asked.records, total)
        return found.result(
            f"{drawn_count} of {total} record(s) by seed {asked.seed!r}, all proven"
        )

    def journals(self) -> CheckResult:
        """Whether the records of the control plane's logs are in theirs."""
        found, count = Findings(BundleCheck.JOURNALS), 0
        for name in self._files(RECORDS_NAME):
            folder = name.rpartition("/")[0]
            try:
                note = self.archive.read(f"{folder}/{CHECKPOINT_NAME}", 1 << 20)
                checkpoint = self.trust.open(note).checkpoint
            except (UntrustedNoteError, BundleFormatError) as error:
                found.fail(f"{folder}/{CHECKPOINT_NAME}", str(error))
                continue
            self.proven_logs.add(checkpoint.origin)
            for item in self._proven(name, found):
                count += 1
                if (item.log, item.size) != (checkpoint.origin, checkpoint.size) or (
                    not item.is_under(checkpoint.root)
                ):
                    found.fail(name, f"record {item.index} is not in the log's tree")
                    continue
                self._take_row(name, item, found)
        return found.result(f"{count} record(s) of control planes' logs, all proven")

    def _files(self, last: str) -> list[str]:
        return [name for name in self.archive.names if name.rpartition("/")[2] == last]

    def _list(self, name: str) -> tuple[CheckedLog, int, int]:
        folder, before = name.rpartition("/")[0], None
        deployment = self.deployments.get("/".join(name.split("/")[:2]))
        if deployment is None:
            raise BundleFormatError("it is of no deployment of the bundle")
        found: CheckedLog | None = None
        count = cosigned = 0
        for line in self.archive.lines(name):
            entry = parse_entry(line)
            try:
                opened = self.trust.open(entry.note.encode(), found.log if found else "")
            except UntrustedNoteError as error:
                raise BundleFormatError(f"{entry.file}: {error}") from None
            tree, end = opened.checkpoint, entry.after
            if found is None:
                frame = Frame(deployment, tree.origin, entry.before.size, entry.before.size)
                found = CheckedLog(deployment, folder, tree.origin, frame)
            if (tree.size, tree.root) != (end.size, end.merkle_frontier().root()):
                raise BundleFormatError(f"{entry.file}: its checkpoint is about other records")
            if (before is not None and entry.before != before) or end.size <= entry.before.size:
                raise BundleFormatError(f"{entry.file} does not follow the segment before it")
            if entry.first_ts >= self.period.until or end.ts < self.period.since:
                raise BundleFormatError(f"{entry.file} is not of the period")
            before = end
            found.roots[end.size] = tree.root
            found.frame = _until(found.frame, end.size)
            count, cosigned = count + 1, cosigned + bool(opened.cosigned_by)
        if found is None:
            raise BundleFormatError("it lists no segment")
        return found, count, cosigned

    def _follow(self, log: CheckedLog, found: Findings) -> int:
        """Follow the segments that are there, and count what they hold."""
        counted: Counter[CountKey] = Counter()
        records = 0
        for line in self.archive.lines(f"{log.folder}/{SEGMENTS_NAME}"):
            entry = parse_entry(line)
            name = f"{log.folder}/{entry.file}"
            if self.archive.has(name) != self.statement.full:
                what = "is missing" if self.statement.full else "has no place in this bundle"
                found.fail(name, f"the segment {what}")
                return 0
            if self.statement.full:
                records += self._follow_one(name, entry, log, counted, found)
        if self.statement.full:
            log.recounted = counted
            self.proven_logs.add(log.log)
        return records

    def _follow_one(
        self,
        name: str,
        entry: SegmentEntry,
        log: CheckedLog,
        counted: Counter[CountKey],
        found: Findings,
    ) -> int:
        checkpoint = Checkpoint(log.log, entry.after.size, log.roots[entry.after.size])
        follower = Follower(log.log, entry.before, [checkpoint])
        try:
            for lines in whole_lines(self.archive.pieces(name)):
                for record in follower.feed(lines):
                    if self.period.has(record.ts):
                        self._count(record, log, counted)
            if _place(follower.point) != _place(entry.after):
                found.fail(name, "it is not the segment that was listed")
        except DeviationError as error:
            found.fail(name, error.message)
        return follower.size - entry.before.size

    def _count(self, record: Record, log: CheckedLog, counted: Counter[CountKey]) -> None:
        key = (record.ts[:10], record.event.value, record.outcome.value, record.policy_revision)
        counted[key] += 1
        if record.event is Event.DENIED:
            decided = decision_of(
                record.ts[:10],
                record.policy_revision,
                record.tier,
                record.outcome.value,
                record.reason,
            )
            if decided is not None:
                log.decisions.add(decided)
        population = population_of(record.event)
        if population is not None:
            row = record_row(population, record, log.deployment)
            self.proven_rows.add((population, row))

    def _proven(self, name: str, found: Findings) -> Iterator[ProvenRecord]:
        try:
            for line in self.archive.lines(name):
                yield _PROVEN.decode(line)
        except (BundleFormatError, msgspec.MsgspecError, UnicodeError) as error:
            found.fail(name, f"it is malformed: {error}")

    def _take_row(self, name: str, item: ProvenRecord, found: Findings) -> None:
        try:
            record = decode_record(item.record.encode())
        except AuditError as error:
            found.fail(name, error.message)
            return
        if record.seq != item.index or not self.period.has(record.ts):
            found.fail(name, f"record {item.index} is not of the period")
            return
        population = population_of(record.event)
        deployment = self.deployments.get("/".join(name.split("/")[:2]), record.deployment)
        if population is not None:
            self.proven_rows.add((population, record_row(population, record, deployment)))


def _until(frame: Frame, end: int) -> Frame:
    return Frame(frame.deployment, frame.log, frame.first, end)


def _place(point: TreePoint) -> tuple[int, list[str], str]:
    return point.size, point.frontier, point.prev


_PROVEN = msgspec.json.Decoder(ProvenRecord)
