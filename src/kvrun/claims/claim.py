"""The claim and its token, as docs/spec/claim.md describes them.

A token is ``kvc1.<key id>.<payload>.<signature>``. The payload is the claim as canonical JSON
(keys sorted, no spaces, integers only), in base64url without padding. The Ed25519 signature
(RFC 8032) covers the ASCII text before the last dot, so the key id cannot be exchanged either.
"""

import base64
import hashlib
import re
from enum import Enum
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kvrun.errors import KvrunError

TOKEN_PREFIX: Final = "kvc1"  # noqa: S105  the format's name, not a secret
CLAIM_PARAMETER: Final = "kvrun_claim"
"""Where a token stands in the ``kv_transfer_params`` of a request's body."""
TRACE_PARAMETER: Final = "kvrun_traceparent"
"""Where the request's place in a trace stands beside it (W3C Trace Context)."""
CLAIM_VERSION: Final = 1
MAX_LIFETIME_S: Final = 3600
MAX_TOKEN_CHARS: Final = 8192
MAX_USES: Final = 4096
MAX_ATTRIBUTES: Final = 16
KEY_ID_CHARS: Final = 16


class ClaimFault(Enum):
    """Why a claim was refused."""

    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    WRONG_DEPLOYMENT = "wrong_deployment"


class ClaimError(KvrunError):
    """A claim that must not be believed; ``fault`` says why."""

    status = 403

    def __init__(self, fault: ClaimFault, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.fault = fault


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway says about one HTTP request.

    Ids are 1 to 128 printable ASCII characters. ``salt`` is 43 and ``nonce`` 22 characters of
    base64url. ``uses`` is the number of engine requests the HTTP request makes. Times are whole
    seconds since 1970 (UTC); the claim holds from ``issued_at`` up to but not at ``expires_at``.
    """

    version: int = CLAIM_VERSION
    workspace: str
    deployment: str
    tenant: str
    session: str
    generation: int
    salt: str
    request_id: str
    nonce: str
    uses: int
    issued_at: int
    expires_at: int
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class ClaimSigner:
    """Turns claims into tokens with one Ed25519 private key."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.key_id = key_id_of(private_key.public_key())
        self._head = f"{TOKEN_PREFIX}.{self.key_id}.".encode()

    def sign(self, claim: Claim) -> str:
        """The token for this claim. Raises ClaimError (malformed) for one no verifier accepts."""
        check_claim(claim)
        signed = self._head + encode_base64url(_ENCODER.encode(claim))
        token = signed + b"." + encode_base64url(self._private_key.sign(signed))
        if len(token) > MAX_TOKEN_CHARS:
            raise malformed(
                f"the token would be {len(token)} characters long, at most {MAX_TOKEN_CHARS} are"
                " allowed; use fewer or shorter attributes"
            )
        return token.decode("ascii")


def key_id_of(public_key: Ed25519PublicKey) -> str:
    """The key's name in tokens: the first 16 hex digits of SHA-256 over its 32 raw bytes."""
    raw = public_key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:KEY_ID_CHARS]


def decode_payload(payload: bytes) -> Claim:
    """The claim in a payload that was already authenticated, with every field checked."""
    try:
        claim = _DECODER.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise malformed(f"the claim's payload is not a claim: {error}") from None
    if _ENCODER.encode(claim) != payload:
        raise malformed("the claim's payload is not written canonically")
    check_claim(claim)
    return claim


def check_claim(claim: Claim) -> None:
    """Raise ClaimError (malformed), naming the field, unless every field is within its limits."""
    if claim.version != CLAIM_VERSION:
        raise malformed(f"claim version {claim.version} is unknown, {CLAIM_VERSION} is known")
    for name in ("workspace", "deployment", "tenant", "session", "request_id"):
        if not _ID.fullmatch(getattr(claim, name)):
            raise malformed(f"claim field {name} must be 1 to 128 printable ASCII characters")
    if not _SALT.fullmatch(claim.salt):
        raise malformed("claim field salt must be 43 characters of base64url")
    if not _NONCE.fullmatch(claim.nonce):
        raise malformed("claim field nonce must be 22 characters of base64url")
    if not 0 <= claim.generation < 2**63:
        raise malformed("claim field generation must be between 0 and 2^63 - 1")
    if not 1 <= claim.uses <= MAX_USES:
        raise malformed(f"claim field uses must be between 1 and {MAX_USES}, not {claim.uses}")
    if not 0 <= claim.issued_at < 2**53:
        raise malformed("claim field issued_at must be a time in seconds since 1970")
    if not 0 < claim.expires_at - claim.issued_at <= MAX_LIFETIME_S:
        raise malformed(f"a claim must expire 1 to {MAX_LIFETIME_S} seconds after it was issued")
    if len(claim.attributes) > MAX_ATTRIBUTES:
        raise malformed(f"a claim may carry at most {MAX_ATTRIBUTES} attributes")
    for key, value in claim.attributes.items():
        if not _ATTRIBUTE_NAME.fullmatch(key) or not _ATTRIBUTE_VALUE.fullmatch(value):
            raise malformed(
                "a claim attribute must be named by 1 to 64 of a-z 0-9 . _ - and hold at most"
                " 256 printable ASCII characters"
            )


def malformed(message: str) -> ClaimError:
    """The error of a claim whose form is wrong."""
    return ClaimError(ClaimFault.MALFORMED, message)


def encode_base64url(data: bytes) -> bytes:
    """Base64url without padding (RFC 4648 section 5)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def decode_base64url(text: str) -> bytes | None:
    """The bytes of unpadded base64url, or None where it is not the one canonical spelling.

    The standard decoder skips foreign characters and spare bits; encoding again shows both.
    """
    try:
        raw = text.encode("ascii")
        data = base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))
    except (UnicodeEncodeError, ValueError):
        return None
    return data if encode_base64url(data) == raw else None


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(Claim)
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_SALT = re.compile(r"[A-Za-z0-9_-]{43}")
_NONCE = re.compile(r"[A-Za-z0-9_-]{22}")
_ATTRIBUTE_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_ATTRIBUTE_VALUE = re.compile(r"[\x20-\x7e]{0,256}")
