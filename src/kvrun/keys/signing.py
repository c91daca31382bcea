"""The ring of signing keys (Ed25519). Backed up, rotated, with validity and revocation.

One file a key, mode 0600, JSON. These keys are apart from the key hierarchy on purpose: they sign
statements that must stay verifiable after everything they speak of is erased.
"""

import base64
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from kvrun.keys.errors import SigningKeyError
from kvrun.keys.folder import (
    FolderLock,
    check_private_file,
    private_folder,
    sync_folder,
    write_private_file,
)

VERSION = 1


class KeyPurpose(Enum):
    """What a key may sign; a key has exactly one purpose."""

    CLAIM = "claim"
    """Stamped by a gateway on requests."""
    CHECKPOINT = "checkpoint"
    """An audit log's size and root."""
    COSIGNATURE = "cosignature"
    """The collector's, on the checkpoints of the logs that it collects."""
    INSTANCE = "instance"
    """Who an instance is to the control plane."""
    CERTIFICATE = "certificate"
    """Erasure certificates and key deletion records."""
    WITNESS = "witness"
    """Cosignatures on the checkpoints of other installations' logs."""


class PublicKeyRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A public key as it is given to verifiers. Times are whole seconds since 1970."""

    version: int
    key_id: str
    """16 hex characters: the start of SHA-256 over the raw public key."""
    purpose: str
    public_key: str
    """The raw 32 bytes, base64url without padding."""
    created_at: int
    valid_until: int | None = None
    revoked_at: int | None = None

    def key(self) -> Ed25519PublicKey:
        """The key itself."""
        return Ed25519PublicKey.from_public_bytes(_decode(self.public_key))


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key with what is known about it. Times in seconds since 1970."""

    key_id: str
    purpose: KeyPurpose
    serial: int
    """Rises with every key made in the ring: the newest is not a matter of clocks."""
    created_at: int
    valid_until: int | None
    revoked_at: int | None
    private_key: Ed25519PrivateKey

    def problem(self, now: float) -> str | None:
        """Why the key may not sign at ``now``, or None."""
        if self.revoked_at is not None:
            return f"Signing key {self.key_id} was revoked"
        if now < self.created_at:
            return f"Signing key {self.key_id} is not valid yet"
        if self.valid_until is not None and now >= self.valid_until:
            return f"Signing key {self.key_id} is no longer valid"
        return None

    def public(self) -> PublicKeyRecord:
        """What others need to verify its signatures."""
        return PublicKeyRecord(
            version=VERSION,
            key_id=self.key_id,
            purpose=self.purpose.value,
            public_key=_encode(self.private_key.public_key().public_bytes_raw()),
            created_at=self.created_at,
            valid_until=self.valid_until,
            revoked_at=self.revoked_at,
        )


class SigningRing:
    """The signing keys in ``folder`` (0700, created when missing). Thread-unsafe, for start-up.

    Several processes may read it; changes take the folder's lock for as long as they last.
    """

    def __init__(self, folder: Path, *, now: Callable[[], float]) -> None:
        private_folder(folder, purpose="signing key")
        self._folder = folder
        self._now = now

    def load_or_create(self, purpose: KeyPurpose, *, valid_for_s: int | None = None) -> SigningKey:
        """The newest key that may sign now, made on first use."""
        found = self._newest(purpose)
        return found or self._create(purpose, valid_for_s, only_if_none=True)

    def rotate(self, purpose: KeyPurpose, *, valid_for_s: int | None = None) -> SigningKey:
        """A new key that signs from now on; earlier ones stay, so that signatures verify."""
        return self._create(purpose, valid_for_s, only_if_none=False)

    def revoke(self, key_id: str) -> PublicKeyRecord:
        """Mark a key as revoked now; SigningKeyError when there is no such key."""
        lock = FolderLock(self._folder, purpose="signing key")
        try:
            for key in self.all_keys():
                if key.key_id == key_id:
                    stored = _store(key, revoked_at=key.revoked_at or int(self._now()))
                    self._replace(stored)
                    return _load(msgspec.json.encode(stored), self._path(stored)).public()
        finally:
            lock.close()
        raise SigningKeyError(f"There is no signing key {key_id} in {self._folder}")

    def all_keys(self, purpose: KeyPurpose | None = None) -> list[SigningKey]:
        """All keys, oldest first, revoked ones included."""
        found = []
        for path in self._folder.glob("*.key.json"):
            check_private_file(path, purpose="signing key")
            found.append(_load(path.read_bytes(), path))
        found.sort(key=lambda key: key.serial)
        return [key for key in found if purpose in (None, key.purpose)]

    def public_keys(self, purpose: KeyPurpose | None = None) -> list[PublicKeyRecord]:
        """What verifiers need, oldest first, revoked ones included."""
        return [key.public() for key in self.all_keys(purpose)]

    def export_public(self) -> bytes:
        """All public keys as a JSON list, to hand to a verifier out of band."""
        return msgspec.json.format(msgspec.json.encode(self.public_keys()))

    def _newest(self, purpose: KeyPurpose) -> SigningKey | None:
        usable = [key for key in self.all_keys(purpose) if key.problem(self._now()) is None]
        return usable[-1] if usable else None

    def _create(
        self, purpose: KeyPurpose, valid_for_s: int | None, *, only_if_none: bool
    ) -> SigningKey:
        lock = FolderLock(self._folder, purpose="signing key")
        try:
            existing = self._newest(purpose)
            if existing is not None and only_if_none:
                return existing
            private = Ed25519PrivateKey.generate()
            created = int(self._now())
            stored = _StoredKey(
                version=VERSION,
                key_id=_key_id(private.public_key()),
                purpose=purpose.value,
                serial=1 + max((key.serial for key in self.all_keys()), default=0),
                private_key=_encode(private.private_bytes_raw()),
                created_at=created,
                valid_until=None if valid_for_s is None else created + valid_for_s,
            )
            path = self._path(stored)
            write_private_file(path, msgspec.json.encode(stored))
            return _load(msgspec.json.encode(stored), path)
        finally:
            lock.close()

    def _replace(self, stored: "_StoredKey") -> None:
        path = self._path(stored)
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        write_private_file(fresh, msgspec.json.encode(stored))
        os.replace(fresh, path)  # noqa: PTH105
        sync_folder(self._folder)

    def _path(self, stored: "_StoredKey") -> Path:
        return self._folder / f"{stored.purpose}-{stored.key_id}.key.json"


class _StoredKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: int
    key_id: str
    purpose: str
    serial: int
    private_key: str
    created_at: int
    valid_until: int | None = None
    revoked_at: int | None = None


def _store(key: SigningKey, *, revoked_at: int) -> _StoredKey:
    return _StoredKey(
        version=VERSION,
        key_id=key.key_id,
        purpose=key.purpose.value,
        serial=key.serial,
        private_key=_encode(key.private_key.private_bytes_raw()),
        created_at=key.created_at,
        valid_until=key.valid_until,
        revoked_at=revoked_at,
    )


def _load(content: bytes, path: Path) -> SigningKey:
    try:
        stored = msgspec.json.decode(content, type=_StoredKey)
        private = Ed25519PrivateKey.from_private_bytes(_decode(stored.private_key))
        purpose = KeyPurpose(stored.purpose)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SigningKeyError(f"The signing key file {path} is malformed: {error}") from None
    if stored.version != VERSION:
        raise SigningKeyError(
            f"The signing key file {path} has version {stored.version}; only {VERSION} is known"
        )
    if stored.key_id != _key_id(private.public_key()):
        raise SigningKeyError(f"The signing key file {path} names another key than it holds")
    return SigningKey(
        stored.key_id,
        purpose,
        stored.serial,
        stored.created_at,
        stored.valid_until,
        stored.revoked_at,
        private,
    )


def _key_id(public: Ed25519PublicKey) -> str:
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
