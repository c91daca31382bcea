"""RFC 3161 timestamps over a checkpoint's note: requests, and offline verification of answers.

Source: https://www.rfc-editor.org/rfc/rfc3161. A token is kept as the authority answered it (the
whole ``TimeStampResp``, DER), so that ``openssl ts -verify -data NOTE -in TOKEN`` reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvrun.audit.errors import TimestampError

# Loading the library takes longer than a whole command; few commands need it.
if TYPE_CHECKING:
    from cryptography import x509
    from rfc3161_client import TimeStampResponse

MAX_TOKEN_BYTES = 64 * 1024
SUFFIX = ".tsr"
REQUEST_TYPE = "application/timestamp-query"


@dataclass(frozen=True, slots=True)
class TimestampRequest:
    """What is sent to an authority: DER bytes, and the nonce that its answer must repeat."""

    body: bytes
    nonce: int


def make_request(note: bytes) -> TimestampRequest:
    """A request for the SHA-256 of ``note``, with a random nonce, asking for the certificate."""
    from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

    request = TimestampRequestBuilder(note, HashAlgorithm.SHA256).build()
    return TimestampRequest(request.as_bytes(), request.nonce or 0)


def verify_token(
    note: bytes, token: bytes, authorities: bytes, *, nonce: int | None = None
) -> float:
    """When an authority saw ``note``: seconds since 1970, by the authority's clock.

    ``authorities``: PEM certificates of the authorities' roots, and intermediates where a token
    lacks them. They must have been valid at that time, not now. Raises TimestampError.
    """
    from rfc3161_client import VerificationError, VerifierBuilder

    roots = _certificates(authorities)
    answer = _decode(token)
    try:
        VerifierBuilder(roots=roots, nonce=nonce).build().verify_message(answer, note)
        return answer.tst_info.gen_time.timestamp()
    except (VerificationError, ValueError) as error:
        raise TimestampError(f"the timestamp does not hold: {_first(error)}") from None


def _decode(token: bytes) -> TimeStampResponse:
    from rfc3161_client import decode_timestamp_response

    if len(token) > MAX_TOKEN_BYTES:
        raise TimestampError(
            f"a timestamp of {len(token)} bytes is too long ({MAX_TOKEN_BYTES} allowed)"
        )
    try:
        answer = decode_timestamp_response(token)
    except ValueError as error:
        raise TimestampError(f"not an RFC 3161 answer: {_first(error)}") from None
    if answer.status != 0:
        said = "; ".join(answer.status_string)[:200]
        raise TimestampError(f"the authority refused (status {answer.status}) {said}".rstrip())
    return answer


def _certificates(authorities: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(authorities)
    except ValueError as error:
        raise TimestampError(f"not PEM certificates: {_first(error)}") from None


def _first(error: Exception) -> str:
    return str(error).replace("\n", " ")[:200]
