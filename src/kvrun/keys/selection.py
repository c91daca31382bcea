"""Which keys an erasure reaches, and destroying exactly those, whatever was created since.

An erasure that goes on after a crash knows key ids only: names were never written down.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Protocol

from kvrun.keys.canary import KeyCanary, canary_opens, take_canary
from kvrun.keys.daemon_state import DaemonState
from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.errors import KeyUnavailableError
from kvrun.keys.hierarchy import prefix_salt
from kvrun.keys.keyring import Keyring
from kvrun.keys.ring_entries import SessionEntry, TenantEntry
from kvrun.keys.root import RootFacts

_MAX_CANARIES = 8


@dataclass(frozen=True, slots=True)
class SelectedKey:
    """A live key: a session's, or with an empty ``session_ref`` and generation 0 a tenant's own.

    The salt is empty where the slot does not open; the key is destroyed all the same.
    """

    key_id: str
    generation: int
    tenant_ref: str
    session_ref: str
    salt: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys of a scope, copies of some of them as they stand on disk, and the live epoch."""

    keys: tuple[SelectedKey, ...]
    canaries: tuple[KeyCanary, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Destruction:
    """Keys that were destroyed, and which other daemons were told to let go of them, by process id
    and name. ``shared``: there may be such daemons."""

    keys: tuple[DestroyedKey, ...]
    told: tuple[tuple[int, str], ...] = ()
    shared: bool = False


class KeyHolder(Protocol):
    """What is looked into of a :class:`kvrun.keys.service.KeyService`."""

    def ring(self) -> AbstractContextManager[Keyring]:
        """The key ring, with the lock held."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the live epoch."""
        ...

    def destroy_keys(self, key_ids: Collection[str]) -> list[DestroyedKey]:
        """Destroy those of the keys that exist."""
        ...


class KeySelection:
    """Looks into one key service. Thread-safe, like it."""

    def __init__(self, service: KeyHolder) -> None:
        self._service = service

    def select(self, tenant_ids: Collection[str] | None, session: str | None) -> Selection:
        """The keys of tenants and of their sessions, or of a session of theirs; None: every key."""
        service = self._service
        with self._service.ring() as ring:
            if tenant_ids is None:
                tenants: Sequence[TenantEntry] = ring.tenants()
            else:
                owners = (ring.find_tenant(tenant) for tenant in sorted(tenant_ids))
                tenants = [owner for owner in owners if owner is not None]
            if tenant_ids is not None and session is not None:
                ones = (ring.find(tenant, session) for tenant in sorted(tenant_ids))
                sessions = [one for one in ones if one is not None]
                tenants = []
            else:
                sessions = [entry for owner in tenants for entry in owner.sessions.values()]
            found = [self._selected(entry) for entry in sessions]
            for owner in tenants:
                found.append(SelectedKey(owner.key_id.hex(), 0, owner.ref, "", ""))
            copies = [take_canary(ring, entry) for entry in sessions[:_MAX_CANARIES]]
            canaries = tuple(c for c in copies if c is not None and canary_opens(ring, c))
            return Selection(tuple(found), canaries, service.epoch)

    def ids_of(self, refs: Collection[str]) -> frozenset[str]:
        """The ids of those tenants, named by pseudonym, that have a key which opens."""
        found: set[str] = set()
        wanted = frozenset(refs)
        with self._service.ring() as ring:
            for owner in ring.tenants():
                if owner.ref in wanted:
                    with suppress(KeyUnavailableError):
                        found.add(ring.tenant_name(owner))
        return frozenset(found)

    def living(self, key_ids: Collection[str]) -> list[str]:
        """Those of the ids whose keys still exist."""
        with self._service.ring() as ring:
            wanted = {bytes.fromhex(key_id) for key_id in key_ids}
            entries: list[SessionEntry | TenantEntry] = [*ring.sessions(), *ring.tenants()]
            return [entry.key_id.hex() for entry in entries if entry.key_id in wanted]

    def destroy(
        self, key_ids: Collection[str], *, erasure: str = "", owners: Collection[bytes] = ()
    ) -> Destruction:
        """Destroy those of the keys that exist, in one rotation with whoever else waits."""
        return Destruction(tuple(self._service.destroy_keys(key_ids)))

    def settle(
        self, erasure: str, daemons: Sequence[str], *, pages_within_s: float | None
    ) -> list[DaemonState]:
        """Nobody else has keys of this process."""
        return []

    def opens(self, canaries: Sequence[KeyCanary]) -> list[KeyCanary]:
        """Those of the copies that some key still opens; empty is the proof."""
        with self._service.ring() as ring:
            return [canary for canary in canaries if canary_opens(ring, canary)]

    def epoch_lives(self, epoch: int) -> bool:
        """Whether the root still holds the epoch's key."""
        with self._service.ring() as ring:
            return epoch in ring.store.root.epochs()

    def root(self) -> RootFacts:
        """What the root is."""
        with self._service.ring() as ring:
            return ring.store.root.facts

    def _selected(self, entry: SessionEntry) -> SelectedKey:
        key_id, refs, salt = entry.key_id.hex(), (entry.tenant.ref, entry.ref), ""
        with (
            self._service.ring() as ring,
            suppress(KeyUnavailableError),
            ring.opened(entry) as opened,
        ):
            scope = opened.scope
            salt = prefix_salt(opened.salt_seed, scope.deployment, scope.tenant, scope.session)
        return SelectedKey(key_id, entry.generation, *refs, salt)
