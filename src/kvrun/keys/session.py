"""The live handle of a session's keys: seal, name blocks, and stop at once when destroyed."""

from collections.abc import Callable

from cryptography.hazmat.primitives.hmac import HMAC

from kvrun.keys.errors import KeyDestroyedError, KeyUnavailableError
from kvrun.keys.hierarchy import (
    BLOCK_NAME_BYTES,
    SessionScope,
    block_name_state,
    prefix_salt,
    session_ref,
)
from kvrun.keys.keyring import OpenedSession
from kvrun.keys.ring_entries import SessionEntry
from kvrun.seal import BlockSealer


class SessionKeys:
    """One session's keys in use, shared by everyone who acquired the session.

    It holds no raw key: the DEK lives on as the sealer's keyed hash state, the name key as
    another. Both are in the crypto library's memory, which it cleanses when the handle is
    destroyed, closed, or dropped by its last holder. Thread-safe.
    """

    __slots__ = (
        "__weakref__",
        "_entry",
        "_gone",
        "_name_state",
        "_sealer",
        "created_at",
        "generation",
        "key_id",
        "salt",
        "scope",
        "session_ref",
        "tenant_ref",
    )

    def __init__(self, opened: OpenedSession, entry: SessionEntry) -> None:
        scope = opened.scope
        self.scope: SessionScope = scope
        self.generation: int = entry.generation
        self.key_id: str = entry.key_id.hex()
        self.created_at: float = entry.created
        self.tenant_ref: str = opened.tenant_ref
        self.session_ref: str = session_ref(opened.name_key, scope)
        self.salt: str = prefix_salt(
            opened.salt_seed, scope.deployment, scope.tenant, scope.session
        )
        self._entry = entry
        self._gone: Callable[[], Exception] | None = None
        self._name_state: HMAC | None = block_name_state(opened.name_key)
        self._sealer: BlockSealer = BlockSealer(opened.dek, generation=entry.generation)

    @property
    def sealer(self) -> BlockSealer:
        """Seals and opens this session's blocks. KeyDestroyedError once the key is destroyed."""
        if self._gone is not None:
            raise self._gone()
        return self._sealer

    @property
    def destroyed(self) -> bool:
        """True from the moment a destruction of the key begins."""
        return self._gone is _destroyed

    @property
    def ended(self) -> bool:
        """True once the handle refuses, because of a destruction or a stop of the service."""
        return self._gone is not None

    @property
    def last_used_at(self) -> float:
        """Seconds since 1970."""
        return self._entry.used

    def block_name(self, identity_bytes: bytes) -> bytes:
        """16 bytes that name a block in any tier and say nothing without the session's key."""
        state = self._name_state
        if state is None:
            raise (self._gone or _closed)()
        copy = state.copy()
        copy.update(identity_bytes)
        return copy.finalize()[:BLOCK_NAME_BYTES]

    def touch(self, now: float) -> None:
        """Note a use for idle expiry; ``now`` in seconds since 1970. Written to disk lazily."""
        if now > self._entry.used:
            self._entry.used = now

    def end(self, *, destroyed: bool) -> None:
        """Cleanse the key states; every later use raises. For the key service only."""
        if self._gone is not _destroyed:
            self._gone = _destroyed if destroyed else _closed
        self._name_state = None
        self._sealer.close()

    def __del__(self) -> None:
        # A handle that fell out of the service's cache lives as long as its last holder.
        if hasattr(self, "_sealer"):
            self.end(destroyed=False)


def _destroyed() -> Exception:
    return KeyDestroyedError("This session's key was destroyed; acquire the session again")


def _closed() -> Exception:
    return KeyUnavailableError("The key service that this session key came from is closed")
