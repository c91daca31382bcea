"""The collector's own signature on checkpoints that it verified (C2SP tlog-cosignature v1)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.checkpoint import cosign_checkpoint
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey, parse_verifier_key
from kvrun.config.layout import DataLayout
from kvrun.durable import replace_private_file
from kvrun.keys.signing import KeyPurpose, SigningRing

VERIFIER_KEYS = "collector.vkey"


@dataclass(frozen=True, slots=True)
class Cosigner:
    """Signs under ``name``; ``now`` gives seconds since 1970."""

    name: str
    private_key: Ed25519PrivateKey
    now: Callable[[], float]
    earlier: tuple[VerifierKey, ...] = ()

    @property
    def keys(self) -> tuple[VerifierKey, ...]:
        """Every key under which this collector ever signed."""
        return (self.key, *self.earlier)

    @property
    def key(self) -> VerifierKey:
        """The public side, which auditors give to ``kvrun verify --witness-key``."""
        raw = self.private_key.public_key().public_bytes_raw()
        return VerifierKey(self.name, COSIGNATURE_V1, raw)

    def cosign(self, note: bytes) -> bytes:
        """The note with this collector's signature and time."""
        return cosign_checkpoint(note, self.name, self.private_key, int(self.now()))


def open_cosigner(layout: DataLayout, now: Callable[[], float]) -> Cosigner:
    """The collector's signer; every verifier key that it ever had is in ``collector.vkey``."""
    ring = SigningRing(layout.control / "signing", now=now)
    private_key = ring.load_or_create(KeyPurpose.COSIGNATURE).private_key
    path = layout.control / VERIFIER_KEYS
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    known = [parse_verifier_key(line) for line in lines]
    raw = private_key.public_key().public_bytes_raw()
    for key in known:
        if key.public_key == raw:
            others = tuple(item for item in known if item is not key)
            return Cosigner(key.name, private_key, now, others)
    signer = Cosigner(f"{socket.gethostname()}/collector", private_key, now, tuple(known))
    replace_private_file(
        path, "".join(f"{line}\n" for line in [*lines, signer.key.text()]).encode()
    )
    return signer
