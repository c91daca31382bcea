"""Lists of tenants and sessions, a page at a time, from an index that has no id and no key in it.

The ring keeps each one's pseudonym beside its tag, so that lists, searches and look-ups open no
slot. Ids are read from the slots anew each time, for the rows of one answer and only where they are
asked for; what is destroyed is in the index no more.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kvrun.keys.errors import KeyUnavailableError, ScopeError
from kvrun.keys.hierarchy import TagIndex
from kvrun.keys.keyring import Keyring
from kvrun.keys.limits import KeyLimits
from kvrun.keys.records import check_name
from kvrun.keys.ring_entries import OpenedSession, SessionEntry, TenantEntry
from kvrun.keys.session import SessionInfo

MAX_ROWS = 1000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsAsked:
    """Tenants with one of these ids or pseudonyms, or whose pseudonym ``begins`` so, if given.

    ``offset`` and ``limit`` (1000 at most) cut the list; their ids are told where ``named``.
    """

    ids: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()
    begins: str | None = None
    offset: int = 0
    limit: int = MAX_ROWS
    named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsAsked:
    """Sessions of the tenant with this id or this whole pseudonym, or both; see TenantsAsked."""

    tenant: str = ""
    ref: str = ""
    offset: int = 0
    limit: int = MAX_ROWS
    named: bool = False


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A tenant that has sessions. ``tenant`` is the id where it was asked by that; else it is empty
    unless it is to be ``named`` and its slot opens. Times in seconds since 1970, those of its
    session that was used last, or ends last."""

    tenant: str
    tenant_ref: str
    session_refs: tuple[str, ...]
    last_used_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class TenantPage:
    """Some tenants, the last used first, and how many there are in all."""

    rows: tuple[TenantInfo, ...]
    total: int


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some of a tenant's sessions, the last used first, and how many there are."""

    tenant_ref: str
    rows: tuple[SessionInfo, ...]
    total: int


class SessionListing(Protocol):
    """Who can list."""

    def tenants(self, asked: TenantsAsked) -> TenantPage:
        """Some of the tenants that have sessions. Raises KeysError."""
        ...

    def sessions(self, asked: SessionsAsked) -> SessionPage:
        """Some of a tenant's sessions; none where nobody is meant. Raises KeysError."""
        ...


Naming = Callable[[TenantEntry, Sequence[SessionEntry]], list[str]]
"""The ids of a tenant and of sessions of it, in this order; empty where a slot does not open."""


class KeyIndex:
    """Where tenants and sessions are found without their ids. Pure; not thread-safe.

    ``tenants`` are the ring's, by tag under ``tags``. What stays of a ring that is closed can still
    be listed, but names nobody.
    """

    def __init__(
        self, tenants: Mapping[bytes, TenantEntry], tags: TagIndex, limits: KeyLimits
    ) -> None:
        self._tenants = tenants
        self._tags = tags
        self._limits = limits

    def __len__(self) -> int:
        """How many entries there are."""
        return sum(1 + len(entry.sessions) for entry in self._tenants.values())

    def tenants(self, asked: TenantsAsked, naming: Naming | None = None) -> TenantPage:
        """See SessionListing."""
        by_tag = {entry.tag: name for name in asked.ids if (entry := self._find(name)) is not None}
        found = [entry for entry in self._wanted(asked, by_tag) if entry.sessions]
        found.sort(key=lambda entry: (-_last_use(entry), entry.ref))
        naming = naming if asked.named and naming else _unnamed
        rows = (
            self._tenant(entry, by_tag.get(entry.tag) or naming(entry, ())[0])
            for entry in _cut(found, asked.offset, asked.limit)
        )
        return TenantPage(tuple(rows), len(found))

    def sessions(self, asked: SessionsAsked, naming: Naming | None = None) -> SessionPage:
        """See SessionListing."""
        owner = self._owner(asked)
        if owner is None:
            return SessionPage("", (), 0)
        found = sorted(owner.sessions.values(), key=lambda entry: (-entry.used, entry.ref))
        rows = _cut(found, asked.offset, asked.limit)
        tenant, *names = (naming if asked.named and naming else _unnamed)(owner, rows)
        infos = (self._session(row, tenant, name) for row, name in zip(rows, names, strict=True))
        return SessionPage(owner.ref if found else "", tuple(infos), len(found))

    def _find(self, tenant: str) -> TenantEntry | None:
        try:
            return self._tenants.get(self._tags.tenant_tag(check_name(tenant, "tenant")))
        except ScopeError:
            return None  # nobody can have such an id

    def _wanted(self, asked: TenantsAsked, tags: Container[bytes]) -> Iterator[TenantEntry]:
        refs, begins = frozenset(asked.refs), asked.begins
        for tag, entry in self._tenants.items():
            begun = begins is not None and entry.ref.startswith(begins)
            if begun or tag in tags or entry.ref in refs:
                yield entry

    def _owner(self, asked: SessionsAsked) -> TenantEntry | None:
        if asked.tenant:
            owner = self._find(asked.tenant)
            return owner if owner is not None and asked.ref in ("", owner.ref) else None
        return next((t for t in self._tenants.values() if t.ref == asked.ref), None)

    def _tenant(self, entry: TenantEntry, name: str) -> TenantInfo:
        ends = self._limits.expires_at
        sessions = entry.sessions.values()
        return TenantInfo(
            name,
            entry.ref,
            tuple(session.ref for session in sessions),
            _last_use(entry),
            max(ends(session.created, session.used) for session in sessions),
        )

    def _session(self, entry: SessionEntry, tenant: str, name: str) -> SessionInfo:
        return SessionInfo(
            tenant,
            name,
            entry.tenant.ref,
            entry.ref,
            entry.generation,
            entry.key_id.hex(),
            entry.created,
            entry.used,
            self._limits.expires_at(entry.created, entry.used),
        )


class KeyListing:
    """Lists the keys of one key service. Thread-safe: ``held`` gives the ring with its lock."""

    def __init__(
        self,
        held: Callable[[], AbstractContextManager[Keyring]],
        ring: Keyring,
        limits: KeyLimits,
    ) -> None:
        self._held = held
        self.index = KeyIndex(ring.by_tag, ring.store.tags, limits)

    def tenants(self, asked: TenantsAsked) -> TenantPage:
        """See SessionListing."""
        with self._naming() as naming:
            return self.index.tenants(asked, naming)

    def sessions(self, asked: SessionsAsked) -> SessionPage:
        """See SessionListing."""
        with self._naming() as naming:
            return self.index.sessions(asked, naming)

    @contextmanager
    def _naming(self) -> Iterator[Naming]:
        with self._held() as ring:
            ring.check()
            yield lambda owner, entries: _names(ring, owner, entries)


def _names(ring: Keyring, owner: TenantEntry, entries: Sequence[SessionEntry]) -> list[str]:
    try:
        tenant = ring.tenant_name(owner)
        if not entries:
            return [tenant]
        with ring.opening(owner) as open_session:
            return [tenant, *(_name(open_session, entry) for entry in entries)]
    except KeyUnavailableError:
        return _unnamed(owner, entries)


def _name(open_session: Callable[[SessionEntry], OpenedSession], entry: SessionEntry) -> str:
    try:
        return open_session(entry).scope.session
    except KeyUnavailableError:
        return ""


def _unnamed(_owner: TenantEntry, entries: Sequence[SessionEntry]) -> list[str]:
    return [""] * (1 + len(entries))


def _last_use(entry: TenantEntry) -> float:
    return max([session.used for session in entry.sessions.values()])


def _cut(found: list[_T], offset: int, limit: int) -> list[_T]:
    return found[max(0, offset) : max(0, offset) + max(0, min(limit, MAX_ROWS))]
