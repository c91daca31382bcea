"""API keys: random, shown once, stored as hashes.

A key is ``kvk_`` and 43 characters of base64url (256 random bits). With that much randomness a
plain SHA-256 cannot be searched, so no slow password hash is needed on the request path.

The keys file is JSON: ``{"keys": [{"id", "sha256", "scopes", "tenant"?, "expires_at"?}]}``.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvrun.claims.claim import encode_base64url
from kvrun.durable import replace_private_file
from kvrun.gateway.errors import GatewayConfigError, GatewayError
from kvrun.gateway.identity import Principal

KEY_PREFIX = "kvk_"
SCOPE_INFERENCE = "inference"
SCOPE_METRICS = "metrics"
SCOPE_ERASE = "erase"
SCOPES = frozenset({SCOPE_INFERENCE, SCOPE_METRICS, SCOPE_ERASE})


class ApiKeyRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored of a key. ``tenant`` limits it to one tenant; times are seconds since 1970."""

    id: str
    sha256: str
    scopes: tuple[str, ...] = (SCOPE_INFERENCE,)
    tenant: str | None = None
    expires_at: int | None = None


class ApiKeys:
    """The known keys, looked up by hash."""

    def __init__(self, records: Iterable[ApiKeyRecord]) -> None:
        self._holders: dict[bytes, tuple[bytes, int | None, Principal | None]] = {
            (digest := bytes.fromhex(record.sha256)): (
                digest,
                record.expires_at,
                Principal("api_key", record.id, frozenset(record.scopes), tenant=record.tenant),
            )
            for record in records
        }

    def authenticate(self, key: str, now: float) -> Principal:
        """Who holds this key. Raises GatewayError 401 without saying why."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        # The lookup goes by the hash, which a caller cannot steer byte by byte; the comparison
        # of the full digest takes the same time wherever it differs.
        stored, expires_at, principal = self._holders.get(digest, _NOBODY)
        if not hmac.compare_digest(stored, digest) or principal is None:
            raise GatewayError("the API key is not valid", status=401, code="invalid_api_key")
        if expires_at is not None and now >= expires_at:
            raise GatewayError("the API key is not valid", status=401, code="invalid_api_key")
        return principal


def make_api_key(random_bytes: bytes) -> str:
    """A key's text from 32 random bytes."""
    if len(random_bytes) != 32:
        raise ValueError("an API key is made of exactly 32 random bytes")
    return KEY_PREFIX + encode_base64url(random_bytes).decode()


def hash_api_key(key: str) -> str:
    """The hex SHA-256 that is stored in place of the key."""
    return hashlib.sha256(key.encode()).hexdigest()


def load_api_keys(path: Path) -> list[ApiKeyRecord]:
    """Read and check the keys file. Raises GatewayConfigError that names the key and field."""
    try:
        if path.stat().st_mode & 0o077:
            raise GatewayConfigError(
                f"api_keys_file {path} may be read by other users", hint=f"Run: chmod 600 {path}"
            )
        records = msgspec.json.decode(path.read_bytes(), type=_KeysFile).keys
    except OSError as error:
        raise GatewayConfigError(f"cannot read api_keys_file {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise GatewayConfigError(f"api_keys_file {path} is malformed: {error}") from None
    seen: set[str] = set()
    for record in records:
        _check_record(record, path)
        if record.id in seen:
            raise GatewayConfigError(f"api_keys_file {path} holds the key id {record.id!r} twice")
        seen.add(record.id)
    return records


def save_api_keys(path: Path, records: Iterable[ApiKeyRecord]) -> None:
    """Write the keys file (mode 0600) in one step, durably: a revoked key stays revoked.

    Raises GatewayConfigError when it cannot be written; it is as it was then.
    """
    for record in (records := list(records)):
        _check_record(record, path)
    content = msgspec.json.format(msgspec.json.encode(_KeysFile(keys=records))) + b"\n"
    try:
        replace_private_file(path, content)
    except OSError as error:
        raise GatewayConfigError(f"cannot write api_keys_file {path}: {error.strerror}") from error


class _KeysFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[ApiKeyRecord]


def _check_record(record: ApiKeyRecord, path: Path) -> None:
    where = f"api_keys_file {path}, key {record.id!r}:"
    if not _KEY_NAME.fullmatch(record.id):
        raise GatewayConfigError(f"{where} id must be 1 to 64 of A-Z a-z 0-9 . _ -")
    if not re.fullmatch(r"[0-9a-f]{64}", record.sha256):
        raise GatewayConfigError(f"{where} sha256 must be 64 lower-case hex digits")
    unknown = set(record.scopes) - SCOPES
    if unknown:
        raise GatewayConfigError(
            f"{where} unknown scope {sorted(unknown)[0]!r}, allowed are {', '.join(sorted(SCOPES))}"
        )
    if record.tenant is not None and not re.fullmatch(r"[\x21-\x7e]{1,128}", record.tenant):
        raise GatewayConfigError(f"{where} tenant must be 1 to 128 printable ASCII characters")


_KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NOBODY: tuple[bytes, int | None, Principal | None] = (bytes(32), None, None)
