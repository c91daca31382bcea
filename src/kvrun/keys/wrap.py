"""Wrapping keys with AES-256-GCM under a context that is authenticated, not stored.

A wrap is a random 12-byte nonce, the ciphertext and a 16-byte tag. The nonce limit of 2^32 wraps
under one key (SP 800-38D) is out of reach: a key wraps a few records, or lives for one epoch.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvrun.keys.entropy import RandomInto
from kvrun.keys.errors import WrapError

NONCE_BYTES = 12
OVERHEAD_BYTES = NONCE_BYTES + 16


def context(*fields: bytes) -> bytes:
    """The AAD of a wrap: a fixed label, then each field with a 2-byte length. Injective."""
    return _LABEL + prefixed(*fields)


def prefixed(*fields: bytes) -> bytes:
    """Fields with 2-byte big-endian lengths: injective for a fixed number of fields."""
    return b"".join([part for field in fields for part in (len(field).to_bytes(2, "big"), field)])


class KeyWrapper:
    """Wraps and unwraps under one 32-byte key.

    The AES key schedule lives in the crypto library's memory until this object is collected,
    where it is cleansed; make it, use it and drop it.
    """

    def __init__(self, key: memoryview | bytearray, random_into: RandomInto) -> None:
        self._cipher = AESGCM(key)
        self._random_into = random_into
        self._nonces = memoryview(b"")  # made at the first wrap
        self._nonces_used = _POOLED_NONCES

    def wrap_into(self, aad: bytes, secret: memoryview, out: memoryview) -> None:
        """Wrap ``secret`` into ``out``, exactly ``len(secret) + OVERHEAD_BYTES`` long."""
        if self._nonces_used == _POOLED_NONCES:
            self._nonces = self._nonces or memoryview(bytearray(_POOLED_NONCES * NONCE_BYTES))
            self._random_into(self._nonces)
            self._nonces_used = 0
        start = self._nonces_used * NONCE_BYTES
        self._nonces_used += 1
        nonce = out[:NONCE_BYTES]
        nonce[:] = self._nonces[start : start + NONCE_BYTES]
        self._cipher.encrypt_into(nonce, secret, aad, out[NONCE_BYTES:])

    def wrap(self, aad: bytes, secret: memoryview) -> bytes:
        """The wrap of ``secret`` as bytes; a wrap is no secret."""
        out = bytearray(len(secret) + OVERHEAD_BYTES)
        self.wrap_into(aad, secret, memoryview(out))
        return bytes(out)

    def unwrap_into(self, aad: bytes, wrapped: memoryview | bytes, out: memoryview) -> None:
        """Unwrap into ``out``, exactly ``len(wrapped) - OVERHEAD_BYTES`` long.

        Raises WrapError and leaves ``out`` zeroed when anything does not fit.
        """
        if len(wrapped) != len(out) + OVERHEAD_BYTES:
            raise WrapError(
                f"A wrap of {len(out)} bytes has {len(out) + OVERHEAD_BYTES} bytes, "
                f"not {len(wrapped)}"
            )
        try:
            self._cipher.decrypt_into(bytes(wrapped[:NONCE_BYTES]), wrapped[NONCE_BYTES:], aad, out)
        except InvalidTag:
            # The library leaves unauthenticated plaintext behind.
            out[:] = bytes(len(out))
            raise WrapError(
                "A wrapped key does not open: wrong key, wrong context or changed bytes"
            ) from None


_POOLED_NONCES = 16
_LABEL = b"kvrun/key-wrap/v1\x00"
