"""The live handle of a session's keys: seal, name blocks, and stop at once when destroyed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cryptography.hazmat.primitives.hmac import HMAC

from kvrun.keys.daemon_state import Pages
from kvrun.keys.errors import KeyDestroyedError, KeyUnavailableError
from kvrun.keys.hierarchy import (
    BLOCK_NAME_BYTES,
    SessionScope,
    block_name_state,
    prefix_salt,
    session_ref,
)
from kvrun.keys.lease import Lease
from kvrun.keys.ring_entries import OpenedSession
from kvrun.seal import BlockSealer


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session for listings. Times in seconds since 1970."""

    tenant: str
    session: str
    tenant_ref: str
    session_ref: str
    generation: int
    key_id: str
    created_at: float
    last_used_at: float
    expires_at: float


class KeyUse(Protocol):
    """The readable part of a session's keys. Times are seconds since 1970; ``used`` moves."""

    key_id: bytes
    generation: int
    created: float
    used: float


class HandleEnd(Enum):
    """Why a handle refuses."""

    DESTROYED = "This session's key was destroyed; acquire the session again"
    CLOSED = "The key service that this session key came from is closed"
    LEASE_OVER = "The right to use this session's key ended and was not renewed"

    def error(self) -> KeyDestroyedError | KeyUnavailableError:
        """What a use of the handle raises."""
        kind = KeyDestroyedError if self is HandleEnd.DESTROYED else KeyUnavailableError
        return kind(self.value)


class SessionKeys:
    """One session's keys in use, shared by everyone who acquired the session.

    It works while its lease holds: every use looks at the clock first, so that a process that was
    cut off or stopped cannot use a key that was destroyed meanwhile.

    It holds no raw key: the DEK lives on as the sealer's keyed hash state, the name key as
    another. Both are in the crypto library's memory, which it cleanses when the handle is
    destroyed, closed, or dropped by its last holder. Thread-safe.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_end",
        "_entry",
        "_lease",
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

    def __init__(
        self,
        opened: OpenedSession,
        entry: KeyUse,
        lease: Lease,
        clock: Callable[[], float],
    ) -> None:
        """``clock`` gives seconds of CLOCK_BOOTTIME."""
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
        self._lease = lease
        self._clock = clock
        self._end: HandleEnd | None = None
        self._name_state: HMAC | None = block_name_state(opened.name_key)
        self._sealer: BlockSealer = BlockSealer(opened.dek, generation=entry.generation)

    @property
    def sealer(self) -> BlockSealer:
        """Seals and opens this session's blocks.

        Raises KeyDestroyedError once the key is destroyed, KeyUnavailableError when the service
        was closed or the lease ended.
        """
        self._check()
        return self._sealer

    @property
    def destroyed(self) -> bool:
        """True from the moment a destruction of the key begins."""
        return self._end is HandleEnd.DESTROYED

    @property
    def ended(self) -> bool:
        """True once the handle refuses: a destruction, a stop of the service, no lease."""
        return self._end is not None or not self._lease.holds(self._clock())

    @property
    def last_used_at(self) -> float:
        """Seconds since 1970."""
        return self._entry.used

    def block_name(self, identity_bytes: bytes) -> bytes:
        """16 bytes that name a block in any tier and say nothing without the session's key."""
        state = self._name_state
        self._check()
        if state is None:
            raise HandleEnd.CLOSED.error()
        copy = state.copy()
        copy.update(identity_bytes)
        return copy.finalize()[:BLOCK_NAME_BYTES]

    def touch(self, now: float) -> None:
        """Note a use for idle expiry; ``now`` in seconds since 1970. Written to disk lazily."""
        if now > self._entry.used:
            self._entry.used = now

    def end(self, why: HandleEnd) -> None:
        """Cleanse the key states; every later use raises. For the key service only."""
        if self._end is not HandleEnd.DESTROYED:
            self._end = why
        self._name_state = None
        self._sealer.close()

    def _check(self) -> None:
        if self._end is not None:
            raise self._end.error()
        if self._clock() >= self._lease.until:
            raise HandleEnd.LEASE_OVER.error()

    def __del__(self) -> None:
        # A handle that fell out of the service's cache lives as long as its last holder.
        if hasattr(self, "_sealer"):
            self.end(HandleEnd.CLOSED)


TakenKeys = Callable[[Sequence[SessionKeys], Sequence[bytes], Callable[[Pages], None]], None]
"""See :class:`kvrun.keys.source.SessionKeySource`."""
