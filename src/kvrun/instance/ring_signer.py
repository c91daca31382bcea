"""Signs a log's checkpoints with the keys of a signing ring, replaced while the log is written."""

from __future__ import annotations

from collections.abc import Sequence

from kvrun.audit.checkpoint import Ed25519Signer
from kvrun.audit.note import VerifierKey
from kvrun.keys.signing import CurrentKey, KeyPurpose, SigningRing


class RingSigner:
    """A ``RotatingSigner``: the ring's newest checkpoint key, and earlier ones while valid."""

    def __init__(self, name: str, ring: SigningRing) -> None:
        self._name = name
        self._ring = ring
        self._current = CurrentKey(ring, KeyPurpose.CHECKPOINT)

    @property
    def key(self) -> VerifierKey:
        """The newest key."""
        return self.signers()[0].key

    def sign(self, text: bytes) -> bytes:
        """The newest key's signature."""
        return self.signers()[0].sign(text)

    def signers(self) -> Sequence[Ed25519Signer]:
        """Everyone who signs now, the newest first."""
        newest = self._current.get()
        now = self._ring.now()
        keys = [
            key
            for key in self._ring.all_keys(KeyPurpose.CHECKPOINT)
            if key.key_id != newest.key_id and key.problem(now) is None
        ]
        return [Ed25519Signer(self._name, key.private_key) for key in (newest, *reversed(keys))]

    def known(self) -> Sequence[VerifierKey]:
        """Every checkpoint key of the ring, revoked ones included."""
        keys = self._ring.all_keys(KeyPurpose.CHECKPOINT)
        return [Ed25519Signer(self._name, key.private_key).key for key in keys]
