"""The gateway's signing key and the daemon's verification keys as files."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from kvrun.durable import write_private_file
from kvrun.errors import KvrunError


class ClaimKeyError(KvrunError):
    """A claim key file that is missing, unreadable, too open or not an Ed25519 key."""

    exit_code = 2


def create_signing_key(path: Path) -> Ed25519PrivateKey:
    """Write a new Ed25519 private key (PKCS#8 PEM, mode 0600); an existing file is never replaced.

    Raises ClaimKeyError.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_file(path, pem)
    except OSError as error:
        raise ClaimKeyError(f"cannot create claim key {path}: {error.strerror}") from None
    return key


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read the private key. Raises ClaimKeyError, also where others may read the file."""
    pem = _read(path)
    if path.stat().st_mode & 0o077:
        raise ClaimKeyError(
            f"claim key {path} may be read by other users", hint=f"Run: chmod 600 {path}"
        )
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ClaimKeyError(f"claim key {path} is not an unencrypted PEM private key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ClaimKeyError(f"claim key {path} is not an Ed25519 key")
    return key


def load_verification_key(path: Path) -> Ed25519PublicKey:
    """Read a public key written as 64 hex digits. Raises ClaimKeyError."""
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(_read(path).decode("ascii")))
    except ValueError:
        raise ClaimKeyError(
            f"claim verification key {path} is not an Ed25519 key in 64 hex digits"
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ClaimKeyError(f"cannot read claim key {path}: {error.strerror}") from None
