"""What an erasure certificate states, and its canonical bytes. Pure.

The statement is an in-toto Statement v1 (https://github.com/in-toto/attestation) whose predicate is
``ErasureStatement``; ``docs/spec/erasure-certificate.md`` explains every field. Its bytes are the
canonical JSON of RFC 8785. msgspec writes them directly, because the schema keeps to the subset in
which the two agree: ASCII keys, text without control characters, whole numbers from 0 to 2^53 - 1.
"""

from enum import StrEnum
from hashlib import sha256
from typing import Annotated

import msgspec

from kvrun.audit.record import format_time, parse_time
from kvrun.erasure.errors import CertificateFormatError
from kvrun.keys.filesystem import ClaimClass

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
CERTIFICATE_TYPE = "https://kvrun.dev/erasure-certificate/v1"
DELETION_RECORD_TYPE = "https://kvrun.dev/key-deletion-record/v1"
PARENT_TYPE = "https://kvrun.dev/erasure-parent/v1"
MAX_PAYLOAD_BYTES = 64 << 20
MAX_NUMBER = 2**53 - 1
DAY_SECONDS = 86_400


Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class RequestKind(StrEnum):
    """What somebody asked to erase."""

    SESSION = "session"
    TENANT = "tenant"
    TENANTS = "tenants"
    USER = "user"
    DEPLOYMENT = "deployment"
    WORKSPACE = "workspace"
    ACCOUNT = "account"


class Outcome(StrEnum):
    """How one verification of the erasure ended; ``SKIPPED`` with the reason in the detail."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    SKIPPED = "skipped"


class ChildOutcome(StrEnum):
    """What became of one deployment that a parent certificate lists."""

    ERASED = "erased"
    NOTHING_HELD = "nothing_held"
    PENDING = "pending"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Request(_Part, frozen=True, kw_only=True):
    """Who asked for what, and why. ``requested_at`` as :func:`kvrun.audit.record.format_time`."""

    id: str
    kind: RequestKind
    requester: str
    reference: str = ""
    legal_basis: str = ""
    requested_at: str


class Scope(_Part, frozen=True, kw_only=True):
    """Where it was erased, and whom: SHA-256 commitments (hex) to the erased ids, one a subject.

    ``commitments`` come from :func:`kvrun.erasure.commitment.commit`, in rising order.
    """

    workspace: str
    deployment: str = ""
    commitments: list[str]


class DestroyedKeyEntry(_Part, frozen=True, kw_only=True):
    """A session key that exists no more. Ids and references are hex, as in the audit log."""

    key_id: str
    generation: Count
    session_ref: str
    tenant_ref: str


class RootEntry(_Part, frozen=True, kw_only=True):
    """The root and what it says of the epoch key it destroyed.

    ``evidence`` in words: "slot overwritten, fdatasync, read back direct".
    """

    kind: str
    root_id: str = ""
    epoch_destroyed: Count
    evidence: str
    read_back: str = ""


class TierEntry(_Part, frozen=True, kw_only=True):
    """What became unreadable on one tier; ``unlinked``: whether all of it was deleted as well."""

    tier: str
    blocks: Count
    bytes: Count
    unlinked: bool


class GpuEntry(_Part, frozen=True, kw_only=True):
    """Pages of engine memory: taken out of the prefix cache, zeroed, and still held by requests."""

    evicted: Count = 0
    scrubbed: Count = 0
    held: Count = 0


class VerificationEntry(_Part, frozen=True, kw_only=True):
    """One check that was made after the erasure: ``canary``, ``slot_read_back``, ..."""

    name: str
    outcome: Outcome
    detail: str = ""


class StepEntry(_Part, frozen=True, kw_only=True):
    """When a step of the erasure ended, as :func:`kvrun.audit.record.format_time`."""

    name: str
    at: str


class SnapshotRetention(_Part, frozen=True, kw_only=True):
    """For how many days snapshots of the root and of the machine are kept, as declared."""

    root: Count = 0
    machine: Count = 0


class ChildEntry(_Part, frozen=True, kw_only=True):
    """One deployment of a parent certificate; ``payload_sha256`` (hex) names its own document."""

    deployment: str
    outcome: ChildOutcome
    certificate_id: str = ""
    payload_sha256: str = ""


class Software(_Part, frozen=True, kw_only=True):
    """Which program erased."""

    name: str = "kvrun"
    version: str


class ErasureStatement(_Part, frozen=True, kw_only=True, omit_defaults=False):
    """Everything that one certificate states. Times are RFC 3339 UTC with microseconds.

    ``claim_class`` None: nothing was held, so no key was destroyed. ``log``: id of the log that
    holds the record of this certificate. ``exclusions``: what it does not cover, in plain words.
    ``unacknowledged``: instances that had not confirmed when it was issued, each with the time at
    which their lease ended.
    """

    id: str
    issued_at: str
    request: Request
    scope: Scope
    keys: list[DestroyedKeyEntry]
    root: RootEntry | None = None
    tiers: list[TierEntry]
    gpu: GpuEntry
    verification: list[VerificationEntry]
    claim_class: ClaimClass | None
    complete_after: str
    snapshot_retention_days: SnapshotRetention
    exclusions: list[str]
    unacknowledged: list[str] = []
    steps: list[StepEntry]
    children: list[ChildEntry] = []
    software: Software
    policy_revision: str
    log: str


class Digest(_Part, frozen=True, kw_only=True):
    """An in-toto digest set with the one algorithm that is used here."""

    sha256: str


class Subject(_Part, frozen=True, kw_only=True):
    """An in-toto resource descriptor: a commitment to an erased id."""

    digest: Digest
    name: str


class Statement(_Part, frozen=True, kw_only=True):
    """An in-toto Statement v1 around the predicate."""

    type: str = msgspec.field(name="_type")
    subject: list[Subject]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: ErasureStatement


def predicate_type(statement: ErasureStatement) -> str:
    """Which of the three documents this is.

    Class ``logical`` is a key deletion record: the medium may keep the key, so it is never called
    a certificate of erasure.
    """
    if statement.children:
        return PARENT_TYPE
    logical = statement.claim_class is ClaimClass.LOGICAL
    return DELETION_RECORD_TYPE if logical else CERTIFICATE_TYPE


def encode_statement(statement: ErasureStatement) -> bytes:
    """The signed payload: the whole in-toto statement in canonical form.

    Raises CertificateFormatError for a value that the format does not allow.
    """
    kind = statement.request.kind.value
    whole = Statement(
        type=STATEMENT_TYPE,
        subject=[
            Subject(digest=Digest(sha256=item), name=kind) for item in statement.scope.commitments
        ],
        predicate_type=predicate_type(statement),
        predicate=statement,
    )
    payload = _ENCODER.encode(whole)
    decode_statement(payload)
    return payload


def decode_statement(payload: bytes) -> ErasureStatement:
    """The statement in a payload. Raises CertificateFormatError unless it is canonical.

    ``error.unknown_version`` tells a type that this version does not know from a broken one.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise CertificateFormatError(f"the statement is longer than {MAX_PAYLOAD_BYTES} bytes")
    try:
        outer = _OUTER.decode(payload)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CertificateFormatError(f"not an in-toto statement: {error}") from None
    if outer.type != STATEMENT_TYPE or outer.predicate_type not in _TYPES:
        raise CertificateFormatError(
            f"this version does not know the statement type {outer.predicate_type[:80]!r}",
            unknown_version=True,
        )
    try:
        whole = _DECODER.decode(payload)
        canonical = _ENCODER.encode(whole)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CertificateFormatError(f"the statement is malformed: {error}") from None
    if canonical != payload:
        raise CertificateFormatError("the statement is not in canonical form (RFC 8785)")
    # JSON shows control characters as escapes only, so most statements need no closer look.
    if b"\\" in payload or b"\x7f" in payload:
        _check_text(whole)
    _check(whole)
    return whole.predicate


def payload_digest(payload: bytes) -> str:
    """What the log's record and a parent certificate call this document: hex SHA-256."""
    return sha256(payload).hexdigest()


def complete_after(destroyed_at: float, retention: SnapshotRetention) -> str:
    """When the last declared snapshot that could bring a key back has expired.

    ``destroyed_at`` in seconds since 1970.
    """
    return format_time(destroyed_at + DAY_SECONDS * max(retention.root, retention.machine))


def _check(whole: Statement) -> None:
    statement = whole.predicate
    commitments = statement.scope.commitments
    named = [(item.digest.sha256, item.name) for item in whole.subject]
    if named != [(item, statement.request.kind.value) for item in commitments]:
        raise CertificateFormatError("the statement's subjects are not its scope's commitments")
    if not commitments or commitments != sorted(set(commitments)):
        raise CertificateFormatError("the scope's commitments are not in rising order")
    digests = [*commitments, *(item.payload_sha256 for item in statement.children)]
    if any(item and not _is_hex(item, 64) for item in digests) or "" in commitments:
        raise CertificateFormatError("a digest is not 64 lower-case hexadecimal digits")
    if whole.predicate_type != predicate_type(statement):
        raise CertificateFormatError(
            f"a statement of class {statement.claim_class and statement.claim_class.value} "
            f"with {len(statement.children)} children is not of type {whole.predicate_type}"
        )
    times = [statement.issued_at, statement.complete_after, statement.request.requested_at]
    for text in (*times, *(step.at for step in statement.steps)):
        try:
            parse_time(text)
        except ValueError as error:
            raise CertificateFormatError(str(error)) from None


def _check_text(whole: Statement) -> None:
    """No control characters in any text."""
    todo: list[object] = [msgspec.to_builtins(whole)]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list):
            todo += item
        elif isinstance(item, str) and any(char < " " or char == "\x7f" for char in item):
            raise CertificateFormatError(f"text has a control character: {item[:60]!r}")


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and set(text) <= set("0123456789abcdef")


class _Outer(msgspec.Struct):
    type: str = msgspec.field(name="_type")
    predicate_type: str = msgspec.field(name="predicateType")


_TYPES = (CERTIFICATE_TYPE, DELETION_RECORD_TYPE, PARENT_TYPE)
_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(Statement)
_OUTER = msgspec.json.Decoder(_Outer)
