"""The ring of signing keys (Ed25519). Backed up, rotated, with validity and revocation.

One file a key, mode 0600, JSON. These keys are apart from the key hierarchy on purpose: they sign
statements that must stay verifiable after everything they speak of is erased.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from kvrun.claims.claim import decode_base64url, encode_base64url, key_id_of
from kvrun.durable import replace_private_file
from kvrun.keys.errors import FolderBusyError, SigningKeyError
from kvrun.keys.folder import FolderLock, check_private_file, private_folder

VERSION = 1
DEFAULT_OVERLAP_S = 3600


class KeyPurpose(Enum):
    """What a key may sign; a key has exactly one purpose."""

    CLAIM = "claim"
    """Stamped by a gateway on requests."""
    CHECKPOINT = "checkpoint"
    """An audit log's size and root."""
    COSIGNATURE = "cosignature"
    """The collector's, on the checkpoints of the logs that it collects."""
    INSTANCE = "instance"
    """Shows a key service which of a deployment's daemons it lends to."""
    CERTIFICATE = "certificate"
    """Erasure certificates and key deletion records."""
    EVIDENCE = "evidence"
    """Evaluations of fine-tunes, results of isolation self-tests, manifests of evidence bundles."""
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
    """The signing keys in ``folder`` (0700, created when missing).

    Several processes and threads may read it; changes take the folder's lock for as long as they
    last. Nothing is remembered: see :class:`CurrentKey` for who signs often.
    """

    def __init__(self, folder: Path, *, now: Callable[[], float]) -> None:
        private_folder(folder, purpose="signing key")
        self.folder = folder
        self.now = now

    def load_or_create(self, purpose: KeyPurpose, *, valid_for_s: int | None = None) -> SigningKey:
        """The newest key that may sign now, made on first use."""
        found = self._newest(purpose)
        return found or self._create(purpose, valid_for_s, only_if_none=True)

    def rotate(
        self,
        purpose: KeyPurpose,
        *,
        valid_for_s: int | None = None,
        overlap_s: int = DEFAULT_OVERLAP_S,
    ) -> SigningKey:
        """A new key that signs from now on.

        Earlier ones stay, so that their signatures verify; they may sign for ``overlap_s`` more,
        which is for processes that have not looked again yet.
        """
        return self._create(purpose, valid_for_s, only_if_none=False, overlap_s=overlap_s)

    def revoke(self, key_id: str) -> PublicKeyRecord:
        """Mark a key as revoked now; SigningKeyError when there is no such key."""
        lock = self._wait_for_lock()
        try:
            for key in self.all_keys():
                if key.key_id == key_id:
                    revoked = replace(key, revoked_at=key.revoked_at or int(self.now()))
                    self._replace(_store(revoked))
                    return revoked.public()
        finally:
            lock.close()
        raise SigningKeyError(f"There is no signing key {key_id} in {self.folder}")

    def all_keys(self, purpose: KeyPurpose | None = None) -> list[SigningKey]:
        """All keys, oldest first, revoked ones included."""
        found = []
        for path in self.folder.glob("*.key.json"):
            check_private_file(path, purpose="signing key")
            found.append(_load(path.read_bytes(), path))
        found.sort(key=lambda key: key.serial)
        return [key for key in found if purpose in (None, key.purpose)]

    def public_keys(self, purpose: KeyPurpose | None = None) -> list[PublicKeyRecord]:
        """What verifiers need, oldest first, revoked ones included."""
        return [key.public() for key in self.all_keys(purpose)]

    def _newest(self, purpose: KeyPurpose) -> SigningKey | None:
        usable = [key for key in self.all_keys(purpose) if key.problem(self.now()) is None]
        return usable[-1] if usable else None

    def _create(
        self,
        purpose: KeyPurpose,
        valid_for_s: int | None,
        *,
        only_if_none: bool,
        overlap_s: int | None = None,
    ) -> SigningKey:
        lock = self._wait_for_lock()
        try:
            existing = self._newest(purpose)
            if existing is not None and only_if_none:
                return existing
            private = Ed25519PrivateKey.generate()
            created = int(self.now())
            stored = _StoredKey(
                version=VERSION,
                key_id=key_id_of(private.public_key()),
                purpose=purpose.value,
                serial=1 + max((key.serial for key in self.all_keys()), default=0),
                private_key=_encode(private.private_bytes_raw()),
                created_at=created,
                valid_until=None if valid_for_s is None else created + valid_for_s,
            )
            self._replace(stored)
            if overlap_s is not None:
                self._close_earlier(purpose, stored.key_id, created + overlap_s)
            return _load(msgspec.json.encode(stored), self._path(stored))
        finally:
            lock.close()

    def _wait_for_lock(self) -> FolderLock:
        # A change takes milliseconds; whoever holds the folder for longer is named in the error.
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                return FolderLock(self.folder, purpose="signing key")
            except FolderBusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.01)

    def _close_earlier(self, purpose: KeyPurpose, newest: str, until: int) -> None:
        for key in self.all_keys(purpose):
            if key.key_id != newest and (key.valid_until is None or key.valid_until > until):
                self._replace(_store(replace(key, valid_until=until)))

    def _replace(self, stored: "_StoredKey") -> None:
        """Write a key's file in one step: who reads meanwhile sees all of it or what was there."""
        replace_private_file(self._path(stored), msgspec.json.encode(stored))

    def _path(self, stored: "_StoredKey") -> Path:
        return self.folder / f"{stored.purpose}-{stored.key_id}.key.json"


class CurrentKey:
    """The key that signs now, found again when the ring changed; for who signs often.

    Other processes rotate and revoke: each ``get`` looks at the folder's time of change.
    Thread-safe.
    """

    def __init__(
        self, ring: SigningRing, purpose: KeyPurpose, *, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._ring = ring
        self._purpose = purpose
        self._wall_ns = wall_ns
        self._found: tuple[int, SigningKey] | None = None

    def get(self) -> SigningKey:
        """The newest key that may sign; made when there is none."""
        changed = self._ring.folder.stat().st_mtime_ns
        found = self._found
        if found is not None and found[0] == changed and found[1].problem(self._ring.now()) is None:
            return found[1]
        key = self._ring.load_or_create(self._purpose)
        # A change right after this look could carry the same time: do not rely on it yet.
        settled = self._wall_ns() - changed > _SETTLED_NS
        self._found = (changed, key) if settled else None
        return key


class _StoredKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: int
    key_id: str
    purpose: str
    serial: int
    private_key: str
    created_at: int
    valid_until: int | None = None
    revoked_at: int | None = None


def _store(key: SigningKey) -> _StoredKey:
    return _StoredKey(
        version=VERSION,
        key_id=key.key_id,
        purpose=key.purpose.value,
        serial=key.serial,
        private_key=_encode(key.private_key.private_bytes_raw()),
        created_at=key.created_at,
        valid_until=key.valid_until,
        revoked_at=key.revoked_at,
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
    if stored.key_id != key_id_of(private.public_key()):
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


_SETTLED_NS = 100_000_000
_LOCK_PATIENCE_S = 5.0


def _encode(raw: bytes) -> str:
    return encode_base64url(raw).decode("ascii")


def _decode(text: str) -> bytes:
    raw = decode_base64url(text)
    if raw is None:
        raise ValueError("a key is not canonical base64url")
    return raw
