"""The trust anchor: the public keys that a verifier got from the operator, out of band. Pure.

Whoever checks a certificate with keys that came beside it only learns that it is unbroken, not who
made it. ``docs/spec/erasure-certificate.md`` specifies the file.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import COSIGNATURE_V1, ED25519, VerifierKey, parse_verifier_key
from kvrun.audit.record import format_time
from kvrun.erasure.dsse import key_id
from kvrun.erasure.errors import CertificateFormatError
from kvrun.keys.signing import PublicKeyRecord

TRUST_FORMAT = "kvrun-trust/v1"
MAX_ANCHOR_BYTES = 1 << 20


class TrustAnchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Public keys with purpose and validity, and C2SP verifier keys of logs and of witnesses."""

    format: str = TRUST_FORMAT
    keys: list[PublicKeyRecord]
    log_keys: list[str]
    witness_keys: list[str] = []

    def logs(self) -> tuple[VerifierKey, ...]:
        """The verifier keys of logs."""
        return tuple(map(parse_verifier_key, self.log_keys))

    def witnesses(self) -> tuple[VerifierKey, ...]:
        """The verifier keys of witnesses."""
        return tuple(map(parse_verifier_key, self.witness_keys))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One key of an anchor as two people read it to each other."""

    what: str
    name: str
    fingerprint: str
    validity: str


def make_anchor(
    keys: Iterable[PublicKeyRecord],
    log_keys: Iterable[VerifierKey],
    witness_keys: Iterable[VerifierKey] = (),
) -> bytes:
    """The anchor file's bytes: indented JSON with sorted keys."""
    anchor = TrustAnchor(
        keys=list(keys),
        log_keys=[key.text() for key in log_keys],
        witness_keys=[key.text() for key in witness_keys],
    )
    data = msgspec.json.format(msgspec.json.encode(anchor, order="sorted"), indent=2) + b"\n"
    parse_anchor(data)
    return data


def parse_anchor(data: bytes) -> TrustAnchor:
    """The anchor in a file's bytes. Raises CertificateFormatError."""
    if len(data) > MAX_ANCHOR_BYTES:
        raise CertificateFormatError(f"a trust anchor has at most {MAX_ANCHOR_BYTES} bytes")
    try:
        anchor = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CertificateFormatError(
            f"not a trust anchor: {error}", hint="`kvrun trust export` writes one."
        ) from None
    if anchor.format != TRUST_FORMAT:
        raise CertificateFormatError(
            f"this version does not know the format {anchor.format[:60]!r}, only {TRUST_FORMAT}",
            unknown_version=True,
        )
    for key in anchor.keys:
        raw = raw_key(key)
        if len(raw) != 32 or key_id(raw) != key.key_id:
            raise CertificateFormatError(f"key {key.key_id[:40]!r} of the anchor is another key")
    try:
        kinds = [(key, ED25519) for key in anchor.logs()]
        kinds += [(key, COSIGNATURE_V1) for key in anchor.witnesses()]
    except NoteFormatError as error:
        raise CertificateFormatError(f"the trust anchor is malformed: {error.message}") from None
    for verifier, algorithm in kinds:
        if verifier.algorithm != algorithm:
            raise CertificateFormatError(
                f"key {verifier.name} of the anchor has signature type {verifier.algorithm}",
                hint="A log's key has type 1, a witness's key type 4.",
            )
    return anchor


def raw_key(record: PublicKeyRecord) -> bytes:
    """The raw bytes of a public key record; empty when they are not base64url."""
    try:
        padding = "=" * (-len(record.public_key) % 4)
        return base64.b64decode(record.public_key + padding, altchars=b"-_", validate=True)
    except ValueError:
        return b""


def fingerprints(anchor: TrustAnchor) -> list[Fingerprint]:
    """Every key with its fingerprint: SHA-256 of the raw public key, in groups of four digits."""
    rows = [
        Fingerprint(key.purpose, key.key_id, _spaced(raw_key(key)), _validity(key))
        for key in anchor.keys
    ]
    rows += [
        Fingerprint("log", key.name, _spaced(key.public_key), "not limited")
        for key in anchor.logs()
    ]
    rows += [
        Fingerprint("witness", key.name, _spaced(key.public_key), "not limited")
        for key in anchor.witnesses()
    ]
    return rows


def _spaced(raw: bytes) -> str:
    digits = sha256(raw).hexdigest()
    return " ".join(digits[start : start + 4] for start in range(0, 64, 4))


def _validity(key: PublicKeyRecord) -> str:
    text = f"from {_day(key.created_at)}"
    if key.valid_until is not None:
        text += f" until {_day(key.valid_until)}"
    return text if key.revoked_at is None else f"{text}, revoked {_day(key.revoked_at)}"


def _day(seconds: int) -> str:
    return format_time(seconds)[:16] + "Z"


_DECODER = msgspec.json.Decoder(TrustAnchor)
