"""The keys of a deployment whose key service is a process of its own.

What is used goes by a lease that counts from before it was asked for. While the service is away
keys go on until that ends; then every use fails until it is back, and nothing has to be restarted.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.keys.daemon_state import Pages
from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.errors import KeyUnavailableError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.hierarchy import SessionScope
from kvrun.keys.lease import MAX_LEASE_S, Lease
from kvrun.keys.lease_keeper import LeaseKeeper, boottime
from kvrun.keys.limits import KeyLimits
from kvrun.keys.locked import Protection
from kvrun.keys.records import check_name
from kvrun.keys.remote_handles import RemoteHandles
from kvrun.keys.remote_link import NoAnswerError, RemoteLink
from kvrun.keys.remote_selection import Answered, RemoteListing, RemoteSelection
from kvrun.keys.root import RootFacts
from kvrun.keys.service_token import read_token
from kvrun.keys.session import HandleEnd, SessionKeys, TakenKeys
from kvrun.keys.wire import (
    VERSION,
    Absent,
    Acquire,
    Done,
    End,
    Expire,
    Facts,
    Gone,
    Hello,
    LeaseOver,
    Lent,
    Message,
    Renew,
    Renewed,
    Rotate,
)

_SOON_S = 5.0
_LONG_S = MAX_LEASE_S + 30.0
_AGAIN_AFTER_S = 0.5
_log = logging.getLogger(__name__)


class RemoteKeys:
    """As :class:`kvrun.keys.service.KeyService`, through a key service's socket. Thread-safe."""

    def __init__(
        self,
        socket_path: Path,
        *,
        workspace: str,
        deployment: str,
        name: str,
        limits: KeyLimits,
        instance_key: Ed25519PrivateKey | None = None,
        lease_s: float = MAX_LEASE_S,
        strict_memory: bool = False,
        on_taken: TakenKeys = lambda _keys, _owners, tell: tell(Pages()),
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """Connect. Raises KeysError where the service is away or not this deployment's.

        ``instance_key`` shows which instance this is; by default one of this object alone.
        ``on_taken`` is called from the first moment on; by default it says that no engine is here.
        """
        self.on_lease_end: Callable[[str], None] = lambda _reason: None
        self.on_taken: TakenKeys = on_taken
        self.on_new_service: Callable[[], object] = lambda: None
        self._path = socket_path
        self._hello = Hello(VERSION, workspace, deployment, name, b"", b"", b"", b"")
        self._instance_key = instance_key or Ed25519PrivateKey.generate()
        self._limits = limits
        self._strict_memory = strict_memory
        self._now = now
        self._clock = clock
        self._connecting = threading.RLock()
        self._taking = threading.Lock()
        self._link: RemoteLink | None = None
        self._trusted: RemoteLink | None = None
        self._tried_at = float("-inf")
        self._service = b""
        self._handles = RemoteHandles(at_most=limits.max_open_handles, clock=clock)
        self._asked: dict[int, tuple[str, str]] = {}
        self._got: dict[int, SessionKeys] = {}
        self._overs = 0
        self._overs_when_asked = 0
        self._facts: Facts | None = None
        self._closed = False
        self.selection = RemoteSelection(self)
        self.listing = RemoteListing(self)
        self._keeper = LeaseKeeper(
            self._renew,
            duration_s=lease_s,
            clock=clock,
            ended=self._lease_ended,
            began=self._lease_began,
        )
        self._handles.lease = self._keeper.lease
        self._keeper.start()

    @property
    def claim(self) -> ClaimClass:
        """See KeyService."""
        return self.root_facts.claim

    @property
    def root_facts(self) -> RootFacts:
        """See KeyService; as the service last said."""
        return self._known.root

    @property
    def protection(self) -> Protection:
        """The weaker protection of the service's key memory and of ours."""
        link, order = self._link, list(Protection)
        ours = link.protection if link is not None else Protection.SECRET
        return max(ours, self._known.protection, key=order.index)

    @property
    def epoch(self) -> int:
        """See KeyService; as the service last said."""
        return self._known.epoch

    @property
    def leased(self) -> bool:
        """Whether keys may be used now."""
        return self._handles.lease.holds(self._clock())

    @property
    def lease_text(self) -> str:
        """The state of the lease, for people."""
        return "keys may be used" if self.leased else "over: the key service does not prolong it"

    @property
    def recovery_text(self) -> str:
        """Nothing: the key service opened the folder, and its log says so."""
        return ""

    @property
    def session_count(self) -> int:
        """See KeyService; as the service last said."""
        return self._known.sessions

    def acquire(self, tenant: str, session: str) -> SessionKeys:
        """See KeyService."""
        handle = self._usable(tenant, session)
        if handle is not None:
            handle.touch(self._now())
            return handle
        found = self._lent(tenant, session, create=True)
        if found is None:
            raise KeyUnavailableError("the key service has no keys for the session")
        found.touch(self._now())
        return found

    def find(self, tenant: str, session: str) -> SessionKeys | None:
        """See KeyService."""
        return self._usable(tenant, session) or self._lent(tenant, session, create=False)

    def rotate_epoch(self) -> int:
        """See KeyService."""
        self.ask(lambda call: Rotate(call, "epoch"), Done)
        self._facts = self.ask(lambda call: Renew(call), Renewed).facts
        return self.epoch

    def rotate_root(self) -> None:
        """See KeyService."""
        self.ask(lambda call: Rotate(call, "root"), Done)

    def destroy_expired(self) -> list[DestroyedKey]:
        """See KeyService. The service does this by itself as well: one daemon is told."""
        return self._expired(only_told=False)

    def destroyed_by_use(self) -> list[DestroyedKey]:
        """See KeyService."""
        return self._expired(only_told=True)

    def close(self) -> None:
        """End every handle and tell the service that nothing is held here any more."""
        self._closed = True
        self._keeper.close()
        with self._connecting:
            link, self._link = self._link, None
        if link is not None:
            if link.alive:
                self._tell_uses(link)
            self._handles.end_all(HandleEnd.CLOSED)
            link.close(bye=True)
        self._handles.end_all(HandleEnd.CLOSED)

    def ask(
        self, make: Callable[[int], Message], answer: type[Answered], *, within_s: float = _LONG_S
    ) -> Answered:
        """Ask the service. For the selection and the listing."""
        return self._connected().ask(make, answer, within_s=within_s)

    def let_go(self, key_ids: Collection[str]) -> None:
        """These keys are destroyed at our own wish: their handles end first."""
        self._handles.end(bytes.fromhex(key_id) for key_id in key_ids)

    @property
    def _known(self) -> Facts:
        facts = self._facts
        if facts is None:
            raise KeyUnavailableError("the key service has not answered yet")
        return facts

    def _usable(self, tenant: str, session: str) -> SessionKeys | None:
        handle = self._handles.ready(tenant, session)
        if handle is None or handle.ended:
            return None
        expired = self._limits.expired(handle.created_at, handle.last_used_at, self._now())
        return None if expired else handle

    def _lent(self, tenant: str, session: str, *, create: bool) -> SessionKeys | None:
        check_name(tenant, "tenant")
        check_name(session, "session")
        if not self.leased:
            raise KeyUnavailableError(
                "Keys cannot be used: the key service has not confirmed them in time",
                hint="They come back when it answers again.",
            )
        link, number = self._connected(), 0

        def make(call: int) -> Message:
            nonlocal number
            number = call
            self._asked[call] = (tenant, session)
            return Acquire(call, tenant, session, create)

        try:
            found = link.ask_any(make, within_s=_SOON_S)
            if isinstance(found, Absent):
                return None
            handle = self._got.pop(number, None)
        finally:
            self._asked.pop(number, None)
            self._got.pop(number, None)
        if handle is None or handle.ended:
            raise KeyUnavailableError("the session's keys were taken back while they came")
        return handle

    def _came(self, lent: Lent, keys: memoryview) -> None:
        """Keys are here, in memory that is zeroed after this."""
        name = self._asked.get(lent.call)
        if name is not None:  # else nobody waits any more
            scope = SessionScope(self._hello.workspace, self._hello.deployment, *name)
            self._got[lent.call] = self._handles.add(scope, lent, keys)

    def _told_to_end(self, end: End, tell: Callable[[Pages], None]) -> None:
        """Keys are destroyed at somebody else's wish; it is confirmed when this returns."""
        self._let_go_of(self._handles.end(end.key_ids), end.owners, tell)

    def _let_go_of(
        self,
        ended: Sequence[SessionKeys],
        owners: Sequence[bytes],
        tell: Callable[[Pages], None],
    ) -> None:
        """Have what they opened let go of, without waiting."""

        def take() -> None:
            try:
                with self._taking:  # what is let go of first is out of the way of what comes next
                    self.on_taken(ended, owners, tell)
            except Exception:
                _log.exception("what keys opened that were destroyed elsewhere may be left")

        threading.Thread(target=take, name="kvrun-keys-taken", daemon=True).start()

    def _lease_over(self, over: LeaseOver) -> None:
        self._overs += 1
        self._keeper.end(over.reason)

    def _renew(self) -> float:
        """Ask for the lease; for how long it holds."""
        self._overs_when_asked = self._overs
        link = self._connected()
        used = self._handles.unsaid_uses()
        try:
            found = link.ask(lambda call: Renew(call, used), Renewed, within_s=_SOON_S)
        except NoAnswerError:
            link.close()  # another connection may find a service that does answer
            raise
        self._facts = found.facts
        if self._overs != self._overs_when_asked:
            raise KeyUnavailableError("the right to use keys ended while it was asked for")
        return found.lease_s

    def _tell_uses(self, link: RemoteLink) -> None:
        used = self._handles.unsaid_uses()
        try:
            link.ask(lambda call: Renew(call, used), Renewed, within_s=_SOON_S)
        except KeyUnavailableError:
            _log.info("the key service does not learn of last uses")

    def _lease_ended(self, reason: str) -> None:
        self._handles.end_all(HandleEnd.LEASE_OVER)
        self.on_lease_end(reason)

    def _lease_began(self, lease: Lease) -> None:
        if self._overs != self._overs_when_asked:
            raise KeyUnavailableError("the right to use keys ended while it was asked for")
        self._handles.lease = lease

    def _expired(self, *, only_told: bool) -> list[DestroyedKey]:
        gone = self.ask(lambda call: Expire(call, only_told), Gone).keys
        self.let_go([key.key_id for key in gone])
        return gone

    def _connected(self) -> RemoteLink:
        """The connection, made anew where it was lost. Raises KeysError."""
        link = self._trusted
        if link is not None and link.alive:
            return link
        with self._connecting:
            link = self._link
            if link is not None and link.alive:
                return link
            if self._closed:
                raise KeyUnavailableError("The key service is closed")
            if self._clock() - self._tried_at < _AGAIN_AFTER_S:
                raise KeyUnavailableError("the key service is away")
            self._tried_at = self._clock()
            return self._connect()

    def _connect(self) -> RemoteLink:
        link = RemoteLink(
            self._path,
            read_token(self._path),
            msgspec.structs.replace(self._hello, holds=self._handles.key_ids()),
            self._instance_key,
            on_lent=self._came,
            on_end=self._told_to_end,
            on_lease_over=self._lease_over,
            strict_memory=self._strict_memory,
        )
        self._link = link
        taken = self._handles.end(link.gone)
        if taken:
            self._let_go_of(taken, (), lambda _pages: None)
        earlier, self._service = self._service, link.service
        if earlier and earlier != link.service:
            # Its folder may be an older copy: what was erased is destroyed again before its use.
            try:
                self.on_new_service()
            except BaseException:
                link.close()
                self._service = earlier
                raise
            _log.info("the key service was started anew")
        self._trusted = link
        return link
