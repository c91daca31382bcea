"""The key service as a process of its own: one key folder and root for a deployment's daemons.

It lends keys under leases, has everybody let go of what is destroyed, and waits for that. What a
daemon may do is what a daemon with the keys in its own process can do.
"""

import contextlib
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvrun.claims.page_owner import page_owner
from kvrun.keys.daemon_connection import DaemonConnection
from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.errors import KeysError, KeyUnavailableError
from kvrun.keys.greeting import hello_proof, is_signed, welcome_proof
from kvrun.keys.key_holders import Holder, KeyHolders
from kvrun.keys.lease import MAX_LEASE_S
from kvrun.keys.lease_keeper import boottime
from kvrun.keys.lending import KeyLender
from kvrun.keys.locked import SecretArena
from kvrun.keys.metrics import KeyServiceState
from kvrun.keys.service import KeyService
from kvrun.keys.stream import PeerProcess, Stream, StreamClosedError
from kvrun.keys.wire import (
    LENT_BYTES,
    MAX_REQUEST_BYTES,
    NONCE_BYTES,
    VERSION,
    Absent,
    Acquire,
    Bye,
    Challenge,
    Cleared,
    Destroy,
    Done,
    Ended,
    EpochLives,
    Expire,
    Facts,
    Gone,
    Hello,
    LeaseOver,
    Lent,
    ListedSessions,
    ListedTenants,
    ListSessions,
    ListTenants,
    Living,
    Message,
    Named,
    Names,
    Opened,
    Opens,
    Renew,
    Renewed,
    Request,
    Rotate,
    Select,
    Selected,
    Settle,
    Settled,
    Welcome,
    WireError,
    decode_request,
    failure,
)
from kvrun.unixsocket import listen_privately

_HANDSHAKE_S = 5.0
_MAX_CONNECTIONS = 64
_ADOPT_S = 0.2
_THREADS = 16
_log = logging.getLogger(__name__)


class KeyServer:
    """Serves one key service. ``strangers_s``: how long daemons that were lent keys before this
    process began may still use them, which an erasure waits for; ``uid``: the only one that may
    connect, by default this process's own.
    """

    def __init__(
        self,
        service: KeyService,
        workspace: str,
        deployment: str,
        token: bytes,
        *,
        lease_s: float = MAX_LEASE_S,
        strangers_s: float = MAX_LEASE_S,
        uid: int | None = None,
        strict_memory: bool = False,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = boottime,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._service = service
        self._names = (workspace, deployment)
        self._token = token
        self._lease_s = min(lease_s, MAX_LEASE_S)
        self._uid = os.geteuid() if uid is None else uid
        self._now = now
        self._clock = clock
        self._random_bytes = random_bytes
        self._id = random_bytes(16)
        # Where there never was a session (the first destroyed one began the second epoch), there is
        # nobody who could have been lent anything.
        was_used = service.session_count or service.epoch > 1
        strangers_until = clock() + strangers_s if was_used else 0.0
        self._holders = KeyHolders(strangers_until=strangers_until, clock=clock)
        self._lender = KeyLender(service)
        self._arena = SecretArena(LENT_BYTES, strict=strict_memory)
        # Renewals need neither: their connection's own thread answers them.
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kvrun-keys")
        self._destroying = ThreadPoolExecutor(_THREADS, thread_name_prefix="kvrun-keys-destroy")
        self._lock = threading.Lock()
        self._connections: set[DaemonConnection] = set()
        self._untold: list[DestroyedKey] = []
        self._listener: socket.socket | None = None
        self._closed = False
        service.on_lease_end = self._lease_ended

    def serve(self, path: Path) -> None:
        """Take connections at a socket until ``close``, also one that came before this."""
        listener = listen_privately(path, _MAX_CONNECTIONS)
        with self._lock:
            if self._closed:
                listener.close()
                return
            self._listener = listener
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._take, args=(connection,), name="kvrun-keys-peer", daemon=True
            ).start()

    def state(self) -> KeyServiceState:
        """How it is now."""
        with self._lock:
            daemons = len(self._connections)
        return KeyServiceState(daemons, self._service.leased, self._service.lease_text)

    def expire(self) -> None:
        """Destroy what is idle or too old; whichever daemon asks next puts it on record."""
        self._note(self._service.destroy_expired(), None)

    def close(self) -> None:
        """Stop; daemons go on until their leases end."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
            listener = self._listener
        if listener is not None:
            with contextlib.suppress(OSError):
                # A close alone leaves a waiting accept, which would take one more daemon.
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in connections:
            connection.stream.close()
        self._holders.close()
        for pool in (self._destroying, self._pool):
            pool.shutdown(cancel_futures=True)
        self._arena.close()

    def _take(self, raw: socket.socket) -> None:
        process = PeerProcess(raw)
        stream = Stream(raw, at_most=MAX_REQUEST_BYTES)
        try:
            if process.uid != self._uid:
                _log.warning("a process of user %d is refused", process.uid)
                return
            with self._lock:
                if len(self._connections) >= _MAX_CONNECTIONS:
                    _log.warning("more than %d connections", _MAX_CONNECTIONS)
                    return
            stream.within(_HANDSHAKE_S)
            connection = self._greet(stream, process)
            stream.within(None)
            self._listen_to(connection)
        except WireError as error:
            _log.warning("a connection of process %d ends: %s", process.pid, error.message)
        finally:
            stream.release()

    def _greet(self, stream: Stream, process: PeerProcess) -> DaemonConnection:
        """Who it is. Raises WireError for somebody who shows no token or no instance key."""
        challenge = Challenge(VERSION, self._random_bytes(NONCE_BYTES), self._id)
        stream.send(challenge)
        hello = decode_request(stream.receive())
        if not isinstance(hello, Hello) or hello.version != VERSION:
            raise WireError("it does not begin with a hello of this version")
        proof = hello_proof(self._token, challenge, hello)
        if not hmac.compare_digest(proof, hello.proof) or len(hello.nonce) != NONCE_BYTES:
            raise WireError("it does not show this deployment's token")
        if not is_signed(challenge, hello):
            raise WireError("it does not show the instance key that it names")
        if (hello.workspace, hello.deployment) != self._names:
            raise WireError("it is a daemon of another deployment")
        connection = DaemonConnection(stream, process, hello)
        holder = connection.holder
        with connection.lending:  # it is told of no end before it is welcome
            # Registered before it is looked at what lives: no destruction falls in between.
            self._holders.greet(holder, hello.holds, self._clock() + self._lease_s)
            gone = self._lender.adopt(hello.holds, within_s=_ADOPT_S)
            stream.send(Welcome(welcome_proof(self._token, challenge, hello), gone or []))
        self._holders.retell(holder)
        if gone is None:  # keys are being destroyed; it is told what is gone when that is over
            self._destroying.submit(self._adopt, holder, hello.holds)
        _log.info("%s is connected", holder.name)
        return connection

    def _adopt(self, holder: Holder, key_ids: list[bytes]) -> None:
        try:
            self._holders.end(self._lender.adopt(key_ids) or [])
        except KeysError as error:
            _log.warning("what %s holds is not known: %s", holder.name, error.message)

    def _listen_to(self, connection: DaemonConnection) -> None:
        with self._lock:
            if self._closed:
                return
            self._connections.add(connection)
        try:
            while True:
                request = decode_request(connection.stream.receive())
                if isinstance(request, Ended):
                    self._holders.confirmed(connection.holder, request.number)
                elif isinstance(request, Cleared):
                    self._holders.cleared(connection.holder, request.number, request.pages)
                elif isinstance(request, Bye):
                    self._holders.leave(connection.holder)
                    return
                elif isinstance(request, Hello):
                    raise WireError("a second hello")
                elif isinstance(request, (Renew, Settle)):
                    self._answer(connection, request)
                else:
                    slow = isinstance(request, (Destroy, Expire, Rotate))
                    pool = self._destroying if slow else self._pool
                    with contextlib.suppress(RuntimeError):  # it is being closed
                        pool.submit(self._answer, connection, request)
        except StreamClosedError:
            _log.info("%s is gone", connection.holder.name)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _answer(self, connection: DaemonConnection, request: Request) -> None:
        call = getattr(request, "call", 0)
        try:
            try:
                if isinstance(request, Acquire):
                    self._lend(connection, request)
                elif isinstance(request, Renew):
                    self._renew(connection, request)
                elif isinstance(request, Settle):
                    self._settle(connection, request)
                else:
                    connection.stream.send(self._done(connection, request))
            except StreamClosedError:
                raise
            except KeysError as error:
                connection.stream.send(failure(call, error))
            except Exception:
                _log.exception("a request of %s failed", connection.holder.name)
                failed = KeyUnavailableError("the key service failed; its log says why")
                connection.stream.send(failure(call, failed))
        except StreamClosedError:
            _log.info("%s did not get its answer", connection.holder.name)

    def _lend(self, connection: DaemonConnection, request: Acquire) -> None:
        secret = self._arena.take()
        try:
            # An end of these keys is told after they were sent, never before.
            with connection.lending:
                lent = self._lender.lend(
                    request.tenant,
                    request.session,
                    secret.view,
                    create=request.create,
                    note=lambda key_id: self._holders.lent(connection.holder, [key_id]),
                )
                if lent is None:
                    connection.stream.send(Absent(request.call))
                else:
                    connection.stream.send(
                        Lent(
                            request.call,
                            lent.key_id,
                            lent.generation,
                            lent.created_at,
                            lent.used_at,
                            lent.tenant_ref,
                        ),
                        secret.view,
                    )
        finally:
            secret.wipe()
        self._note(self._service.destroyed_by_use(), None)

    def _done(self, connection: DaemonConnection, request: Request) -> Message:
        service, selection = self._service, self._service.selection
        match request:
            case Select(call, tenants, session):
                found = selection.select(tenants, session)
                return Selected(call, list(found.keys), list(found.canaries), found.epoch)
            case Named(call, refs):
                return Names(call, sorted(selection.ids_of(refs)))
            case Living(call, key_ids):
                return Names(call, selection.living(key_ids))
            case ListTenants(call, tenants_asked):
                return ListedTenants(call, service.listing.tenants(tenants_asked))
            case ListSessions(call, sessions_asked):
                return ListedSessions(call, service.listing.sessions(sessions_asked))
            case Destroy():
                return self._destroyed(connection, request)
            case Expire(call, only_told):
                if not only_told:
                    self._note(service.destroy_expired(), connection.holder)
                with self._lock:
                    told, self._untold = self._untold, []
                return Gone(call, told)
            case Opens(call, canaries):
                return Opened(call, selection.opens(canaries))
            case EpochLives(call, epoch):
                return Done(call, selection.epoch_lives(epoch))
            case Rotate(call, what):
                if what == "root":
                    service.rotate_root()
                else:
                    service.rotate_epoch()
                return Done(call, True)
        raise WireError(f"a {type(request).__name__} is no request")

    def _renew(self, connection: DaemonConnection, request: Renew) -> None:
        """A lease never outlasts ours at the root."""
        service = self._service
        self._lender.used(request.used, self._now())
        with connection.leasing:  # none is granted after its end was told
            granted = min(self._lease_s, service.lease_left_s)
            if granted <= 0:
                raise KeyUnavailableError(service.lease_text)
            self._holders.prolong(connection.holder, self._clock() + granted)
            facts = Facts(
                service.root_facts, service.epoch, service.session_count, service.protection
            )
            connection.stream.send(Renewed(request.call, granted, facts))

    def _destroyed(self, connection: DaemonConnection, request: Destroy) -> Gone:
        keys = self._service.destroy_keys(request.key_ids)
        # Also what an earlier try destroyed, whose end nobody may have confirmed.
        ids = {*request.key_ids, *(key.key_id for key in keys)}
        gone = {bytes.fromhex(key_id) for key_id in ids}
        self._lender.forget(gone)
        told = self._holders.end(
            gone, but=connection.holder, erasure=request.erasure, owners=request.owners
        )
        with connection.lending:
            # It lets go of them once more when it hears this: after any that were on their way.
            return Gone(request.call, keys, told)

    def _settle(self, connection: DaemonConnection, request: Settle) -> None:
        self._holders.settle(
            request.erasure,
            request.daemons,
            request.pages_within_s,
            lambda states: connection.say(Settled(request.call, states)),
        )

    def _note(self, keys: Iterable[DestroyedKey], but: Holder | None) -> None:
        """Have everybody let go of keys that were too old, and tell it to whoever asks next."""
        found = list(keys)
        if found:
            gone = [bytes.fromhex(key.key_id) for key in found]
            self._lender.forget(gone)
            owners = [page_owner(key.salt) for key in found if key.salt]
            self._holders.end(gone, but=but, owners=owners)
            with self._lock:
                self._untold += found

    def _lease_ended(self, reason: str) -> None:
        """The root does not confirm the keys any more: neither may the daemons use them."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with connection.leasing:
                connection.say(LeaseOver(reason))
