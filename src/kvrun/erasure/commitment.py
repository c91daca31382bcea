"""Salted commitments to erased ids, and the openings that prove whom a certificate is about. Pure.

The commitment is the SHA-256 of the opening's own bytes, so anyone with the opening can check it
with ``sha256sum``. Without the opening, the 32 random bytes in it keep a guess from being tested.
"""

from hashlib import sha256

import msgspec

from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.errors import CertificateFormatError

OPENING_TYPE = "kvrun-erasure-opening/v1"
SALT_BYTES = 32
MAX_OPENING_BYTES = 8192


class ErasedSubject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom or what an erasure was about: an id, and the ids around it (empty when they span it).

    ``id`` is what ``kvrun verify --subject`` asks for: the session's id for a session, the
    tenant's for a tenant or a user, and so on.
    """

    kind: RequestKind
    id: str
    workspace: str = ""
    deployment: str = ""
    tenant: str = ""


class Opening(ErasedSubject, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A subject and the random salt (hex) that hides it. Handed out once, kept nowhere."""

    salt: str
    type: str = OPENING_TYPE


def make_opening(subject: ErasedSubject, salt: bytes) -> bytes:
    """The opening file's bytes; ``salt``: 32 fresh random bytes.

    Raises CertificateFormatError for another salt or an id with control characters.
    """
    opening = Opening(
        kind=subject.kind,
        id=subject.id,
        workspace=subject.workspace,
        deployment=subject.deployment,
        tenant=subject.tenant,
        salt=salt.hex(),
    )
    data = _ENCODER.encode(opening)
    parse_opening(data)
    return data


def commit(opening: bytes) -> str:
    """The commitment (hex) that an opening opens."""
    return sha256(opening).hexdigest()


def parse_opening(data: bytes) -> Opening:
    """The opening in a file's bytes. Raises CertificateFormatError unless it is canonical."""
    if len(data) > MAX_OPENING_BYTES:
        raise CertificateFormatError(f"an opening has at most {MAX_OPENING_BYTES} bytes")
    try:
        opening = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CertificateFormatError(f"not an opening: {error}") from None
    texts = [value for value in msgspec.structs.astuple(opening) if isinstance(value, str)]
    if any(char < " " or char == "\x7f" for text in texts for char in text):
        raise CertificateFormatError("an opening has no control characters")
    salt = opening.salt
    if len(salt) != 2 * SALT_BYTES or not set(salt) <= set("0123456789abcdef"):
        raise CertificateFormatError(f"an opening's salt is {SALT_BYTES} bytes in hexadecimal")
    if opening.type != OPENING_TYPE:
        raise CertificateFormatError(
            f"this version does not know openings of type {opening.type[:60]!r}",
            unknown_version=True,
        )
    if _ENCODER.encode(opening) != data:
        raise CertificateFormatError("an opening is in canonical form (RFC 8785), without newline")
    return opening


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(Opening)
