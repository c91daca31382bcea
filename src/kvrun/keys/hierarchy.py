"""Derivations of the key hierarchy: pure functions over keys in locked memory.

root -> workspace key -> deployment key -> tenant key -> session keys, the last two under the key
of their slot too, and that under the epoch key. Random keys are wrapped, never derived; what is
derived here are wrapping keys, look-up tags, pseudonyms and salts.
"""

import struct
from dataclasses import dataclass

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kvrun.claims.claim import encode_base64url
from kvrun.keys.entropy import RandomInto
from kvrun.keys.records import HEADER_BYTES, KEY_BYTES, LASTING_BYTES, RecordKind
from kvrun.keys.wrap import KeyWrapper, context, prefixed

TAG_BYTES = 16
BLOCK_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class SessionScope:
    """Whose key it is: each id is 1 to 128 printable ASCII characters."""

    workspace: str
    deployment: str
    tenant: str
    session: str


class RingContext:
    """What every wrap of one key ring is bound to, beside its own record header."""

    def __init__(self, keyring_id: bytes, workspace: str, deployment: str) -> None:
        self.keyring_id = keyring_id
        self.workspace = workspace
        self.deployment = deployment
        ring = (keyring_id, workspace.encode("ascii"), deployment.encode("ascii"))
        prefixes = {kind: context(struct.pack(">H", kind), *ring) for kind in RecordKind}
        whole, lasting = (struct.pack(">H", size) for size in (HEADER_BYTES, LASTING_BYTES))
        self._before_whole = {kind: prefix + whole for kind, prefix in prefixes.items()}
        self._before_lasting = {kind: prefix + lasting for kind, prefix in prefixes.items()}

    def scope(self, tenant: str, session: str) -> SessionScope:
        """Whose keys a session's are."""
        return SessionScope(self.workspace, self.deployment, tenant, session)

    def aad(self, kind: RecordKind, header: bytes) -> bytes:
        """The AAD of a record's wrap: kind, ring, workspace, deployment, packed header."""
        return self._before_whole[kind] + header

    def inner_aad(self, kind: RecordKind, header: bytes) -> bytes:
        """The AAD of an inner wrap: as ``aad`` with what never changes of the header."""
        return self._before_lasting[kind] + header[:LASTING_BYTES]


class Deriver:
    """Derives wrapping keys with HKDF-SHA-256.

    ``scratch`` is 96 bytes of locked memory that every derivation uses and zeroes again.
    """

    def __init__(self, keyring_id: bytes, scratch: memoryview, random_into: RandomInto) -> None:
        self._keyring_id = keyring_id
        self._scratch = scratch
        self._random_into = random_into

    def table_wrapper(
        self, epoch_key: memoryview, epoch: int, deployment_key: memoryview, deployment_id: bytes
    ) -> KeyWrapper:
        """Wraps the tables of slot keys of one epoch."""
        info = _EPOCH_LABEL + prefixed(struct.pack(">Q", epoch), deployment_id)
        return self._wrapper(info, epoch_key, deployment_key)

    def record_wrapper(self, parent_key: memoryview, parent_id: bytes) -> KeyWrapper:
        """The inner wrap of the children of a tenant key or of the deployment key."""
        return self._wrapper(_PARENT_LABEL + prefixed(parent_id), parent_key)

    def _wrapper(self, info: bytes, *keys: memoryview) -> KeyWrapper:
        material, out = self._scratch[: len(keys) * KEY_BYTES], self._scratch[2 * KEY_BYTES :]
        try:
            for number, key in enumerate(keys):
                material[number * KEY_BYTES : (number + 1) * KEY_BYTES] = key
            derivation = HKDF(SHA256(), KEY_BYTES, salt=self._keyring_id, info=info)
            derivation.derive_into(material, out)
            return KeyWrapper(out, self._random_into)
        finally:
            self._scratch[:] = bytes(3 * KEY_BYTES)


class TagIndex:
    """Keyed tags under which a process finds entries by their ids.

    The key is the process's own and tags are in no file.
    """

    def __init__(self, key: memoryview) -> None:
        self._state = HMAC(key, SHA256())

    def tenant_tag(self, tenant: str) -> bytes:
        """The tag of a tenant, 16 bytes."""
        return _finish(self._state, prefixed(b"tenant", tenant.encode("ascii")))[:TAG_BYTES]

    def session_tag(self, tenant: str, session: str) -> bytes:
        """The tag of a session, 16 bytes."""
        text = prefixed(b"session", tenant.encode("ascii"), session.encode("ascii"))
        return _finish(self._state, text)[:TAG_BYTES]


def tenant_ref(tenant_key: memoryview, workspace: str, deployment: str, tenant: str) -> str:
    """The tenant's pseudonym: 32 hex characters that nobody can link once its key is gone."""
    fields = (b"kvrun/tenant-ref/v1", *(_ascii(x) for x in (workspace, deployment, tenant)))
    return _finish(HMAC(tenant_key, SHA256()), prefixed(*fields))[:16].hex()


def session_ref(name_key: memoryview, scope: SessionScope) -> str:
    """The session's pseudonym: 32 hex characters, gone with the session's keys."""
    ids = (scope.workspace, scope.deployment, scope.tenant, scope.session)
    fields = (b"kvrun/session-ref/v1", *(_ascii(x) for x in ids))
    return _finish(HMAC(name_key, SHA256()), prefixed(*fields))[:16].hex()


def block_name_state(name_key: memoryview) -> HMAC:
    """A keyed state with the label absorbed; copy it for each block name."""
    state = HMAC(name_key, SHA256())
    state.update(prefixed(b"kvrun/block-name/v1"))
    return state


def prefix_salt(salt_seed: memoryview, deployment: str, tenant: str, session: str) -> str:
    """The engine's prefix-cache salt: 43 characters of base64url without padding."""
    fields = prefixed(*(_ascii(x) for x in (deployment, tenant, session)))
    digest = _finish(HMAC(salt_seed, SHA256()), fields)
    return encode_base64url(digest).decode("ascii")


_EPOCH_LABEL = b"kvrun/epoch-key/v1\x00"
_PARENT_LABEL = b"kvrun/record-key/v1\x00"


def _ascii(text: str) -> bytes:
    return text.encode("ascii")


def _finish(state: HMAC, text: bytes) -> bytes:
    copy = state.copy()
    copy.update(text)
    return copy.finalize()
