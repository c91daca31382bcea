"""What checking a certificate says: named checks, each with a verdict and a code."""

from dataclasses import dataclass
from enum import StrEnum

from kvrun.audit.verdict import Verdict
from kvrun.erasure.certificate import ErasureStatement


class CheckName(StrEnum):
    """The questions, in the order in which they are asked."""

    DOCUMENT = "document"
    SIGNATURE = "signature"
    STATEMENT = "statement"
    SIGNER = "signer"
    TIME = "time"
    LOG = "log"
    WITNESS = "witness"
    CONTROL_LOG = "control_log"
    ERASURE = "erasure"
    SUBJECT = "subject"


class CheckCode(StrEnum):
    """Every answer by name."""

    WELL_FORMED = "well_formed"
    MALFORMED = "malformed"
    CHANGED = "changed"
    UNKNOWN_VERSION = "unknown_version"
    SIGNED = "signed"
    BAD_SIGNATURE = "bad_signature"
    UNDERSTOOD = "understood"
    TRUSTED = "trusted"
    SELF_ASSERTED = "self_asserted"
    WRONG_SIGNER = "wrong_signer"
    REVOKED_SIGNER = "revoked_signer"
    REVOKED_LATER = "revoked_later"
    OUTSIDE_VALIDITY = "outside_validity"
    PLAUSIBLE = "plausible"
    FROM_THE_FUTURE = "from_the_future"
    TIMES_CONTRADICT = "times_contradict"
    INCLUDED = "included"
    NOT_IN_LOG = "not_in_log"
    FOREIGN_LOG = "foreign_log"
    LOG_NOT_SIGNED = "log_not_signed"
    WRONG_LOG_ROOT = "wrong_log_root"
    REVOKED_LOG_KEY = "revoked_log_key"
    LOG_SELF_ASSERTED = "log_self_asserted"
    COSIGNED = "cosigned"
    NO_WITNESS = "no_witness"
    BAD_COSIGNATURE = "bad_cosignature"
    COMPLETE = "complete"
    NOTHING_HELD = "nothing_held"
    LISTS_CHILDREN = "lists_children"
    NOT_YET_COMPLETE = "not_yet_complete"
    UNACKNOWLEDGED = "unacknowledged"
    PAGES_HELD = "pages_held"
    LOGICAL_ONLY = "logical_only"
    VERIFICATION_FAILED = "verification_failed"
    CLAIM_CONTRADICTS = "claim_contradicts"
    OPENED = "opened"
    NOT_OPENED = "not_opened"
    BAD_OPENING = "bad_opening"
    OTHER_SUBJECT = "other_subject"


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer; ``UNKNOWN``: what was handed over cannot answer it."""

    name: CheckName
    verdict: Verdict
    code: CheckCode
    detail: str


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """The checks that were made. ``statement``: what was read, None when nothing could be."""

    checks: tuple[Check, ...]
    statement: ErasureStatement | None

    @property
    def exit_code(self) -> int:
        """1: something failed. 2: nothing did, but a key was only taken from the file. 0: else."""
        if any(item.verdict is Verdict.FAIL for item in self.checks):
            return 1
        return 2 if {item.code for item in self.checks} & _SELF_ASSERTED else 0


def verdict_of(code: CheckCode) -> Verdict:
    """What a code means for its check."""
    if code in _LEAVES_OPEN:
        return Verdict.UNKNOWN
    return Verdict.PASS if code in _PASSES else Verdict.FAIL


_PASSES = {
    CheckCode.WELL_FORMED,
    CheckCode.SIGNED,
    CheckCode.UNDERSTOOD,
    CheckCode.TRUSTED,
    CheckCode.REVOKED_LATER,
    CheckCode.PLAUSIBLE,
    CheckCode.INCLUDED,
    CheckCode.COSIGNED,
    CheckCode.COMPLETE,
    CheckCode.NOTHING_HELD,
    CheckCode.LISTS_CHILDREN,
    CheckCode.OPENED,
}
_LEAVES_OPEN = {
    CheckCode.SELF_ASSERTED,
    CheckCode.LOG_SELF_ASSERTED,
    CheckCode.NO_WITNESS,
    CheckCode.NOT_YET_COMPLETE,
    CheckCode.UNACKNOWLEDGED,
    CheckCode.PAGES_HELD,
    CheckCode.LOGICAL_ONLY,
    CheckCode.NOT_OPENED,
}
_SELF_ASSERTED = {CheckCode.SELF_ASSERTED, CheckCode.LOG_SELF_ASSERTED}
