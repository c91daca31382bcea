"""A claim key that is replaced while requests run, and how a new one is introduced.

The key of the launch vouches for every later one: who wants to introduce a key needs it, beside
the launch token that opens the connection. It vouches also when it signs no claims any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kvrun.claims.claim import Claim, ClaimSigner, key_id_of

_CONTEXT = b"kvrun/claim-key/v1\0"


@dataclass(frozen=True, slots=True)
class Introduction:
    """A new claim key (32 raw bytes), the launch key's id and signature, and what it replaces."""

    public_key: bytes
    introduced_by: str
    signature: bytes
    replaces: tuple[str, ...]


class RotatingSigner:
    """Signs claims with one key at a time. Use it from one thread."""

    def __init__(
        self,
        launch_key: Ed25519PrivateKey,
        make_key: Callable[[], Ed25519PrivateKey] = Ed25519PrivateKey.generate,
    ) -> None:
        self._launch = launch_key
        self._make_key = make_key
        self._signer = ClaimSigner(launch_key)
        self._used = [self._signer.key_id]
        self._next: ClaimSigner | None = None

    @property
    def key_id(self) -> str:
        """The key that signs now."""
        return self._signer.key_id

    def sign(self, claim: Claim) -> str:
        """The token for this claim. Raises ClaimError (malformed)."""
        return self._signer.sign(claim)

    def introduction(self) -> Introduction:
        """Make a new key; ``use`` takes it up once it is believed. The last one made counts."""
        key = self._make_key()
        public_key = key.public_key().public_bytes_raw()
        self._next = ClaimSigner(key)
        return Introduction(
            public_key,
            key_id_of(self._launch.public_key()),
            self._launch.sign(_CONTEXT + public_key),
            tuple(self._used),
        )

    def use(self, key_id: str) -> bool:
        """Sign with the key that was made last, if that is its id."""
        if self._next is None or self._next.key_id != key_id:
            return False
        self._signer, self._next = self._next, None
        self._used.append(key_id)
        return True


def is_introduced(public_key: bytes, signature: bytes, launch_key: Ed25519PublicKey) -> bool:
    """Whether the launch key vouches for the other one."""
    try:
        launch_key.verify(signature, _CONTEXT + public_key)
    except InvalidSignature:
        return False
    return True
