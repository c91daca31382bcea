"""DSSE envelopes: a payload, its type and signatures over both. Pure but for signing.

Source: https://github.com/secure-systems-lab/dsse (protocol 1.0.2). Base64 is the standard one in
its canonical spelling, so that an envelope has one form.
"""

import base64
from collections.abc import Callable
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``keyid``: :func:`key_id` of the signer. ``sig``: base64 of the 64-byte signature."""

    keyid: str
    sig: str


class Envelope(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The envelope as JSON has it; ``payload`` is base64."""

    payload: str
    payload_type: str
    signatures: list[Signature]


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding of type and payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(public_key: bytes) -> str:
    """16 hex characters: the start of SHA-256 over the 32 raw bytes of the public key."""
    return sha256(public_key).hexdigest()[:16]


def sign(payload: bytes, public_key: bytes, sign_bytes: Callable[[bytes], bytes]) -> Envelope:
    """An envelope with one Ed25519 signature; ``sign_bytes`` signs as the holder of the key."""
    signature = sign_bytes(pae(PAYLOAD_TYPE, payload))
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        payload_type=PAYLOAD_TYPE,
        signatures=[Signature(keyid=key_id(public_key), sig=base64.b64encode(signature).decode())],
    )


def is_signed_by(public_key: bytes, payload_type: str, payload: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is this Ed25519 key's over the payload and its type."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(signature, pae(payload_type, payload))
    except (InvalidSignature, ValueError):
        return False
    return True
