"""The key service of one deployment: sessions get keys, keep them while used, and lose them.

Thread-safe: one lock around everything that touches the disk or creates a handle. Acquiring a
live session takes no lock and does no I/O, also while a rotation runs.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvrun.keys.destruction import (
    DestroyedKey,
    Destroyer,
    KeyVictims,
    SessionVictim,
    TenantVictim,
)
from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import KeyUnavailableError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.keyring import Keyring
from kvrun.keys.lease import Lease
from kvrun.keys.lease_keeper import LeaseKeeper, boottime
from kvrun.keys.limits import KeyLimits
from kvrun.keys.listing import KeyListing
from kvrun.keys.locked import Protection
from kvrun.keys.open_handles import OpenHandles
from kvrun.keys.records import check_name
from kvrun.keys.ring_entries import BeforeLoss, RecoveryReport, SessionEntry, TenantEntry, let_it_go
from kvrun.keys.room import make_room
from kvrun.keys.root import Root, RootFacts
from kvrun.keys.selection import KeySelection
from kvrun.keys.session import HandleEnd, SessionKeys, TakenKeys
from kvrun.keys.slots import OS_IO, SlotIO


class KeyService:
    """Keys of one (workspace, deployment) in ``folder``, under ``root``; see ``open``.

    ``on_lease_end`` is called, from a background thread, when the root stopped to answer for a
    whole lease or revoked us: handles refuse by then, and their owner should scrub what they
    opened.
    """

    def __init__(
        self,
        ring: Keyring,
        root: Root,
        limits: KeyLimits,
        now: Callable[[], float],
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._ring = ring
        self._root = root
        self._limits = limits
        self._now = now
        self._clock = clock
        self._lock = threading.RLock()
        self._handles = OpenHandles(ring, at_most=limits.max_open_handles, clock=clock)
        self._destroyer = Destroyer(ring, self._handles, self._lock)
        self._keeper: LeaseKeeper | None = None
        self._unreported: list[DestroyedKey] = []
        self._closed = False
        self.on_lease_end: Callable[[str], None] = lambda _reason: None
        self.on_taken: TakenKeys = lambda _keys, _owners, _tell: None
        self.on_new_service: Callable[[], object] = lambda: None
        self.selection = KeySelection(self)
        self.listing = KeyListing(self.ring, ring, limits)

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
        lease_s: float | None = None,
        clock: Callable[[], float] = boottime,
        random_into: RandomInto = getrandom,
        strict_memory: bool = False,
        io: SlotIO = OS_IO,
        before_loss: BeforeLoss = let_it_go,
    ) -> "KeyService":
        """Open or create the folder and finish what a crash cut short (see ``recovery``).

        ``root`` serves this key service alone; ``close`` closes it too. With ``lease_s`` keys are
        used only while the root confirmed so recently that it still answers; it is asked in the
        background. ``strict_memory`` refuses to start when key memory cannot be locked. Raises
        FolderBusyError, FolderPermissionError, RootError, MemoryLockError, or another KeysError
        when the folder is not this deployment's.
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
            before_loss=before_loss,
        )
        service = cls(ring, root, limits, now, clock)
        if lease_s is not None:
            try:
                service._keep_lease(lease_s)
            except BaseException:
                ring.close()
                raise
        return service

    @property
    def claim(self) -> ClaimClass:
        """What a destroyed key of this service may be said to be."""
        return self._root.facts.claim

    @property
    def root_facts(self) -> RootFacts:
        """What the root is."""
        return self._root.facts

    @property
    def protection(self) -> Protection:
        """The weakest protection of key memory."""
        return self._ring.store.protection

    @property
    def epoch(self) -> int:
        """Number of the live epoch."""
        return self._ring.epoch

    @property
    def slots_path(self) -> Path:
        """The file of tenants' and sessions' keys."""
        return self._ring.store.slots.path

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the folder had to finish or repair."""
        return self._ring.recovery

    @property
    def recovery_text(self) -> str:
        """Of ``recovery`` what users may notice, for people."""
        return self.recovery.text

    @property
    def leased(self) -> bool:
        """Whether keys may be used now."""
        return self._handles.lease.holds(self._clock())

    @property
    def lease_left_s(self) -> float:
        """For how long, unless the root confirms the keys again."""
        return self._handles.lease.until - self._clock()

    @property
    def lease_text(self) -> str:
        """The state of the lease, for people."""
        return "keys may be used" if self.leased else "over: the key root does not confirm the keys"

    @property
    def session_count(self) -> int:
        """Number of sessions with a key."""
        return self._ring.session_count

    def acquire(self, tenant: str, session: str) -> SessionKeys:
        """The session's keys; created on first use, durable before this returns.

        Counts as a use. An expired session is destroyed first and starts anew; one that is being
        destroyed starts anew after that. Raises ScopeError, SessionLimitError (429),
        KeyUnavailableError (503).
        """
        now = self._now()
        handle = self._handles.ready(tenant, session)
        if handle is not None and self._usable(handle, now):
            handle.touch(now)
            return handle
        check_name(tenant, "tenant")
        check_name(session, "session")
        self.settle(tenant, session)
        with self._lock:
            entry = self.entry(tenant, session, create=True)
            assert entry is not None
            return self._handles.of(entry)

    def find(self, tenant: str, session: str) -> SessionKeys | None:
        """The session's keys if it has any that are not expired.

        Never creates, and is no use: who goes on to use the keys calls their ``touch``.
        """
        handle = self._handles.ready(tenant, session)
        if handle is not None and self._usable(handle, self._now()):
            return handle
        check_name(tenant, "tenant")
        check_name(session, "session")
        if self.is_doomed(tenant, session):
            return None
        with self._lock:
            entry = self.entry(tenant, session, create=False)
            return None if entry is None else self._handles.of(entry)

    def is_doomed(self, tenant: str, session: str) -> bool:
        """Whether a destruction that reaches the session is under way."""
        return self._destroyer.is_doomed(tenant, session)

    def settle(self, tenant: str, session: str) -> None:
        """Wait for destructions under way that reach a session; not with the lock held."""
        if self.is_doomed(tenant, session):
            # Only for those that came before: a later one may take what is made afterwards.
            self._destroyer.settle()

    def entry(self, tenant: str, session: str, *, create: bool) -> SessionEntry | None:
        """A session that has keys now, used where it may be created. With the lock held."""
        self._check_open()
        now = self._now()
        entry = self._ring.find(tenant, session)
        reason = "" if entry is None else self._expiry(entry, now)
        if not create:
            return None if reason else entry
        if entry is not None and reason:
            self._unreported += self._destroyer.destroy_now({entry: reason}, {})
            entry = None
        if entry is None:
            make_room(self._ring, self._limits, tenant, lambda e: self._drop_expired(e, now))
            entry = self._ring.create(tenant, session, now)
        entry.tenant.used = max(entry.tenant.used, now)
        entry.used = max(entry.used, now)
        return entry

    def destroy_session(self, tenant: str, session: str) -> DestroyedKey | None:
        """Destroy a session's keys everywhere; None when it has none.

        When this returns, its handles refuse, its slot reads back as zeros, and older copies of
        the folder open nothing of it. Destructions at the same time share one rotation.
        """
        self._check_open()
        destroyed = self._destroyer.destroy(SessionVictim(tenant, session))
        return destroyed[0] if destroyed else None

    def destroy_tenant(self, tenant: str) -> list[DestroyedKey]:
        """Destroy a tenant's key and all its sessions' in one rotation.

        The tenant's own key is the last item; the list is empty when there is no such tenant.
        """
        self._check_open()
        return self._destroyer.destroy(TenantVictim(tenant))

    def destroy_keys(self, key_ids: Collection[str]) -> list[DestroyedKey]:
        """Destroy those of the keys (ids in hex) that exist; a tenant's takes its sessions too."""
        self._check_open()
        return self._destroyer.destroy(KeyVictims(frozenset(key_ids)))

    def rotate_epoch(self) -> int:
        """Put a new epoch key in the place of the live one; its number."""
        with self._lock:
            self._check_open()
            self._ring.destroy([])
            return self._ring.epoch

    def rotate_root(self) -> None:
        """Put a new root key in the place of the root's.

        Raises RootError when this kind of root does not do that by itself.
        """
        with self._lock:
            self._check_open()
            self._ring.rotate_root()

    def destroy_expired(self) -> list[DestroyedKey]:
        """Destroy what is idle or too old, in one rotation; meant to be called regularly.

        Tenants left without sessions go too once they are idle. Also reports what ``acquire``
        destroyed since the last call, and writes last uses to disk.
        """
        with self._lock:
            self._check_open()
            self._ring.finish()
            now = self._now()
            victims = {
                entry: reason
                for entry in self._ring.sessions()
                if (reason := self._expiry(entry, now))
            }
            empty = [t for t in self._ring.tenants() if self._is_abandoned(t, victims, now)]
            if victims or empty:
                idle_tenants = dict.fromkeys(empty, "idle")
                self._unreported += self._destroyer.destroy_now(victims, idle_tenants)
            idle = self._limits.idle_timeout_s
            # What a crash may forget of a use: a hundredth of the timeout, an hour at most.
            self._persist_use(min(3600.0, 3600.0 if idle is None else idle / 100))
            return self.destroyed_by_use()

    def destroyed_by_use(self) -> list[DestroyedKey]:
        """What ``acquire`` destroyed since somebody asked, here or by ``destroy_expired``."""
        with self._lock:
            done, self._unreported = self._unreported, []
            return done

    @contextmanager
    def ring(self) -> Iterator[Keyring]:
        """The key ring, with the lock held. Raises KeyUnavailableError when it cannot be used."""
        with self._lock:
            self._check_open()
            yield self._ring

    def living(
        self, key_ids: Iterable[bytes], *, within_s: float | None
    ) -> dict[bytes, SessionEntry] | None:
        """Those of the sessions' keys that exist.

        None where keys are being destroyed for longer than ``within_s``, and nobody could look.
        """
        if not self._lock.acquire(timeout=-1 if within_s is None else within_s):
            return None
        try:
            return {i: entry for i in key_ids if (entry := self._ring.session_of(i)) is not None}
        finally:
            self._lock.release()

    def close(self) -> None:
        """Write last uses, end every handle, zero all keys in memory, close the root."""
        if self._keeper is not None:
            self._keeper.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._persist_use(0.0)
            except KeyUnavailableError:
                pass  # only last uses are lost: those sessions expire earlier
            finally:
                self._handles.end_all(HandleEnd.CLOSED)
                self._ring.close()
                self._root.close()

    def _drop_expired(self, entries: Iterable[SessionEntry], now: float) -> None:
        expired = {e: reason for e in entries if (reason := self._expiry(e, now))}
        if expired:
            self._unreported += self._destroyer.destroy_now(expired, {})

    def _persist_use(self, granularity_s: float) -> None:
        used = self._ring.sessions()
        self._ring.persist_use([e for e in used if e.used - e.used_on_disk > granularity_s])

    def _usable(self, handle: SessionKeys, now: float) -> bool:
        expired = self._limits.expired(handle.created_at, handle.last_used_at, now)
        return not expired and not handle.ended

    def _expiry(self, entry: SessionEntry, now: float) -> str:
        return self._limits.expired(entry.created, entry.used, now)

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
        if not self.leased:
            raise KeyUnavailableError(
                "Keys cannot be used: the key root has not confirmed them in time",
                hint="They come back when the root answers again.",
            )

    def _keep_lease(self, duration_s: float) -> None:
        keeper = LeaseKeeper(
            self._root.check,
            duration_s=duration_s,
            clock=self._clock,
            ended=self._lease_ended,
            began=self._lease_began,
        )
        self._handles.lease = keeper.lease
        self._keeper = keeper
        keeper.start()

    def _lease_ended(self, reason: str) -> None:
        with self._lock:
            if self._closed:
                return
            self._handles.end_all(HandleEnd.LEASE_OVER)
            self._ring.put_away()
        self.on_lease_end(reason)

    def _lease_began(self, lease: Lease) -> None:
        with self._lock:
            if not self._closed:
                self._ring.take_up()
                self._handles.lease = lease
