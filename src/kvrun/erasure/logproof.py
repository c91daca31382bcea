"""That a log holds a certificate's record: within the certificate, or in a file beside it. Pure.

The file says it of another log than the one that the certificate names: the control plane's.
``docs/spec/erasure-certificate.md`` specifies it.
"""

from dataclasses import dataclass

import msgspec

from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.errors import AuditError, NoteFormatError
from kvrun.audit.note import ED25519, VerifierKey, parse_verifier_key
from kvrun.audit.proof import LogProof, parse_proof
from kvrun.audit.record import Record, decode_record
from kvrun.erasure.errors import CertificateFormatError

FORMAT = "kvrun-log-proof/v1"
MAX_LOG_PROOF_BYTES = 1 << 20


class LogInclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That a log holds the certificate's record.

    ``record``: the record's line without newline. ``proof``: C2SP tlog-proof text with a signed
    checkpoint. ``key``: the log's C2SP verifier key, as the log itself states it.
    """

    key: str
    proof: str
    record: str


@dataclass(frozen=True, slots=True)
class Logged:
    """The parts of an inclusion, decoded. ``line`` is the record's bytes without newline."""

    record: Record
    line: bytes
    proof: LogProof
    key: VerifierKey


def read_logged(inclusion: LogInclusion) -> Logged:
    """The parts of an inclusion. Raises AuditError for malformed ones; verifies nothing."""
    line = inclusion.record.encode()
    proof = parse_proof(inclusion.proof.encode())
    logged = Logged(decode_record(line), line, proof, parse_verifier_key(inclusion.key))
    open_checkpoint(proof.checkpoint, ())
    if logged.key.algorithm != ED25519 or inclusion.key != logged.key.text():
        raise NoteFormatError("the log's verifier key is not in its one form, of type 1")
    if proof.extra:
        raise NoteFormatError("a certificate's log proof has no extra data")
    return logged


def make_log_proof(inclusion: LogInclusion) -> bytes:
    """The bytes of the file beside the certificate."""
    file = _LogProofFile(
        format=FORMAT, key=inclusion.key, proof=inclusion.proof, record=inclusion.record
    )
    return _ENCODER.encode(file) + b"\n"


def parse_log_proof(data: bytes) -> Logged:
    """What such a file says. Raises CertificateFormatError; verifies nothing."""
    if len(data) > MAX_LOG_PROOF_BYTES:
        raise CertificateFormatError(f"a log proof has at most {MAX_LOG_PROOF_BYTES} bytes")
    try:
        file = _DECODER.decode(data)
        canonical = _ENCODER.encode(file) + b"\n"
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CertificateFormatError(f"not a log proof: {error}") from None
    if canonical != data or file.format != FORMAT:
        raise CertificateFormatError(
            f"not a log proof in the form {FORMAT}: one line of canonical JSON and a newline"
        )
    try:
        return read_logged(file)
    except AuditError as error:
        raise CertificateFormatError(f"the log proof is malformed: {error.message}") from None


def is_control_log(log: str, workspace: str) -> bool:
    """Whether ``log`` can be a control plane's: ``WORKSPACE/control/HOST``.

    The name of the certificate's ``workspace`` may hold slashes; another one's may not.
    """
    own = f"{workspace}/"
    rest = log.removeprefix(own) if log.startswith(own) else log.partition("/")[2]
    kind, _, host = rest.partition("/")
    return kind == "control" and host != "" and "/" not in host


class _LogProofFile(LogInclusion, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(_LogProofFile)
