"""Destroying keys for whoever asks, many at once: concurrent destructions share one rotation."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from kvrun.keys.errors import KeyUnavailableError
from kvrun.keys.hierarchy import prefix_salt
from kvrun.keys.keyring import Keyring
from kvrun.keys.open_handles import OpenHandles
from kvrun.keys.ring_entries import (
    DestructionEvidence,
    OpenedSession,
    SessionEntry,
    TenantEntry,
)
from kvrun.keys.session import HandleEnd
from kvrun.keys.shared_run import SharedRun


@dataclass(frozen=True, slots=True)
class DestroyedKey:
    """A key that is gone. A tenant's own key has ``session_ref`` "" and ``generation`` 0."""

    tenant_ref: str
    session_ref: str
    generation: int
    key_id: str
    reason: str
    """``erased``, ``idle`` or ``absolute``."""
    evidence: DestructionEvidence
    salt: str = field(default="", repr=False)
    """What an engine knew the session by; empty where its slot did not open."""


@dataclass(frozen=True, slots=True)
class SessionVictim:
    """One session, by its ids."""

    tenant: str
    session: str


@dataclass(frozen=True, slots=True)
class TenantVictim:
    """A tenant with every session, by its id."""

    tenant: str


@dataclass(frozen=True, slots=True)
class KeyVictims:
    """Sessions and tenants by their keys' ids in hex; what was made since is left alone."""

    key_ids: frozenset[str]


Victim = SessionVictim | TenantVictim | KeyVictims
_Found = tuple[list[SessionEntry], list[TenantEntry]]


class Destroyer:
    """Destroys keys of one ring. ``lock`` guards the ring and the handles; it is reentrant."""

    def __init__(
        self, ring: Keyring, handles: OpenHandles, lock: AbstractContextManager[bool]
    ) -> None:
        self._ring = ring
        self._handles = handles
        self._lock = lock
        self._shared = SharedRun[Victim, list[DestroyedKey]](self._run)
        self._doomed: Counter[SessionVictim | TenantVictim] = Counter()
        self._doomed_lock = threading.Lock()

    def destroy(self, victim: Victim) -> list[DestroyedKey]:
        """Destroy a victim's keys, in one rotation with whatever else waits.

        From here on its handles refuse and it gets no new ones. A victim that several callers name
        is reported to the first.
        """
        with self._refusing(victim):
            return self._shared.submit(victim)

    def is_doomed(self, tenant: str, session: str) -> bool:
        """Whether a destruction that reaches the session is under way."""
        doomed = self._doomed
        return bool(doomed) and (
            SessionVictim(tenant, session) in doomed or TenantVictim(tenant) in doomed
        )

    def settle(self) -> None:
        """Wait until the destructions that are under way are over; not with the lock held."""
        self._shared.settle()

    def destroy_now(
        self, sessions: Mapping[SessionEntry, str], tenants: Mapping[TenantEntry, str]
    ) -> list[DestroyedKey]:
        """Destroy entries, each with its reason, in one rotation. The lock is held."""
        # Handles first: from here on nobody can use the keys, whatever happens below.
        salts = dict(self._end_handles(sessions))
        evidence = self._ring.destroy(list(sessions), list(tenants))
        destroyed = [
            DestroyedKey(
                entry.tenant.ref,
                entry.ref,
                entry.generation,
                entry.key_id.hex(),
                reason,
                evidence,
                salts[entry],
            )
            for entry, reason in sessions.items()
        ]
        destroyed += [
            DestroyedKey(entry.ref, "", 0, entry.key_id.hex(), reason, evidence)
            for entry, reason in tenants.items()
        ]
        return destroyed

    def _run(self, victims: Sequence[Victim]) -> list[list[DestroyedKey]]:
        with self._lock:
            self._ring.finish()
            found = [self._find(victim) for victim in victims]
            sessions = {entry: "erased" for entries, _ in found for entry in entries}
            tenants = {entry: "erased" for _, entries in found for entry in entries}
            if not sessions and not tenants:
                return [[] for _ in victims]
            by_key = {key.key_id: key for key in self.destroy_now(sessions, tenants)}
        return [
            [
                key
                for key_id in _ids(of_sessions, of_tenants)
                if (key := by_key.pop(key_id, None)) is not None
            ]
            for of_sessions, of_tenants in found
        ]

    def _find(self, victim: Victim) -> _Found:
        ring = self._ring
        match victim:
            case SessionVictim(tenant, session):
                entry = ring.find(tenant, session)
                return ([] if entry is None else [entry]), []
            case TenantVictim(tenant):
                owner = ring.find_tenant(tenant)
                return ([], []) if owner is None else (list(owner.sessions.values()), [owner])
            case KeyVictims(key_ids):
                wanted = {bytes.fromhex(key_id) for key_id in key_ids}
                owners = [t for t in ring.tenants() if t.key_id in wanted]
                sessions = [e for e in ring.sessions() if e.key_id in wanted]
                # A tenant's key takes every session with it.
                reached = dict.fromkeys(sessions)
                reached.update((e, None) for t in owners for e in t.sessions.values())
                return list(reached), owners

    @contextmanager
    def _refusing(self, victim: Victim) -> Iterator[None]:
        if isinstance(victim, KeyVictims):
            yield
            return
        if isinstance(victim, SessionVictim):
            handle = self._handles.ready(victim.tenant, victim.session)
            if handle is not None:
                handle.end(HandleEnd.DESTROYED)
        with self._doomed_lock:
            self._doomed[victim] += 1
        try:
            yield
        finally:
            with self._doomed_lock:
                self._doomed[victim] -= 1
                if not self._doomed[victim]:
                    del self._doomed[victim]

    def _end_handles(self, sessions: Iterable[SessionEntry]) -> Iterator[tuple[SessionEntry, str]]:
        """End the sessions' handles; each with its salt."""
        closed: dict[TenantEntry, list[SessionEntry]] = {}
        for entry in sessions:
            handle = self._handles.end(entry)
            if handle is not None:
                yield entry, handle.salt
            else:
                closed.setdefault(entry.tenant, []).append(entry)
        for tenant, entries in closed.items():
            try:
                with self._ring.opening(tenant) as open_session:
                    found = [(entry, _salt(open_session, entry)) for entry in entries]
            except KeyUnavailableError:
                found = [(entry, "") for entry in entries]
            yield from found


def _ids(sessions: Sequence[SessionEntry], tenants: Sequence[TenantEntry]) -> list[str]:
    return [entry.key_id.hex() for entry in sessions] + [t.key_id.hex() for t in tenants]


def _salt(open_session: Callable[[SessionEntry], OpenedSession], entry: SessionEntry) -> str:
    """A session's salt; empty where it is damaged, and destroyed all the same."""
    try:
        opened = open_session(entry)
    except KeyUnavailableError:
        return ""
    scope = opened.scope
    return prefix_salt(opened.salt_seed, scope.deployment, scope.tenant, scope.session)
