"""A deployment's collected logs in a bundle: segments by digest or whole, counts, and a sample.

A segment belongs to a period when it overlaps it. What is counted is exact to the day, because a
segment's tally is; the segments themselves are whole, and so is what is drawn from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from kvrun.audit.decisions import DecisionCount, Decisions
from kvrun.audit.merkle import leaf_hashes
from kvrun.audit.record import Count, Digest, Event, decode_record, split_lines
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    SIGNER_NAME,
    Manifest,
    TreePoint,
    segment_name,
)
from kvrun.audit.tally import EventCount, Tallier
from kvrun.control.collected import CollectedLog, checkpoint_name, manifest_name
from kvrun.control.follow import whole_lines
from kvrun.control.remembered import RememberedLog, log_folder
from kvrun.control.tallies import Tallies
from kvrun.evidence.collected import collected_key, tombstones_of
from kvrun.evidence.errors import BundleFormatError, EvidenceError
from kvrun.evidence.period import Period
from kvrun.evidence.populations import (
    Population,
    count_rows,
    decision_rows,
    population_of,
    record_row,
)
from kvrun.evidence.proofs import ProvenRecord, path_at_end, proven
from kvrun.evidence.sample import Drawn, Frame
from kvrun.evidence.scope import Site
from kvrun.evidence.staging import Part, Staging
from kvrun.instance.settings_record import SETTINGS_PREFIX
from kvrun.storage import ObjectMissingError

SEGMENTS_NAME, SAMPLE_NAME = "segments.jsonl", "sample.jsonl"


class SegmentEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of ``segments.jsonl``: what a segment holds and what vouches for it.

    ``note`` is the checkpoint at its end with every cosignature; ``sha256`` and ``file_bytes`` are
    the segment's own file's; ``closed``: whether the log's writer had closed it.
    """

    after: TreePoint
    before: TreePoint
    closed: bool
    file: str
    file_bytes: Count
    first_ts: str
    note: str
    sha256: Digest


class SettingsFact(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the period that says what was set from then on; ``text`` is its reason."""

    at: str
    text: str


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One log as the bundle has it. ``records`` were made in the period, by the counts.

    Records ``first`` up to ``end`` are those of its segments. ``through`` is the time of the last
    record that was collected; ``closed``: whether the period was over by then and its segments
    are. ``revisions`` are the residency policies that records of the period were made under.
    """

    log: str
    folder: str
    first: int
    end: int
    records: int
    segments: int
    size_bytes: int
    through: str
    closed: bool
    counts: dict[str, int]
    revisions: list[str]
    settings: list[SettingsFact]


@dataclass(frozen=True, slots=True)
class _Found:
    """A segment in Storage, or the tail of one, that belongs to the period."""

    entry: SegmentEntry
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class SiteLogs:
    """Reads the logs of one deployment."""

    site: Site
    period: Period

    def remembered(self) -> list[RememberedLog]:
        """The logs that were collected of it, in order."""
        deployment = self.site.config.deployment
        whose = (deployment.workspace, deployment.name)
        return [
            item
            for item in self.site.plane.memory.all()
            if (item.workspace, item.deployment) == whose
        ]

    def folder(self, item: RememberedLog) -> str:
        """A log's folder in the bundle."""
        return f"{self.site.folder}/logs/{log_folder(item.log, item.generation)}"

    def open_counts(self, item: RememberedLog, *, most_bytes: int) -> list[EventCount]:
        """Counts of a log's open segment; none where it is larger."""
        tallier = Tallier()
        if 0 < item.tail_bytes <= most_bytes:
            for lines in self._tail_lines(item, item.tail_bytes):
                tallier.feed(lines)
        return tallier.counts

    def take(self, part: Part, *, full: bool) -> list[LogFacts]:
        """Stage every log that has something of the period. Raises KvrunError."""
        found = (self._take(part, item, full=full) for item in self.remembered())
        return [facts for facts in found if facts is not None]

    def sample(self, part: Part, logs: list[LogFacts], drawn: list[Drawn], staged: Staging) -> None:
        """Stage the drawn records of these logs, which are staged, with their proofs."""
        by_log = {item.log: item for item in self.remembered()}
        for facts in logs:
            wanted = [item.seq for item in drawn if item.log == facts.log]
            entries = read_entries(staged.content(f"{facts.folder}/{SEGMENTS_NAME}"))
            lines = self._proofs(by_log[facts.log], entries, wanted)
            part.add(f"{facts.folder}/{SAMPLE_NAME}", (_line(item) for item in lines))

    def _take(self, part: Part, item: RememberedLog, *, full: bool) -> LogFacts | None:
        collected = CollectedLog.of(self.site.plane.storage(), item)
        folder, found = self.folder(item), list(self._segments(collected, item))
        over = item.stored.ts >= self.period.until
        if not found:
            return None
        part.add(f"{folder}/{SEGMENTS_NAME}", (_line(segment.entry) for segment in found))
        part.add(f"{folder}/{SIGNER_NAME}", collected_key(collected, item))
        for name, note in tombstones_of(collected, self.period):
            part.add(f"{folder}/{name}", note)
        counts: Counter[EventCount] = Counter()
        decisions = Decisions()
        settings: list[SettingsFact] = []
        for segment in found:
            tallied, decided, notable = self._tally(collected, item, segment)
            for count in tallied:
                if self.period.has(count.day):
                    key = msgspec.structs.replace(count, records=0)
                    counts[key] += count.records
            for decision in decided:
                if self.period.has(decision.day):
                    decisions.add(decision)
            settings += self._rows(part, notable)
            if full:
                self._whole(part, folder, collected, item, segment)
        rows = [
            msgspec.structs.replace(key, records=number) for key, number in sorted(counts.items())
        ]
        for line in count_rows(rows, self.site.id, item.log):
            part.row(Population.LOG_EVENTS, line)
        for line in decision_rows(decisions.counts, self.site.id, item.log):
            part.row(Population.POLICY_DECISIONS, line)
        events: Counter[str] = Counter()
        for row in rows:
            events[row.event] += row.records
        return LogFacts(
            log=item.log,
            folder=folder,
            first=found[0].entry.before.size,
            end=found[-1].entry.after.size,
            records=sum(events.values()),
            segments=len(found),
            size_bytes=sum(segment.entry.file_bytes for segment in found),
            through=self.period.until if over else item.seen.ts,
            closed=over or bool(item.retired),
            counts=dict(sorted(events.items())),
            settings=settings,
            revisions=sorted(revisions_of((row.event, row.policy_revision) for row in rows)),
        )

    def _segments(self, collected: CollectedLog, item: RememberedLog) -> Iterator[_Found]:
        for first_seq in collected.manifests():
            if not item.first.size <= first_seq < item.stored.size:
                continue
            manifest = collected.manifest(first_seq)
            if manifest.first_ts < self.period.until and manifest.after.ts >= self.period.since:
                yield _Found(
                    SegmentEntry(
                        after=manifest.after,
                        before=manifest.before,
                        closed=True,
                        file=segment_name(first_seq),
                        file_bytes=manifest.file_bytes,
                        first_ts=manifest.first_ts,
                        note=self._note(collected, manifest),
                        sha256=manifest.sha256,
                    ),
                    manifest,
                )
        found = self._open_segment(item)
        if found is not None:
            yield found

    def _open_segment(self, item: RememberedLog) -> _Found | None:
        """What was collected of a segment that the log's writer has not closed."""
        if not item.tail_bytes or item.seen.ts < self.period.since:
            return None
        first = decode_record(next(self._tail_lines(item, item.tail_bytes)).split(b"\n", 1)[0])
        if first.ts >= self.period.until:
            return None
        digest = sha256()
        for lines in self._tail_lines(item, item.tail_bytes):
            digest.update(lines)
        entry = SegmentEntry(
            after=item.seen,
            before=item.stored,
            closed=False,
            file=segment_name(item.stored.size),
            file_bytes=item.tail_bytes,
            first_ts=first.ts,
            note=item.note,
            sha256=digest.hexdigest(),
        )
        return _Found(entry, None)

    def _note(self, collected: CollectedLog, manifest: Manifest) -> str:
        try:
            return collected.note_at(manifest.after.size).decode()
        except ObjectMissingError:
            return manifest.checkpoint

    def _tally(
        self, collected: CollectedLog, item: RememberedLog, segment: _Found
    ) -> tuple[list[EventCount], list[DecisionCount], list[bytes]]:
        if segment.manifest is None:
            tallier = Tallier()
            for lines in self._tail_lines(item, item.tail_bytes):
                tallier.feed(lines)
            return tallier.counts, tallier.decisions, tallier.notable
        tallies = Tallies(self.site.plane.memory.tallies)
        pieces = collected.pieces(segment.manifest.before.size)
        tally, notable = tallies.of(item.log, item.generation, segment.manifest, pieces)
        return tally.counts, tally.decisions, notable

    def _rows(self, part: Part, notable: Iterable[bytes]) -> Iterator[SettingsFact]:
        """Writes the rows of notable records; those about settings."""
        for line in notable:
            record = decode_record(line)
            population = population_of(record.event)
            if population is not None and self.period.has(record.ts):
                part.row(population, record_row(population, record, self.site.id))
                if population is Population.DEPLOYMENT_CHANGES and record.reason.startswith(
                    SETTINGS_PREFIX
                ):
                    yield SettingsFact(at=record.ts, text=record.reason)

    def _whole(
        self,
        part: Part,
        folder: str,
        collected: CollectedLog,
        item: RememberedLog,
        segment: _Found,
    ) -> None:
        entry = segment.entry
        staged = part.add(f"{folder}/{entry.file}", self._lines(collected, item, entry))
        if staged.sha256 != entry.sha256:
            raise _altered(entry, item.log)
        if segment.manifest is None:
            part.add(f"{folder}/{CHECKPOINT_NAME}", entry.note.encode())
            return
        first, end = entry.before.size, entry.after.size
        part.add(f"{folder}/{manifest_name(first)}", segment.manifest.encode())
        part.add(f"{folder}/{checkpoint_name(end)}", entry.note.encode())

    def _proofs(
        self, item: RememberedLog, entries: Iterable[SegmentEntry], wanted: list[int]
    ) -> Iterator[ProvenRecord]:
        collected = CollectedLog.of(self.site.plane.storage(), item)
        for entry in entries if wanted else ():
            first, end = entry.before.size, entry.after.size
            here = [seq for seq in wanted if first <= seq < end]
            if not here:
                continue
            lines: dict[int, bytes] = {}
            leaves: list[bytes] = []
            for piece in self._lines(collected, item, entry):
                split, at = split_lines(piece), first + len(leaves)
                lines.update((seq, split[seq - at]) for seq in here if at <= seq < at + len(split))
                leaves += leaf_hashes(split)
            before, root = entry.before.merkle_frontier(), entry.after.merkle_frontier().root()
            for seq in here:
                path = path_at_end(before, leaves, seq - first) if seq in lines else []
                found = proven(item.log, lines.get(seq, b""), seq, end, path)
                if not found.is_under(root):
                    raise _altered(entry, item.log)
                yield found

    def _lines(
        self, collected: CollectedLog, item: RememberedLog, entry: SegmentEntry
    ) -> Iterator[bytes]:
        """A segment's records, as far as the entry says."""
        if not entry.closed and item.stored.size == entry.before.size:
            return self._tail_lines(item, entry.file_bytes)
        # What was open when it was listed may have been closed and stored since.
        return whole_lines(_first(collected.pieces(entry.before.size), entry.file_bytes))

    def _tail_lines(self, item: RememberedLog, size_bytes: int) -> Iterator[bytes]:
        path = self.site.plane.memory.tail(item.log)
        return whole_lines(_first(Staging.pieces_of(path), size_bytes))


def revisions_of(counted: Iterable[tuple[str, str]]) -> set[str]:
    """The revisions in force by (event, policy revision) of records; a refused one never was."""
    return {
        revision for event, revision in counted if revision and event != Event.POLICY_REJECTED.value
    }


def read_entries(pieces: Iterable[bytes]) -> Iterator[SegmentEntry]:
    """The lines of ``segments.jsonl``. Raises BundleFormatError for what is none."""
    for lines in whole_lines(pieces):
        for line in split_lines(lines):
            yield parse_entry(line)


def parse_entry(line: bytes) -> SegmentEntry:
    """One of them."""
    try:
        entry = _ENTRY.decode(line)
        entry.before.merkle_frontier()
        entry.after.merkle_frontier()
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise BundleFormatError(f"a line of {SEGMENTS_NAME} is malformed: {error}") from None
    return entry


def frames_of(deployment: str, logs: Iterable[LogFacts]) -> list[Frame]:
    """From which records of a deployment is drawn."""
    return [Frame(deployment, facts.log, facts.first, facts.end) for facts in logs]


def _altered(entry: SegmentEntry, log: str) -> EvidenceError:
    return EvidenceError(
        f"{entry.file} of {log} is not what was collected",
        hint="Try again. If it stays so, Storage may have been tampered with: see `kvrun verify`.",
    )


def _first(pieces: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def _line(value: msgspec.Struct) -> bytes:
    return _ENCODER.encode(value) + b"\n"


_ENCODER = msgspec.json.Encoder(order="sorted")
_ENTRY = msgspec.json.Decoder(SegmentEntry)
