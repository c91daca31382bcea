"""Verify a log from its bytes: integrity, completeness, freshness, witnessed. Pure.

Nothing here trusts the writer: what only its own files say is reported as such. The caller
brings what the writer cannot forge: the log's public key, and checkpoints that somebody else
remembered or witnesses cosigned.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

from kvrun.audit.attestation import Attestation
from kvrun.audit.chain import BreakKind, ChainPoint, ChainWalker
from kvrun.audit.checkpoint import OpenedCheckpoint, continuous_keys, open_checkpoint
from kvrun.audit.errors import AuditError, AuditRecordError, NoteFormatError
from kvrun.audit.merkle import Frontier
from kvrun.audit.note import VerifierKey, parse_verifier_key
from kvrun.audit.pruned import judge_start
from kvrun.audit.record import Record, decode_record, format_time, parse_time
from kvrun.audit.segment import Manifest, TreePoint, parse_manifest
from kvrun.audit.verdict import Aspect, Code, Finding, Verdict, VerificationReport
from kvrun.audit.witnessed import witness_findings

CLOCK_TOLERANCE_SECONDS = 5.0
FUTURE_TOLERANCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """One segment: a label for messages, its bytes in chunks of whole lines, its manifest."""

    name: str
    chunks: Callable[[], Iterable[bytes]]
    manifest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """What the verifier knows from elsewhere than the log.

    ``keys``: the log's verifier keys. ``witnesses``: keys of cosigning parties. ``remembered``:
    signed checkpoints that another party kept. ``attested``: checkpoints that witnesses keep or
    timestamped; those of other logs are passed over. ``now`` (seconds since 1970) with
    ``max_age_seconds`` asks that the last record be recent. ``max_silence_seconds``: the longest
    pause of a running writer, which records a heartbeat every minute unless set otherwise.
    """

    keys: tuple[VerifierKey, ...] = ()
    witnesses: tuple[VerifierKey, ...] = ()
    remembered: tuple[bytes, ...] = ()
    attested: tuple[Attestation, ...] = ()
    now: float | None = None
    max_age_seconds: float | None = None
    max_silence_seconds: float = 300.0


def verify_log(
    segments: Sequence[SegmentSource],
    *,
    latest: bytes | None = None,
    claimed_key: str = "",
    tombstones: Sequence[bytes] = (),
    trust: Trust,
) -> VerificationReport:
    """Verify segments in order, with the checkpoint and the key that lie beside them.

    ``latest`` and ``claimed_key`` come from the log itself and are used as such: without a key in
    ``trust`` the signer is self-asserted. Memory is bounded by one chunk and its records.
    """
    return _Verification(trust, claimed_key, tombstones).run(segments, latest)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A signed size and root, where it came from, and who remembered it."""

    opened: OpenedCheckpoint
    source: str
    remembered: bool
    attestation: Attestation | None = None


class _Verification:
    def __init__(self, trust: Trust, claimed_key: str, tombstones: Sequence[bytes]) -> None:
        self.trust, self.tombstones = trust, tombstones
        self.findings: list[Finding] = []
        self.claimed_key = claimed_key
        self.attested = list(trust.attested)
        self.keys = trust.keys
        self.log_id = ""
        self.anchors: list[_Anchor] = []
        self.checked: list[_Anchor] = []
        self.matching: list[_Anchor] = []
        self.first_seq = 0
        self.frontier: Frontier | None = None
        self.walker: ChainWalker | None = None
        self.last: Record | None = None

    def run(self, segments: Sequence[SegmentSource], latest: bytes | None) -> VerificationReport:
        manifests = [self._manifest(item) for item in segments]
        if not self.keys:
            self._adopt_claimed_key(manifests)
        for note in self.trust.remembered:
            self._anchor(note, "the remembered checkpoint", remembered=True)
        if latest is not None:
            self._anchor(latest, "the log's latest checkpoint")
        for source, manifest in zip(segments, manifests, strict=True):
            self._segment(source, manifest, last=source is segments[-1])
        self._conclude()
        next_seq = self.walker.point.next_seq if self.walker and self.walker.point else 0
        return VerificationReport(
            self.log_id,
            self.first_seq,
            next_seq,
            bool(self.trust.keys),
            tuple(self.findings),
        )

    def _say(self, aspect: Aspect, code: Code, verdict: Verdict, detail: str) -> None:
        self.findings.append(Finding(aspect, code, verdict, detail))

    def _fail(self, aspect: Aspect, code: Code, detail: str) -> None:
        self._say(aspect, code, Verdict.FAIL, detail)

    def _manifest(self, source: SegmentSource) -> Manifest | None:
        if source.manifest is None:
            return None
        try:
            manifest = parse_manifest(source.manifest)
            manifest.before.merkle_frontier()
            manifest.after.merkle_frontier()
        except (AuditError, ValueError) as error:
            self._fail(Aspect.INTEGRITY, Code.MANIFEST_MISMATCH, f"{source.name}: {error}")
            return None
        return manifest

    def _adopt_claimed_key(self, manifests: Sequence[Manifest | None]) -> None:
        texts = [self.claimed_key, *(item.signer for item in manifests if item)]
        found: list[VerifierKey] = []
        for text in dict.fromkeys(filter(None, texts)):
            try:
                found.append(parse_verifier_key(text))
            except NoteFormatError as error:
                if not found:
                    self._fail(Aspect.INTEGRITY, Code.BAD_CHECKPOINT, error.message)
        notes = [item.checkpoint.encode() for item in manifests if item]
        self.keys = continuous_keys(found, notes)

    def _anchor(self, note: bytes, source: str, *, remembered: bool = False) -> None:
        try:
            opened = open_checkpoint(note, self.keys, self.trust.witnesses)
        except NoteFormatError as error:
            self._fail(Aspect.INTEGRITY, Code.BAD_CHECKPOINT, f"{source}: {error.message}")
            return
        origin = opened.checkpoint.origin
        self.log_id = self.log_id or origin
        witness_names = {key.name for key in self.trust.witnesses}
        for name in opened.broken:
            if name in witness_names:
                what = f"{source}: the cosignature of {name} is not valid"
                self._fail(Aspect.WITNESSED, Code.BAD_COSIGNATURE, what)
        if origin != self.log_id:
            self._fail(Aspect.INTEGRITY, Code.FOREIGN_LOG, f"{source} belongs to log {origin}")
        elif not opened.is_signed or set(opened.broken) - witness_names:
            what = f"{source} carries no valid signature of the log's key"
            self._fail(Aspect.INTEGRITY, Code.NOT_SIGNED, what)
        else:
            anchor = _Anchor(opened, source, remembered)
            self.anchors.append(anchor)
            if self.frontier is not None:
                self._check_anchor(anchor, self.frontier)

    def _take_attested(self) -> None:
        """Anchor what witnesses attest of this log; bad evidence fails nothing but its own."""
        attested, self.attested = self.attested, []
        for item in attested:
            try:
                opened = open_checkpoint(item.note, self.keys, self.trust.witnesses)
            except NoteFormatError as error:
                what = f"{item.by}: {error.message}"
                self._fail(Aspect.WITNESSED, Code.BAD_EVIDENCE, what)
                continue
            self.log_id = self.log_id or opened.checkpoint.origin
            if opened.checkpoint.origin != self.log_id:
                continue
            signed = opened.is_signed and not {key.name for key in self.keys} & set(opened.broken)
            problem = item.problem or ("" if signed else "not signed by the log's key")
            if problem:
                what = f"{item.by}, {opened.checkpoint.size} records: {problem}"
                self._fail(Aspect.WITNESSED, Code.BAD_EVIDENCE, what)
            else:
                self.anchors.append(_Anchor(opened, f"a checkpoint of {item.by}", True, item))

    def _begin(self, source: SegmentSource, manifest: Manifest | None, chunk: bytes) -> None:
        """Find where the first segment starts, from its own first record."""
        line = chunk.split(b"\n", 1)[0]
        try:
            first = decode_record(line)
        except AuditRecordError:
            first = None
        named = first.log if first else (manifest.log if manifest else "")
        self.log_id = self.log_id or named
        self._take_attested()
        self.first_seq = first.seq if first else (manifest.before.size if manifest else 0)
        start: TreePoint | None = None
        if manifest is not None:
            start = manifest.before
        elif self.first_seq == 0:
            start = TreePoint.of(ChainPoint.start(self.log_id), Frontier())
        if start is not None:
            if start.size == 0:
                start = TreePoint.of(ChainPoint.start(self.log_id), Frontier())
            self.first_seq = start.size
            self.frontier = start.merkle_frontier()
        self.walker = ChainWalker(self.log_id, start.chain_point() if start else None)
        if self.first_seq:
            signers, notes = self.trust.witnesses, self.tombstones
            self.findings += judge_start(self.log_id, start, self.first_seq, notes, signers)
        if self.frontier is not None:
            for anchor in self.anchors:
                self._check_anchor(anchor, self.frontier)

    def _segment(self, source: SegmentSource, manifest: Manifest | None, *, last: bool) -> None:
        digest, length = sha256(), 0
        for chunk in source.chunks():
            if self.walker is None:
                self._begin(source, manifest, chunk)
            if manifest is not None:
                digest.update(chunk)
            length += len(chunk)
            if not chunk.endswith(b"\n"):
                whole, torn = chunk[: chunk.rfind(b"\n") + 1], not last or manifest is not None
                verdict = Verdict.FAIL if torn else Verdict.PASS
                what = f"{source.name} ends within a record"
                self._say(Aspect.INTEGRITY, Code.TORN, verdict, what)
                chunk = whole
            self._lines(chunk)
        if manifest is None or self.walker is None:
            return
        if manifest.log != self.log_id:
            what = f"the manifest of {source.name} belongs to log {manifest.log}"
            self._fail(Aspect.INTEGRITY, Code.FOREIGN_LOG, what)
            return
        point, frontier = self.walker.point, self.frontier
        after = TreePoint.of(point, frontier) if point and frontier else None
        content = (manifest.sha256, manifest.file_bytes) == (digest.hexdigest(), length)
        if after != manifest.after or not content:
            what = f"{source.name} is not what its manifest describes"
            self._fail(Aspect.INTEGRITY, Code.MANIFEST_MISMATCH, what)
        self._anchor(manifest.checkpoint.encode(), f"the manifest of {source.name}")

    def _lines(self, chunk: bytes) -> None:
        walker, frontier = self.walker, self.frontier
        if walker is None or not chunk:
            return
        records, leaves = walker.feed(chunk)
        self._times(records)
        if frontier is None:
            return
        position = 0
        due: dict[int, list[_Anchor]] = {}
        for anchor in self.anchors:
            if anchor.opened.checkpoint.size > frontier.size:
                due.setdefault(anchor.opened.checkpoint.size, []).append(anchor)
        for size in sorted(due):
            count = size - frontier.size
            if position + count > len(leaves):
                break
            frontier.extend(leaves[position : position + count])
            position += count
            for anchor in due[size]:
                self._check_anchor(anchor, frontier)
        frontier.extend(leaves[position:])

    def _check_anchor(self, anchor: _Anchor, frontier: Frontier) -> None:
        checkpoint = anchor.opened.checkpoint
        if checkpoint.size != frontier.size or anchor in self.checked:
            return
        self.checked.append(anchor)
        if frontier.root() == checkpoint.root:
            self.matching.append(anchor)
            return
        code = Code.FORKED if anchor.remembered else Code.ROOT_MISMATCH
        what = f"the first {checkpoint.size} records are not the ones under {anchor.source}"
        self._fail(Aspect.INTEGRITY, code, what)

    def _times(self, records: list[Record]) -> None:
        if not records:
            return
        previous, self.last = self.last, records[-1]
        times = [record.ts for record in records]
        if previous is not None:
            times.insert(0, previous.ts)
        if times == sorted(times) and not self._has_pause(times):
            return
        for record in records:
            if previous is not None:
                self._pair(previous, record)
            previous = record

    def _has_pause(self, times: list[str]) -> bool:
        if times[0][:16] == times[-1][:16]:
            return False
        minutes = sorted({text[:16] for text in times})
        try:
            seconds = [parse_time(f"{text}:00.000000Z") for text in minutes]
        except ValueError:
            return True
        limit = self.trust.max_silence_seconds - 60
        return any(b - a > limit for a, b in pairwise(seconds))

    def _pair(self, before: Record, after: Record) -> None:
        try:
            step = parse_time(after.ts) - parse_time(before.ts)
        except ValueError as error:
            self._fail(Aspect.INTEGRITY, Code.MALFORMED, f"record {after.seq}: {error}")
            return
        if step < -CLOCK_TOLERANCE_SECONDS:
            what = f"the clock steps back by {-step:.0f} s at record {after.seq}"
            self._fail(Aspect.FRESHNESS, Code.CLOCK_BACKWARDS, what)
        elif step > self.trust.max_silence_seconds and after.epoch == before.epoch:
            what = f"no record and no heartbeat for {step:.0f} s before record {after.seq}"
            self._fail(Aspect.FRESHNESS, Code.SILENCE, what)

    def _conclude(self) -> None:
        self._take_attested()
        walker = self.walker
        for item in walker.breaks if walker else ():
            code = Code(item.kind.value)
            aspects = [Aspect.INTEGRITY]
            if item.kind is BreakKind.MISSING_RECORDS:
                aspects.append(Aspect.COMPLETENESS)
            for aspect in aspects:
                self._fail(aspect, code, f"at record {item.seq}: {item.detail}")
        size = walker.point.next_seq if walker and walker.point else 0
        covered = [item for item in self.matching if item.opened.checkpoint.size <= size]
        self._conclude_integrity(size, covered)
        self._conclude_completeness(size, covered)
        self._conclude_freshness()
        self.findings += witness_findings([(item.opened, item.attestation) for item in covered])

    def _conclude_integrity(self, size: int, covered: Sequence[_Anchor]) -> None:
        reach = max((item.opened.checkpoint.size for item in covered), default=0)
        if not reach:
            what = "no signed checkpoint covers these records; only their chain was checked"
            self._say(Aspect.INTEGRITY, Code.NO_CHECKPOINT, Verdict.UNKNOWN, what)
        else:
            what = f"{reach - self.first_seq} records are under a signed checkpoint"
            if size > reach:
                what += f", {size - reach} newer ones only in the chain"
            self._say(Aspect.INTEGRITY, Code.COVERED, Verdict.PASS, what)
        if self.keys and not self.trust.keys:
            what = "the signing key was taken from the log itself; give the key you trust"
            self._say(Aspect.INTEGRITY, Code.SELF_ASSERTED, Verdict.PASS, what)

    def _conclude_completeness(self, size: int, covered: Sequence[_Anchor]) -> None:
        for anchor in self.anchors:
            wanted = anchor.opened.checkpoint.size
            if wanted <= size:
                continue
            code = Code.ROLLED_BACK if anchor.remembered else Code.TRUNCATED
            code = code if self.walker else Code.LOG_MISSING
            what = f"{anchor.source} covers {wanted} records, but the log ends at {size}"
            self._fail(Aspect.COMPLETENESS, code, what)
        for gap in self.walker.gaps if self.walker else ():
            what = f"record {gap.seq} is a gap ({gap.reason}), {gap.lost} records lost"
            if gap.lost:
                self._fail(Aspect.COMPLETENESS, Code.RECORDS_LOST, what)
            else:
                self._say(Aspect.COMPLETENESS, Code.GAP, Verdict.PASS, what)
        outside = [item for item in covered if item.remembered or item.opened.cosigned_by]
        if outside:
            reach = max(item.opened.checkpoint.size for item in outside)
            what = f"all of the first {reach} records that another party vouches for are here"
            self._say(Aspect.COMPLETENESS, Code.ANCHORED, Verdict.PASS, what)
        else:
            what = "no checkpoint from another party: a cut or replaced tail would not show"
            self._say(Aspect.COMPLETENESS, Code.TAIL_NOT_ANCHORED, Verdict.UNKNOWN, what)

    def _conclude_freshness(self) -> None:
        if self.last is None:
            return
        now, max_age = self.trust.now, self.trust.max_age_seconds
        last = f"the last record is of {self.last.ts}, by the writer's clock"
        try:
            seconds = parse_time(self.last.ts)
        except ValueError as error:
            self._fail(Aspect.INTEGRITY, Code.MALFORMED, f"record {self.last.seq}: {error}")
            return
        if now is not None and seconds > now + FUTURE_TOLERANCE_SECONDS:
            what = f"{last}, later than now ({format_time(now)})"
            self._fail(Aspect.FRESHNESS, Code.FROM_THE_FUTURE, what)
        elif now is None or max_age is None:
            self._say(Aspect.FRESHNESS, Code.LAST_RECORD, Verdict.UNKNOWN, last)
        elif now - seconds > max_age:
            what = f"{last}: {now - seconds:.0f} s ago, {max_age:.0f} s are allowed"
            self._fail(Aspect.FRESHNESS, Code.STALE, what)
        else:
            self._say(Aspect.FRESHNESS, Code.LAST_RECORD, Verdict.PASS, last)
