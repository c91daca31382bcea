"""One signed in-toto statement in a file: who signed what about which subjects. Pure.

``docs/spec/statement.md`` specifies the file. It is one line of canonical JSON (RFC 8785); so is
the signed payload, an in-toto Statement v1 in a DSSE envelope. msgspec writes both directly,
because predicates keep to the subset in which the two agree: ASCII keys, text without control
characters, whole numbers; a decimal is text.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Generic, TypeVar

import msgspec

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import decode_base64
from kvrun.audit.record import parse_time
from kvrun.erasure import dsse
from kvrun.erasure.certificate import STATEMENT_TYPE, Digest, Subject
from kvrun.erasure.trust import raw_key
from kvrun.errors import KvrunError
from kvrun.keys.signing import KeyPurpose, PublicKeyRecord, SigningKey

FORMAT = "kvrun-statement/v1"
MAX_DOCUMENT_BYTES = 16 << 20
MAX_SUBJECTS = 10_000


class StatementError(KvrunError):
    """A statement is malformed, or not of the kind that is wanted."""

    status = 400


class Signer(StrEnum):
    """What is known about who signed."""

    TRUSTED = "trusted"
    SELF_ASSERTED = "self-asserted"
    REFUSED = "refused"


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every predicate has. ``issued_at``: RFC 3339 UTC with microseconds."""

    issued_at: str


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. ``public_key``: base64 of the signer's 32 bytes, as the signer states them."""

    envelope: dsse.Envelope
    format: str
    public_key: str


PredicateT = TypeVar("PredicateT", bound=Predicate)


@dataclass(frozen=True, slots=True)
class Signed(Generic[PredicateT]):
    """A statement whose signature fits the key that stands beside it; nothing more is known.

    ``subjects``: hex SHA-256 by name. ``digest``: hex SHA-256 of the signed payload.
    """

    predicate: PredicateT
    subjects: dict[str, str]
    public_key: bytes
    digest: str

    @property
    def key_id(self) -> str:
        """16 hex digits that name the signer's key."""
        return dsse.key_id(self.public_key)


def sign_statement(
    predicate_type: str, subjects: dict[str, str], predicate: Predicate, signer: SigningKey
) -> bytes:
    """The file's bytes. The same input gives the same bytes.

    ``subjects``: hex SHA-256 by name. Raises StatementError for a key of another purpose or
    content that the format does not allow.
    """
    if signer.purpose is not KeyPurpose.EVIDENCE:
        raise StatementError(
            f"the signing key {signer.key_id} is for {signer.purpose.value}s, not for evidence"
        )
    statement = _Statement(
        type=STATEMENT_TYPE,
        subject=[
            Subject(digest=Digest(sha256=subjects[name]), name=name) for name in sorted(subjects)
        ],
        predicate_type=predicate_type,
        predicate=msgspec.Raw(_ENCODER.encode(predicate)),
    )
    data = seal_payload(FORMAT, _ENCODER.encode(statement), signer)
    read_statement(data, predicate_type, type(predicate))
    return data


def seal_payload(format_name: str, payload: bytes, signer: SigningKey) -> bytes:
    """The bytes of a file of this format around a payload: its envelope and the public key."""
    public_key = signer.private_key.public_key().public_bytes_raw()
    document = Document(
        envelope=dsse.sign(payload, public_key, signer.private_key.sign),
        format=format_name,
        public_key=base64.b64encode(public_key).decode(),
    )
    return _ENCODER.encode(document) + b"\n"


def read_statement(
    data: bytes, predicate_type: str, predicate: type[PredicateT]
) -> Signed[PredicateT]:
    """The statement in a file's bytes. Raises StatementError unless it is canonical and signed.

    That the signature fits proves no more than that nothing changed since somebody signed: who
    that was is for :func:`judge_signer` to say.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise StatementError(f"a statement has at most {MAX_DOCUMENT_BYTES} bytes")
    try:
        document = _DOCUMENT.decode(data)
        if document.format != FORMAT:
            raise StatementError(
                f"this version does not know the format {document.format[:60]!r}, only {FORMAT}"
            )
        if _ENCODER.encode(document) + b"\n" != data:
            raise StatementError("the file is not one line of canonical JSON (RFC 8785)")
        payload = decode_base64(document.envelope.payload)
        public_key = decode_base64(document.public_key)
        statement = _STATEMENT.decode(payload)
        if statement.type != STATEMENT_TYPE or statement.predicate_type != predicate_type:
            raise StatementError(
                f"the statement is of type {statement.predicate_type[:80]!r}, not {predicate_type}"
            )
        found = msgspec.json.decode(statement.predicate, type=predicate)
        whole = msgspec.structs.replace(statement, predicate=msgspec.Raw(_ENCODER.encode(found)))
        if _ENCODER.encode(whole) != payload:
            raise StatementError("the statement is not in canonical form (RFC 8785)")
        signatures = [decode_base64(item.sig) for item in document.envelope.signatures]
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StatementError(f"the statement is malformed: {error}") from None
    except NoteFormatError as error:
        raise StatementError(f"the statement is malformed: {error.message}") from None
    _check_signature(document, payload, public_key, signatures)
    _check_content(statement, found)
    subjects = {item.name: item.digest.sha256 for item in statement.subject}
    return Signed(found, subjects, public_key, sha256(payload).hexdigest())


def judge_signer(
    signed: Signed[PredicateT], known: Sequence[PublicKeyRecord]
) -> tuple[Signer, str]:
    """Whether one of the ``known`` keys signed and was allowed to, and why, in words.

    A key that was revoked vouches for nothing: who has it can write any time into a statement.
    """
    for key in known:
        if raw_key(key) != signed.public_key:
            continue
        if key.purpose != KeyPurpose.EVIDENCE.value:
            return Signer.REFUSED, f"key {key.key_id} is for {key.purpose}s, not for evidence"
        if key.revoked_at is not None:
            return Signer.REFUSED, f"key {key.key_id} was revoked"
        issued = parse_time(signed.predicate.issued_at)
        if issued < key.created_at or (key.valid_until is not None and issued >= key.valid_until):
            return Signer.REFUSED, f"key {key.key_id} was not valid at {signed.predicate.issued_at}"
        return Signer.TRUSTED, f"signed with key {key.key_id}"
    return Signer.SELF_ASSERTED, f"key {signed.key_id} is in no trust anchor"


def _check_signature(
    document: Document, payload: bytes, public_key: bytes, signatures: Sequence[bytes]
) -> None:
    envelope = document.envelope
    if envelope.payload_type != dsse.PAYLOAD_TYPE or len(signatures) != 1:
        raise StatementError("a statement is in-toto JSON with exactly one signature")
    if len(public_key) != 32 or envelope.signatures[0].keyid != dsse.key_id(public_key):
        raise StatementError("the signature names another key than stands beside it")
    if not dsse.is_signed_by(public_key, envelope.payload_type, payload, signatures[0]):
        raise StatementError("the signature does not fit the statement")


def _check_content(statement: "_Statement", predicate: Predicate) -> None:
    names = [item.name for item in statement.subject]
    if not 0 < len(names) <= MAX_SUBJECTS or names != sorted(set(names)):
        raise StatementError(
            f"a statement has 1 to {MAX_SUBJECTS} subjects in rising order of their names"
        )
    if not all(_is_digest(item.digest.sha256) for item in statement.subject):
        raise StatementError("a digest is not 64 lower-case hexadecimal digits")
    try:
        parse_time(predicate.issued_at)
    except ValueError as error:
        raise StatementError(str(error)) from None
    todo: list[object] = [names, msgspec.to_builtins(predicate)]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list):
            todo += item
        elif isinstance(item, float):
            raise StatementError(f"{item} is no whole number; a decimal is text")
        elif isinstance(item, str) and any(char < " " or char == "\x7f" for char in item):
            raise StatementError(f"text has a control character: {item[:60]!r}")


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


class _Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    predicate: msgspec.Raw
    predicate_type: str = msgspec.field(name="predicateType")
    subject: list[Subject]


_ENCODER = msgspec.json.Encoder(order="sorted")
_DOCUMENT = msgspec.json.Decoder(Document)
_STATEMENT = msgspec.json.Decoder(_Statement)
