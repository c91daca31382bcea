"""The certificate's file: signed statement, signer's public key, and the proof that it is logged.

One line of canonical JSON. The log's record names the SHA-256 of the statement, so the statement
is signed first, then logged, and the proof is put beside it: nothing outside the signature is
believed without a check of its own.
"""

import base64
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import decode_base64
from kvrun.erasure import dsse
from kvrun.erasure.certificate import (
    MAX_PAYLOAD_BYTES,
    ErasureStatement,
    encode_statement,
    payload_digest,
)
from kvrun.erasure.errors import CertificateFormatError
from kvrun.erasure.logproof import LogInclusion
from kvrun.keys.signing import KeyPurpose, SigningKey

FORMAT = "kvrun-certificate/v1"
MAX_CERTIFICATE_BYTES = 2 * MAX_PAYLOAD_BYTES


class DocumentBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file's checksum covers.

    ``public_key``: base64 of the signer's 32 bytes, as the signer states them.
    """

    envelope: dsse.Envelope
    format: str
    log: LogInclusion
    public_key: str


class CertificateDocument(DocumentBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file.

    ``sha256`` (hex) covers the canonical JSON of all other fields. It proves nothing against who
    can compute it; it finds any damage, also in a cosignature of a witness nobody here knows.
    """

    sha256: str

    def is_intact(self) -> bool:
        """Whether the checksum fits."""
        return self.sha256 == _checksum(self)


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """A signed statement that is not logged yet. ``digest`` (hex) belongs into the log's record."""

    envelope: dsse.Envelope
    public_key: bytes
    digest: str


def sign_statement(statement: ErasureStatement, signer: SigningKey) -> SignedStatement:
    """Sign a statement with a certificate key. The same input gives the same bytes.

    Raises CertificateFormatError for a statement outside the format or a key for other purposes.
    """
    if signer.purpose is not KeyPurpose.CERTIFICATE:
        raise CertificateFormatError(
            f"the signing key {signer.key_id} is for {signer.purpose.value}s, not certificates"
        )
    payload = encode_statement(statement)
    public_key = signer.private_key.public_key().public_bytes_raw()
    envelope = dsse.sign(payload, public_key, signer.private_key.sign)
    return SignedStatement(envelope, public_key, payload_digest(payload))


def make_certificate(signed: SignedStatement, inclusion: LogInclusion) -> bytes:
    """The certificate's bytes, from a signed statement and the proof that it was logged."""
    public_key = base64.b64encode(signed.public_key).decode()
    body = DocumentBody(
        envelope=signed.envelope, format=FORMAT, log=inclusion, public_key=public_key
    )
    return _ENCODER.encode(_with_checksum(body)) + b"\n"


def parse_certificate(data: bytes) -> CertificateDocument:
    """The document in a file's bytes. Raises CertificateFormatError; verifies nothing."""
    if len(data) > MAX_CERTIFICATE_BYTES:
        raise CertificateFormatError(f"a certificate has at most {MAX_CERTIFICATE_BYTES} bytes")
    try:
        stated = _FORMAT.decode(data).format
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CertificateFormatError(f"not a certificate: {error}") from None
    if stated != FORMAT:
        raise CertificateFormatError(
            f"this version does not know the format {stated[:60]!r}, only {FORMAT}",
            unknown_version=True,
        )
    try:
        document = _DECODER.decode(data)
        canonical = _ENCODER.encode(document) + b"\n"
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CertificateFormatError(f"the certificate is malformed: {error}") from None
    if canonical != data:
        raise CertificateFormatError(
            "the certificate is not one line of canonical JSON (RFC 8785) and a newline"
        )
    if len(document.envelope.signatures) != 1:
        raise CertificateFormatError("a certificate has exactly one signature")
    return document


def payload_of(document: CertificateDocument) -> bytes:
    """The signed bytes of a document. Raises CertificateFormatError for bad base64."""
    try:
        return decode_base64(document.envelope.payload)
    except NoteFormatError as error:
        raise CertificateFormatError(f"the payload is malformed: {error.message}") from None


def _with_checksum(body: DocumentBody) -> CertificateDocument:
    return CertificateDocument(
        envelope=body.envelope,
        format=body.format,
        log=body.log,
        public_key=body.public_key,
        sha256=_checksum(body),
    )


def _checksum(whole: DocumentBody) -> str:
    body = DocumentBody(
        envelope=whole.envelope, format=whole.format, log=whole.log, public_key=whole.public_key
    )
    return sha256(_ENCODER.encode(body)).hexdigest()


class _Format(msgspec.Struct):
    format: str


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(CertificateDocument)
_FORMAT = msgspec.json.Decoder(_Format)
