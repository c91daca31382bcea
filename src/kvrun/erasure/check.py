"""Check a certificate from its bytes, offline, without trusting who handed it over. Pure.

Every check has a name, a verdict and a code; ``docs/spec/erasure-certificate.md`` explains each.
``verify/kvrun_verify.py`` and ``verify/verify.html`` give the same results with code of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvrun.audit.attestation import Attestation
from kvrun.audit.checkpoint import OpenedCheckpoint, open_checkpoint
from kvrun.audit.errors import AuditError, NoteFormatError
from kvrun.audit.merkle import leaf_hash, verify_inclusion
from kvrun.audit.note import ED25519, VerifierKey, decode_base64
from kvrun.audit.record import Event, parse_time
from kvrun.audit.verdict import Code
from kvrun.erasure.certificate import (
    ChildOutcome,
    ErasureStatement,
    Outcome,
    decode_statement,
    payload_digest,
)
from kvrun.erasure.commitment import commit, parse_opening
from kvrun.erasure.document import CertificateDocument, parse_certificate, payload_of
from kvrun.erasure.dsse import PAYLOAD_TYPE, is_signed_by, key_id
from kvrun.erasure.errors import CertificateFormatError
from kvrun.erasure.logproof import Logged, is_control_log, parse_log_proof, read_logged
from kvrun.erasure.report import CertificateReport, Check, CheckCode, CheckName, verdict_of
from kvrun.erasure.trust import TrustAnchor, raw_key
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.signing import KeyPurpose, PublicKeyRecord

FUTURE_TOLERANCE_SECONDS = 300.0
CLOCK_TOLERANCE_SECONDS = 5.0


def check_certificate(
    data: bytes,
    *,
    anchor: TrustAnchor | None,
    now: float,
    opening: bytes | None = None,
    subject: str | None = None,
    attested: Sequence[Attestation] = (),
    log_proof: bytes | None = None,
) -> CertificateReport:
    """Check a certificate's bytes. ``now`` in seconds since 1970.

    Without ``anchor`` the signer is self-asserted. ``opening`` shows whom it is about, and
    ``subject`` is the id that it must then name. ``attested``: timestamps of checkpoints, which
    count like a cosignature for the certificate's own one. ``log_proof``: the file beside the
    certificate that shows it in the control plane's log.
    """
    return _Checks(anchor, now, attested).run(data, opening, subject, log_proof)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a document, decoded."""

    document: CertificateDocument
    payload: bytes
    public_key: bytes
    signature: bytes
    logged: Logged


class _Checks:
    def __init__(
        self, anchor: TrustAnchor | None, now: float, attested: Sequence[Attestation]
    ) -> None:
        self.anchor, self.now, self.attested = anchor, now, attested
        self.checks: list[Check] = []
        self.statement: ErasureStatement | None = None

    def run(
        self, data: bytes, opening: bytes | None, subject: str | None, log_proof: bytes | None
    ) -> CertificateReport:
        parts = self._document(data)
        if parts is not None and self._signature(parts):
            statement = self.statement = self._statement(parts)
            if statement is not None:
                opened = self._opened(parts.logged, statement.log)
                problem = self._log_problem(parts, parts.logged, statement.log, opened)
                included = problem is None
                self._signer(parts, statement, opened if included else None)
                self._time(statement)
                self._log(CheckName.LOG, parts.logged, problem)
                self._witness(opened, included)
                if log_proof is not None:
                    self._control_log(parts, statement, log_proof)
                self._erasure(statement)
                self._subject(statement, opening, subject)
        return CertificateReport(tuple(self.checks), self.statement)

    def _say(self, name: CheckName, code: CheckCode, detail: str) -> None:
        self.checks.append(Check(name, verdict_of(code), code, detail))

    def _document(self, data: bytes) -> _Parts | None:
        try:
            document = parse_certificate(data)
            parts = _take_apart(document)
        except AuditError as error:
            self._say(CheckName.DOCUMENT, CheckCode.MALFORMED, error.message)
            return None
        except CertificateFormatError as error:
            self._say(CheckName.DOCUMENT, _format_code(error), error.message)
            return None
        if not document.is_intact():
            what = "the file's checksum does not fit: it is not the file that was issued"
            self._say(CheckName.DOCUMENT, CheckCode.CHANGED, what)
            return None
        self._say(CheckName.DOCUMENT, CheckCode.WELL_FORMED, "one line of canonical JSON")
        return parts

    def _signature(self, parts: _Parts) -> bool:
        stated = parts.document.envelope.signatures[0].keyid
        kind = parts.document.envelope.payload_type
        if stated != key_id(parts.public_key) or not is_signed_by(
            parts.public_key, kind, parts.payload, parts.signature
        ):
            what = "the signature is not the one of this statement by this key"
            self._say(CheckName.SIGNATURE, CheckCode.BAD_SIGNATURE, what)
            return False
        self._say(CheckName.SIGNATURE, CheckCode.SIGNED, f"Ed25519 by key {stated}")
        return True

    def _statement(self, parts: _Parts) -> ErasureStatement | None:
        if parts.document.envelope.payload_type != PAYLOAD_TYPE:
            what = f"unknown payload type {parts.document.envelope.payload_type[:60]!r}"
            self._say(CheckName.STATEMENT, CheckCode.UNKNOWN_VERSION, what)
            return None
        try:
            statement = decode_statement(parts.payload)
        except CertificateFormatError as error:
            self._say(CheckName.STATEMENT, _format_code(error), error.message)
            return None
        what = f"{statement.id}, issued {statement.issued_at}"
        self._say(CheckName.STATEMENT, CheckCode.UNDERSTOOD, what)
        return statement

    def _opened(self, logged: Logged, log: str) -> OpenedCheckpoint:
        """The proof's checkpoint, under keys of that log: no other may speak for it."""
        keys = self._log_keys(logged, log)
        return open_checkpoint(logged.proof.checkpoint, keys, self._witnesses())

    def _log_keys(self, logged: Logged, log: str) -> list[VerifierKey]:
        if self.anchor is None or not self._names_logs():
            return [logged.key]
        known = [key for key in self.anchor.logs() if key.name == log]
        revoked = [VerifierKey(log, ED25519, raw) for raw in self._revoked_log_keys()]
        return known + [key for key in revoked if key not in known]

    def _names_logs(self) -> bool:
        return self.anchor is not None and bool(self.anchor.log_keys or self._revoked_log_keys())

    def _revoked_log_keys(self) -> dict[bytes, int]:
        """Raw checkpoint keys that were revoked, and when (seconds)."""
        return {
            raw_key(key): key.revoked_at
            for key in (self.anchor.keys if self.anchor else ())
            if key.purpose == KeyPurpose.CHECKPOINT.value and key.revoked_at is not None
        }

    def _witnesses(self) -> tuple[VerifierKey, ...]:
        return self.anchor.witnesses() if self.anchor else ()

    def _signer(
        self, parts: _Parts, statement: ErasureStatement, included: OpenedCheckpoint | None
    ) -> None:
        name = key_id(parts.public_key)
        if self.anchor is None:
            what = "the key came with the certificate; give the operator's trust anchor (--trust)"
            self._say(CheckName.SIGNER, CheckCode.SELF_ASSERTED, what)
            return
        known = [
            key
            for key in self.anchor.keys
            if key.purpose == KeyPurpose.CERTIFICATE.value and raw_key(key) == parts.public_key
        ]
        if not known:
            what = f"key {name} is not a certificate key of the trust anchor"
            self._say(CheckName.SIGNER, CheckCode.WRONG_SIGNER, what)
            return
        code, what = self._validity(known[0], parse_time(statement.issued_at), included)
        self._say(CheckName.SIGNER, code, f"key {name} {what}")

    def _validity(
        self, key: PublicKeyRecord, issued: float, included: OpenedCheckpoint | None
    ) -> tuple[CheckCode, str]:
        if issued < key.created_at or (key.valid_until is not None and issued >= key.valid_until):
            return CheckCode.OUTSIDE_VALIDITY, "was not valid when the certificate was issued"
        if key.revoked_at is None:
            return CheckCode.TRUSTED, "is a certificate key of the trust anchor"
        # Whoever stole the key can write any date into a certificate, but not into a cosignature.
        if any(at < key.revoked_at for at in self._seen_at(included)):
            return CheckCode.REVOKED_LATER, "was revoked after a witness had seen the certificate"
        return CheckCode.REVOKED_SIGNER, "is revoked, and no witness saw the certificate before"

    def _seen_at(self, included: OpenedCheckpoint | None) -> list[float]:
        """When others saw the checkpoint over the certificate's record, by their own clocks."""
        if included is None:
            return []
        times = [float(who.time) for who in included.cosigned_by if who.time]
        for item in self.attested:
            if item.code is Code.TIMESTAMPED and not item.problem:
                try:
                    seen = open_checkpoint(item.note, ()).checkpoint
                except NoteFormatError:
                    continue
                times += [item.time] if seen == included.checkpoint else []
        return times

    def _time(self, statement: ErasureStatement) -> None:
        issued = parse_time(statement.issued_at)
        steps = [parse_time(step.at) for step in statement.steps]
        course = [parse_time(statement.request.requested_at), *steps, issued]
        if issued > self.now + FUTURE_TOLERANCE_SECONDS:
            what = f"issued at {statement.issued_at}, later than now"
            self._say(CheckName.TIME, CheckCode.FROM_THE_FUTURE, what)
        elif any(after < before - CLOCK_TOLERANCE_SECONDS for before, after in pairwise(course)):
            what = "request, steps and issue are not in the order of their times"
            self._say(CheckName.TIME, CheckCode.TIMES_CONTRADICT, what)
        else:
            what = f"{issued - course[0]:.1f} s from request to issue, by the operator's clock"
            self._say(CheckName.TIME, CheckCode.PLAUSIBLE, what)

    def _log_problem(
        self, parts: _Parts, logged: Logged, log: str, opened: OpenedCheckpoint
    ) -> tuple[CheckCode, str] | None:
        record, proof, tree = logged.record, logged.proof, opened.checkpoint
        names = {record.log, tree.origin, logged.key.name, log}
        if len(names) > 1:
            return CheckCode.FOREIGN_LOG, f"record, checkpoint and statement name {sorted(names)}"
        about = record.event is Event.CERTIFIED and record.digest == payload_digest(parts.payload)
        if not about or record.seq != proof.index:
            return CheckCode.NOT_IN_LOG, "the log's record is not about this certificate"
        if not opened.signed_by or log in opened.broken:
            return CheckCode.LOG_NOT_SIGNED, "the checkpoint has no valid signature of the log"
        leaf = leaf_hash(logged.line)
        if not verify_inclusion(leaf, proof.index, tree.size, proof.path, tree.root):
            return CheckCode.WRONG_LOG_ROOT, "the record is not in the tree under the checkpoint"
        revoked = self._revoked_log_keys()
        ends = [revoked.get(key.public_key) for key in opened.signed_by]
        if any(end is None or min(self._seen_at(opened), default=end) < end for end in ends):
            return None
        what = "the log's key is revoked, and no witness saw the checkpoint before"
        return CheckCode.REVOKED_LOG_KEY, what

    def _log(self, name: CheckName, logged: Logged, problem: tuple[CheckCode, str] | None) -> None:
        if problem is not None:
            self._say(name, *problem)
            return
        what = f"record {logged.record.seq} of {logged.record.log}, {logged.record.ts}"
        code = CheckCode.INCLUDED if self._names_logs() else CheckCode.LOG_SELF_ASSERTED
        self._say(name, code, what)

    def _control_log(self, parts: _Parts, statement: ErasureStatement, log_proof: bytes) -> None:
        try:
            logged = parse_log_proof(log_proof)
        except CertificateFormatError as error:
            self._say(CheckName.CONTROL_LOG, CheckCode.MALFORMED, error.message)
            return
        log = logged.record.log
        # Whoever made the certificate has the ledger's key, and often the instance's.
        if log == statement.log or not is_control_log(log, statement.scope.workspace):
            what = f"{log} is no control plane's log"
            self._say(CheckName.CONTROL_LOG, CheckCode.FOREIGN_LOG, what)
            return
        problem = self._log_problem(parts, logged, log, self._opened(logged, log))
        self._log(CheckName.CONTROL_LOG, logged, problem)

    def _witness(self, opened: OpenedCheckpoint, included: bool) -> None:
        broken = sorted(set(opened.broken) & {key.name for key in self._witnesses()})
        names = sorted({who.name for who in opened.cosigned_by})
        if broken:
            what = f"the cosignature of {', '.join(broken)} is not valid"
            self._say(CheckName.WITNESS, CheckCode.BAD_COSIGNATURE, what)
        elif names and included:
            what = f"{', '.join(names)} saw the log with this certificate in it"
            self._say(CheckName.WITNESS, CheckCode.COSIGNED, what)
        else:
            what = "no cosignature of a known witness"
            self._say(CheckName.WITNESS, CheckCode.NO_WITNESS, what)

    def _erasure(self, statement: ErasureStatement) -> None:
        self._say(CheckName.ERASURE, *_erasure(statement, self.now))

    def _subject(
        self, statement: ErasureStatement, opening: bytes | None, subject: str | None
    ) -> None:
        self._say(CheckName.SUBJECT, *_subject(statement, opening, subject))


def _take_apart(document: CertificateDocument) -> _Parts:
    parts = _Parts(
        document,
        payload_of(document),
        decode_base64(document.public_key),
        decode_base64(document.envelope.signatures[0].sig),
        read_logged(document.log),
    )
    if len(parts.public_key) != 32 or len(parts.signature) != 64:
        raise NoteFormatError("an Ed25519 public key has 32 bytes and a signature 64")
    return parts


def _erasure(statement: ErasureStatement, now: float) -> tuple[CheckCode, str]:
    failed = [item.name for item in statement.verification if item.outcome is Outcome.FAIL]
    held = statement.claim_class is not None
    pending = [
        item.deployment for item in statement.children if item.outcome is ChildOutcome.PENDING
    ]
    if failed:
        return CheckCode.VERIFICATION_FAILED, f"failed after the erasure: {', '.join(failed)}"
    if {held, bool(statement.keys), statement.root is not None} != {held}:
        return CheckCode.CLAIM_CONTRADICTS, "class, destroyed keys and root do not fit together"
    if statement.unacknowledged or pending:
        names = ", ".join([*statement.unacknowledged, *pending])
        return CheckCode.UNACKNOWLEDGED, f"not confirmed when issued: {names}"
    if statement.claim_class is ClaimClass.LOGICAL:
        what = "a key deletion record: the root's medium may keep the key; this is no erasure"
        return CheckCode.LOGICAL_ONLY, what
    if statement.gpu.held:
        what = f"{statement.gpu.held} page(s) of engine memory were still held when issued"
        return CheckCode.PAGES_HELD, what
    if any(item.outcome is ChildOutcome.ERASED for item in statement.children):
        count = sum(item.outcome is ChildOutcome.ERASED for item in statement.children)
        return (
            CheckCode.LISTS_CHILDREN,
            f"{count} certificate(s) of deployments: check each of them",
        )
    if statement.claim_class is None:
        return CheckCode.NOTHING_HELD, "nothing was held, so no key was destroyed"
    if parse_time(statement.complete_after) > now:
        what = f"complete after {statement.complete_after}, when snapshots have expired"
        return CheckCode.NOT_YET_COMPLETE, what
    what = f"class {statement.claim_class.value}, {len(statement.keys)} key(s) destroyed"
    return CheckCode.COMPLETE, what


def _subject(
    statement: ErasureStatement, opening: bytes | None, subject: str | None
) -> tuple[CheckCode, str]:
    if opening is None:
        if subject is not None:
            return CheckCode.BAD_OPENING, "a subject can only be checked with its opening"
        return CheckCode.NOT_OPENED, "whom it is about shows with the opening (--opening)"
    try:
        opened = parse_opening(opening)
    except CertificateFormatError as error:
        return CheckCode.BAD_OPENING, error.message
    if commit(opening) not in statement.scope.commitments:
        return CheckCode.BAD_OPENING, "the opening does not fit any commitment in the certificate"
    where = [opened.tenant and f"tenant {opened.tenant}", opened.deployment, opened.workspace]
    around = ", ".join(filter(None, where))
    found = f"{opened.kind.value} {opened.id}" + (f" ({around})" if around else "")
    if subject is not None and subject != opened.id:
        return CheckCode.OTHER_SUBJECT, f"it is about {found}"
    return CheckCode.OPENED, f"it is about {found}"


def _format_code(error: CertificateFormatError) -> CheckCode:
    return CheckCode.UNKNOWN_VERSION if error.unknown_version else CheckCode.MALFORMED
