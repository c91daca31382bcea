"""Ids and secrets out of random bytes, and what is kept of them. Pure."""

import base64
import hashlib
import hmac
from collections.abc import Callable

MAX_TOKEN_CHARS = 200
"""Longer texts are no token of ours, and are not even hashed."""

RandomBytes = Callable[[int], bytes]


def make_id(prefix: str, random_bytes: RandomBytes) -> str:
    """A new id: ``prefix``, a hyphen and 80 random bits as 16 of a-z and 2-7."""
    return f"{prefix}-{base64.b32encode(random_bytes(10)).decode().lower()}"


def make_token(random_bytes: RandomBytes) -> str:
    """A new secret of 256 random bits: 43 characters of base64url."""
    return base64.urlsafe_b64encode(random_bytes(32)).rstrip(b"=").decode()


def make_code(random_bytes: RandomBytes) -> str:
    """A new code that people can type: 80 random bits as 16 of a-z and 2-7."""
    return base64.b32encode(random_bytes(10)).decode().lower()


def hash_token(token: str) -> str:
    """The hex SHA-256 that is kept in place of a secret.

    A plain hash, since 256 random bits cannot be searched.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def csrf_of(token: str) -> str:
    """The CSRF token of a sign-in: made from its secret, which no other site knows."""
    return hmac.new(token.encode("utf-8", "surrogatepass"), b"kvrun csrf", "sha256").hexdigest()
