"""The key service of one deployment: sessions get keys, keep them while used, and lose them.

Thread-safe: one lock around everything that touches the disk or creates a handle. Acquiring a
live session takes no lock and does no I/O, also while a rotation runs.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import KeyUnavailableError, SessionLimitError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.hierarchy import session_ref
from kvrun.keys.keyring import Keyring
from kvrun.keys.locked import Protection
from kvrun.keys.records import check_name
from kvrun.keys.ring_entries import (
    DestructionEvidence,
    RecoveryReport,
    SessionEntry,
    TenantEntry,
)
from kvrun.keys.root import Root
from kvrun.keys.session import SessionKeys
from kvrun.keys.slots import OS_IO, SlotIO

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Bounds of one key service. Times in seconds; ``None`` means no limit."""

    max_sessions_per_tenant: int | None = 10_000
    max_sessions: int | None = 100_000
    idle_timeout_s: float | None = 7 * DAY_S
    absolute_timeout_s: float | None = 30 * DAY_S
    max_open_handles: int = 4096
    """Handles that the service keeps ready; further ones live while somebody holds them."""


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
    open: bool


class KeyService:
    """Keys of one (workspace, deployment) in ``folder``, under ``root``; see ``open``."""

    def __init__(self, ring: Keyring, root: Root, limits: KeyLimits, now: Callable[[], float]):
        self._ring = ring
        self._root = root
        self._limits = limits
        self._now = now
        self._lock = threading.RLock()
        self._open: dict[tuple[str, str], SessionKeys] = {}
        # Every handle that anyone still holds, so that a session never has two and a
        # destruction reaches all of them.
        self._alive: weakref.WeakValueDictionary[bytes, SessionKeys] = weakref.WeakValueDictionary()
        self._count = ring.session_count
        self._unreported: list[DestroyedKey] = []
        self._closed = False

    @classmethod
    def open(
        cls,
        folder: Path,
        root: Root,
        *,
        workspace: str,
        deployment: str,
        limits: KeyLimits,
        now: Callable[[], float],
        random_into: RandomInto = getrandom,
        strict_memory: bool = False,
        io: SlotIO = OS_IO,
    ) -> "KeyService":
        """Open or create the folder and finish what a crash cut short (see ``recovery``).

        ``root`` serves this key service alone; ``close`` closes it too. ``strict_memory`` refuses
        to start when key memory cannot be locked. Raises FolderBusyError, FolderPermissionError,
        RootError, MemoryLockError, or another KeysError when the folder is not this deployment's.
        """
        ring = Keyring(
            folder,
            root,
            workspace=check_name(workspace, "workspace"),
            deployment=check_name(deployment, "deployment"),
            now=now,
            strict=strict_memory,
            random_into=random_into,
            io=io,
        )
        return cls(ring, root, limits, now)

    @property
    def claim(self) -> ClaimClass:
        """What a destroyed key of this service may be said to be."""
        return self._root.facts.claim

    @property
    def protection(self) -> Protection:
        """The weakest protection of key memory."""
        return self._ring.store.protection

    @property
    def epoch(self) -> int:
        """Number of the live epoch."""
        return self._ring.epoch

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the folder had to finish or repair."""
        return self._ring.recovery

    def acquire(self, tenant: str, session: str) -> SessionKeys:
        """The session's keys; created on first use, durable before this returns.

        Counts as a use. An expired session is destroyed first and starts anew. Raises ScopeError,
        SessionLimitError (429), KeyUnavailableError (503).
        """
        handle = self._open.get((tenant, session))
        now = self._now()
        if handle is not None and self._usable(handle, now):
            handle.touch(now)
            return handle
        check_name(tenant, "tenant")
        check_name(session, "session")
        with self._lock:
            self._check_open()
            now = self._now()
            entry = self._ring.find(tenant, session)
            reason = None if entry is None else self._expiry(entry, now)
            if entry is not None and reason is not None:
                self._unreported += self._destroy({entry: reason}, {})
                entry = None
            if entry is None:
                self._make_room(tenant, now)
                entry = self._ring.create(tenant, session, now)
                self._count += 1
            entry.tenant.used = max(entry.tenant.used, now)
            handle = self._handle(entry)
            handle.touch(now)
            return handle

    def find(self, tenant: str, session: str) -> SessionKeys | None:
        """The session's keys if it has any that are not expired.

        Never creates, and is no use: who goes on to use the keys calls their ``touch``.
        """
        handle = self._open.get((tenant, session))
        if handle is not None and self._usable(handle, self._now()):
            return handle
        check_name(tenant, "tenant")
        check_name(session, "session")
        with self._lock:
            self._check_open()
            entry = self._ring.find(tenant, session)
            if entry is None or self._expiry(entry, self._now()) is not None:
                return None
            return self._handle(entry)

    def destroy_session(self, tenant: str, session: str) -> DestroyedKey | None:
        """Destroy a session's keys everywhere; None when it has none.

        When this returns, its handles refuse, its slot reads back as zeros, and older copies of
        the folder open nothing of it.
        """
        with self._lock:
            self._check_open()
            entry = self._ring.find(tenant, session)
            return None if entry is None else self._destroy({entry: "erased"}, {})[0]

    def destroy_tenant(self, tenant: str) -> list[DestroyedKey]:
        """Destroy a tenant's key and all its sessions' in one rotation.

        The tenant's own key is the last item; the list is empty when there is no such tenant.
        """
        with self._lock:
            self._check_open()
            entry = self._ring.find_tenant(tenant)
            if entry is None:
                return []
            victims = dict.fromkeys(entry.sessions.values(), "erased")
            return self._destroy(victims, {entry: "erased"})

    def destroy_expired(self) -> list[DestroyedKey]:
        """Destroy what is idle or too old, in one rotation; meant to be called regularly.

        Tenants left without sessions go too once they are idle. Also reports what ``acquire``
        destroyed since the last call, and writes last uses to disk.
        """
        with self._lock:
            self._check_open()
            now = self._now()
            victims = {
                entry: reason
                for entry in self._ring.sessions()
                if (reason := self._expiry(entry, now)) is not None
            }
            empty = [t for t in self._ring.tenants() if self._is_abandoned(t, victims, now)]
            if victims or empty:
                self._unreported += self._destroy(victims, dict.fromkeys(empty, "idle"))
            idle = self._limits.idle_timeout_s
            # What a crash may forget of a use: a hundredth of the timeout, an hour at most.
            self._persist_use(min(3600.0, 3600.0 if idle is None else idle / 100))
            done, self._unreported = self._unreported, []
            return done

    def sessions(self) -> Iterator[SessionInfo]:
        """All sessions with their ids, read from the slots one by one; changes meanwhile may or
        may not show."""
        with self._lock:
            self._check_open()
            entries = self._ring.sessions()
        for entry in entries:
            with self._lock:
                self._check_open()
                # It may have been destroyed, or replaced, since the list was taken.
                if entry.tenant.sessions.get(entry.tag) is not entry:
                    continue
                with self._ring.opened(entry) as opened:
                    info = SessionInfo(
                        opened.scope.tenant,
                        opened.scope.session,
                        opened.tenant_ref,
                        session_ref(opened.name_key, opened.scope),
                        entry.generation,
                        entry.key_id.hex(),
                        entry.created,
                        entry.used,
                        entry.key_id in self._alive,
                    )
            yield info

    def close(self) -> None:
        """Write last uses, end every handle, zero all keys in memory, close the root."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._persist_use(0.0)
            except KeyUnavailableError:
                pass  # only last uses are lost: those sessions expire earlier
            finally:
                self._open.clear()
                for handle in list(self._alive.values()):
                    handle.end(destroyed=False)
                self._ring.close()
                self._root.close()

    def _handle(self, entry: SessionEntry) -> SessionKeys:
        handle = self._alive.get(entry.key_id)
        if handle is None:
            with self._ring.opened(entry) as opened:
                handle = SessionKeys(opened, entry)
            self._alive[entry.key_id] = handle
        key = (handle.scope.tenant, handle.scope.session)
        if key not in self._open:
            if len(self._open) >= self._limits.max_open_handles:
                self._evict()
            self._open[key] = handle
        return handle

    def _evict(self) -> None:
        # An eighth at a time, least recently used first, keeps acquire free of bookkeeping.
        by_use = sorted(self._open.items(), key=lambda item: item[1].last_used_at)
        for key, _ in by_use[: max(1, len(by_use) // 8)]:
            del self._open[key]

    def _destroy(
        self, victims: Mapping[SessionEntry, str], tenants: Mapping[TenantEntry, str]
    ) -> list[DestroyedKey]:
        # Handles first: from here on nobody can use the keys, whatever happens below.
        named = [(entry, *self._end_handle(entry)) for entry in victims]
        tenant_refs = {entry: self._tenant_ref(entry) for entry in tenants}
        evidence = self._ring.destroy(list(victims), list(tenants))
        self._count = self._ring.session_count
        destroyed = [
            DestroyedKey(
                tenant_ref, ref, entry.generation, entry.key_id.hex(), victims[entry], evidence
            )
            for entry, tenant_ref, ref in named
        ]
        destroyed += [
            DestroyedKey(ref, "", 0, entry.key_id.hex(), tenants[entry], evidence)
            for entry, ref in tenant_refs.items()
        ]
        return destroyed

    def _end_handle(self, entry: SessionEntry) -> tuple[str, str]:
        """End the session's handle if it has one; its tenant and session pseudonyms."""
        handle = self._alive.pop(entry.key_id, None)
        if handle is not None:
            handle.end(destroyed=True)
            self._open.pop((handle.scope.tenant, handle.scope.session), None)
            return handle.tenant_ref, handle.session_ref
        try:
            with self._ring.opened(entry) as opened:
                return opened.tenant_ref, session_ref(opened.name_key, opened.scope)
        except KeyUnavailableError:
            return self._tenant_ref(entry.tenant), ""  # damaged: destroyed all the same

    def _tenant_ref(self, entry: TenantEntry) -> str:
        try:
            return self._ring.tenant_ref(entry)
        except KeyUnavailableError:
            return ""

    def _make_room(self, tenant: str, now: float) -> None:
        owner = self._ring.find_tenant(tenant)
        per_tenant, total = self._limits.max_sessions_per_tenant, self._limits.max_sessions
        if owner is not None and per_tenant is not None and len(owner.sessions) >= per_tenant:
            self._drop_expired(owner.sessions.values(), now)
            if len(owner.sessions) >= per_tenant:
                raise SessionLimitError(
                    f"The tenant has {len(owner.sessions)} sessions; {per_tenant} are allowed",
                    hint="Erase sessions, or wait until idle ones expire.",
                )
        if total is not None and self._count >= total:
            self._drop_expired(self._ring.sessions(), now)
            if self._count >= total:
                raise SessionLimitError(
                    f"The deployment has {self._count} sessions; {total} are allowed",
                    hint="Erase sessions, or wait until idle ones expire.",
                )

    def _drop_expired(self, entries: Iterable[SessionEntry], now: float) -> None:
        expired = {e: reason for e in entries if (reason := self._expiry(e, now)) is not None}
        if expired:
            self._unreported += self._destroy(expired, {})

    def _persist_use(self, granularity_s: float) -> None:
        moved: Sequence[SessionEntry] = [
            entry
            for entry in self._ring.sessions()
            if entry.used - entry.used_on_disk > granularity_s
        ]
        self._ring.persist_use(moved)

    def _usable(self, handle: SessionKeys, now: float) -> bool:
        return not handle.ended and not self._too_old(handle.created_at, handle.last_used_at, now)

    def _expiry(self, entry: SessionEntry, now: float) -> str | None:
        return self._too_old(entry.created, entry.used, now) or None

    def _too_old(self, created: float, used: float, now: float) -> str:
        limits = self._limits
        if limits.absolute_timeout_s is not None and now - created >= limits.absolute_timeout_s:
            return "absolute"
        if limits.idle_timeout_s is not None and now - used >= limits.idle_timeout_s:
            return "idle"
        return ""

    def _is_abandoned(
        self, tenant: TenantEntry, victims: Mapping[SessionEntry, str], now: float
    ) -> bool:
        idle = self._limits.idle_timeout_s
        if idle is None or any(entry not in victims for entry in tenant.sessions.values()):
            return False
        last = max([tenant.used, *(entry.used for entry in tenant.sessions.values())])
        return now - last >= idle

    def _check_open(self) -> None:
        if self._closed:
            raise KeyUnavailableError("The key service is closed")
