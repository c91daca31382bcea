"""What a verification says: four separate verdicts, and named findings behind them."""

from dataclasses import dataclass
from enum import StrEnum


class Aspect(StrEnum):
    """The four questions, which have separate answers."""

    INTEGRITY = "integrity"
    COMPLETENESS = "completeness"
    FRESHNESS = "freshness"
    WITNESSED = "witnessed"


class Verdict(StrEnum):
    """``UNKNOWN`` means that what was handed over cannot answer the question."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    UNKNOWN = "unknown"


class Code(StrEnum):
    """Every finding by name; ``docs/spec/audit-log.md`` explains each."""

    MALFORMED = "malformed"
    TORN = "torn"
    FOREIGN_LOG = "foreign_log"
    OUT_OF_ORDER = "out_of_order"
    CHAIN_BROKEN = "chain_broken"
    EPOCH_ORDER = "epoch_order"
    MISSING_RECORDS = "missing_records"
    MANIFEST_MISMATCH = "manifest_mismatch"
    BAD_CHECKPOINT = "bad_checkpoint"
    NOT_SIGNED = "not_signed"
    ROOT_MISMATCH = "root_mismatch"
    FORKED = "forked"
    NO_CHECKPOINT = "no_checkpoint"
    COVERED = "covered"
    SELF_ASSERTED = "self_asserted"
    LOG_MISSING = "log_missing"
    TRUNCATED = "truncated"
    ROLLED_BACK = "rolled_back"
    STARTS_LATE = "starts_late"
    PRUNED = "pruned"
    BAD_TOMBSTONE = "bad_tombstone"
    RECORDS_LOST = "records_lost"
    GAP = "gap"
    TAIL_NOT_ANCHORED = "tail_not_anchored"
    ANCHORED = "anchored"
    CLOCK_BACKWARDS = "clock_backwards"
    FROM_THE_FUTURE = "from_the_future"
    SILENCE = "silence"
    STALE = "stale"
    LAST_RECORD = "last_record"
    NO_WITNESS = "no_witness"
    COSIGNED = "cosigned"
    BAD_COSIGNATURE = "bad_cosignature"
    COMMITTED = "committed"
    TIMESTAMPED = "timestamped"
    BAD_EVIDENCE = "bad_evidence"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. ``verdict``: what it means for its aspect (PASS supports, FAIL refutes)."""

    aspect: Aspect
    code: Code
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result for one log: records ``first_seq`` up to but without ``next_seq`` were seen."""

    log_id: str
    first_seq: int
    next_seq: int
    trusted_key: bool
    findings: tuple[Finding, ...]

    def verdict(self, aspect: Aspect) -> Verdict:
        """FAIL if anything failed, PASS if something supports it and nothing leaves it open."""
        found = {item.verdict for item in self.findings if item.aspect is aspect}
        for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS):
            if verdict in found:
                return verdict
        return Verdict.UNKNOWN

    def codes(self, aspect: Aspect | None = None) -> set[Code]:
        """The codes found, of one aspect or of all."""
        return {item.code for item in self.findings if aspect in (None, item.aspect)}

    @property
    def exit_code(self) -> int:
        """1: something failed. 2: nothing did, but no trusted key was given. 0: otherwise."""
        if any(item.verdict is Verdict.FAIL for item in self.findings):
            return 1
        return 0 if self.trusted_key else 2
