"""The socket server: who connects, what they may send, and what they get."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvrun.audit.record import Event
from kvrun.erasure.plan import ErasureScope
from kvrun.errors import KvrunError
from kvrun.instance.admin import AdminService
from kvrun.instance.announcing import Announcing
from kvrun.instance.claim_keys import ClaimKeys
from kvrun.instance.claim_messages import Announced, ClaimKey, RenewClaimKey
from kvrun.instance.erasures import Erasures
from kvrun.instance.instance import Instance
from kvrun.instance.layout import engine_layout, worker_shape
from kvrun.instance.peer import Peer
from kvrun.instance.protocol import (
    PROTOCOL_VERSION,
    AdminCall,
    AdminReply,
    AnyMessage,
    EraseUser,
    Finished,
    Hello,
    Load,
    Match,
    Matched,
    Message,
    OpenSession,
    ProtocolError,
    Refused,
    Release,
    Revoked,
    Role,
    Scrubbed,
    SessionInvalidated,
    SessionOpened,
    Started,
    Store,
    Verdict,
    Welcome,
)
from kvrun.instance.scrubbing import SchedulerScrubber
from kvrun.instance.staging import create_region
from kvrun.instance.totals import ResidencyDeniedError
from kvrun.instance.transfers import Transfers, WorkerLink
from kvrun.instance.user_erasures import UserErasures
from kvrun.unixsocket import listen_privately

_BACKLOG = 64
_HELLO_TIMEOUT_S = 10.0
_ACCEPT_PAUSE_S = 0.1
_ENGINE_ROLES = (Role.SCHEDULER, Role.WORKER)
_FAILED = "the daemon failed to do it"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What every welcome says; ``tokens`` by role, as hex text."""

    instance_id: str
    tokens: Mapping[Role, str]
    context_window: int
    match_deadline_ms: int
    transfer_deadline_ms: int
    staging_bytes: int | None
    strict: bool


class InstanceServer:
    """Serves one instance on a Unix socket."""

    def __init__(
        self,
        instance: Instance,
        transfers: Transfers,
        admin: AdminService,
        erasures: Erasures,
        scrubber: SchedulerScrubber,
        claim_keys: ClaimKeys,
        settings: ServerSettings,
    ) -> None:
        self._instance = instance
        self._transfers = transfers
        self._admin = admin
        self._scrubber = scrubber
        self._claim_keys = claim_keys
        self._settings = settings
        self._roles: dict[Peer, Role] = {}
        self._links: dict[Peer, WorkerLink] = {}
        self._handles: dict[Peer, set[int]] = {}
        self._announcing = Announcing(lambda message: self._push_now(Role.GATEWAY, message))
        # Requests wait for matches: neither new sessions' keys nor an operator may delay them.
        self._matching = ThreadPoolExecutor(2, thread_name_prefix="kvrun-match")
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="kvrun-control")
        # Erasures wait for engines: sessions open and operators look meanwhile.
        self._erasing = ThreadPoolExecutor(32, thread_name_prefix="kvrun-erase")
        self._user_erasures = UserErasures(erasures, lambda task: self._run(self._erasing, task))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        erasures.on_erasing = self._announce_beginning
        erasures.on_erased = self._announce_scope
        scrubber.on_late = erasures.acknowledged
        instance.on_stale_claim = self._announce_erasure
        instance.on_revoked = self._announce_revoked
        instance.residency.on_change = self._announce_policy
        claim_keys.ask_gateways = self._ask_gateways

    async def serve(self, path: Path, stop: asyncio.Event) -> None:
        """Listen until ``stop`` is set."""
        self._loop = asyncio.get_running_loop()
        self._listener = listen_privately(path, _BACKLOG)
        self._listener.setblocking(False)
        self._scrubber.listening = True
        accepting = asyncio.create_task(self._accept(self._listener))
        try:
            await stop.wait()
        finally:
            self._scrubber.stop()
            accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await accepting
            self._listener.close()
            _remove(path)
            for peer in list(self._roles):
                peer.close("the daemon stops")
            self._matching.shutdown()
            self._pool.shutdown()
            self._erasing.shutdown()

    async def _accept(self, listener: socket.socket) -> None:
        assert self._loop is not None
        while True:
            try:
                sock, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors, mostly: those who are connected go on, others wait.
                _log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            peer = Peer(sock, self._loop, self._received, self._closed)
            self._loop.call_later(_HELLO_TIMEOUT_S, self._expect_hello, peer)

    def _expect_hello(self, peer: Peer) -> None:
        if peer not in self._roles and not peer.closed:
            peer.close("it said no hello")

    def _received(self, peer: Peer, message: AnyMessage) -> None:
        try:
            role = self._roles.get(peer)
            if role is None:
                self._greet(peer, message)
            else:
                self._dispatch(peer, role, message)
        except KvrunError as error:
            _log.warning("process %d: %s", peer.pid, error.message)
            peer.send(Refused(error.message, error.hint or ""))
            peer.close(error.message)

    def _greet(self, peer: Peer, message: AnyMessage) -> None:
        if not isinstance(message, Hello):
            raise ProtocolError("the first message must be a hello")
        if message.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"protocol version {message.version} is not supported",
                hint=f"this daemon speaks version {PROTOCOL_VERSION}; install the same kvrun twice",
            )
        token = self._settings.tokens.get(message.role, "")
        known = hmac.compare_digest(token.encode(), message.token.encode())
        if not peer.same_user() or not token or not known:
            raise ProtocolError(
                f"process {peer.pid} is not allowed to connect as {message.role.value}",
                hint="it must run as the daemon's user and hold the launch token of its role",
            )
        if message.role in _ENGINE_ROLES:
            self._instance.attach_engine(engine_layout(message))
        # From here on the peer's end, whenever it comes, is noticed by ``_closed``.
        self._roles[peer] = message.role
        self._handles[peer] = set()
        if message.role is Role.WORKER:
            self._greet_worker(peer, message)
        else:
            if message.role is Role.SCHEDULER:
                self._instance.journal.deployment_event(Event.DEPLOYMENT_STARTED, message.software)
            peer.send(self._welcome())
            self._announcing.connected(peer, message)
            if message.role is Role.SCHEDULER:
                self._scrubber.connected(
                    peer,
                    pid=peer.pid,
                    software=message.software,
                    scrubs=message.scrubs,
                    send=peer.send_soon,
                )

    def _greet_worker(self, peer: Peer, message: Hello) -> None:
        layout = engine_layout(message)
        shape = worker_shape(message, layout)
        self._instance.attach_worker(shape)
        window = self._settings.context_window or message.context_window
        slot_bytes, slots = shape.staging(layout, window)
        if self._settings.staging_bytes is not None:
            slots = max(1, min(slots, self._settings.staging_bytes // slot_bytes))
        region, fd = create_region(slot_bytes, slots)
        try:
            if not region.locked:
                if self._settings.strict:
                    region.close()
                    raise ProtocolError(
                        "staging memory cannot be locked and the deployment is strict",
                        hint="raise RLIMIT_MEMLOCK (ulimit -l) for the daemon",
                    )
                _log.warning("staging memory is not locked: it may be swapped out")
            self._admin.protections["staging"] = "locked" if region.locked else "not locked"
            link = self._links[peer] = WorkerLink(
                layout, shape, region, peer.send_soon, peer.hang_up
            )
            self._transfers.adopt(link)
            peer.send_with_fd(self._welcome(slot_bytes, slots), fd)
        finally:
            os.close(fd)

    def _welcome(self, slot_bytes: int = 0, slots: int = 0) -> Welcome:
        settings = self._settings
        return Welcome(
            version=PROTOCOL_VERSION,
            instance_id=settings.instance_id,
            workspace=self._instance.workspace,
            deployment=self._instance.deployment,
            stateless=self._instance.stateless,
            claim_keys=self._claim_keys.believed(),
            context_window=settings.context_window,
            match_deadline_ms=settings.match_deadline_ms,
            transfer_deadline_ms=settings.transfer_deadline_ms,
            slot_bytes=slot_bytes,
            slots=slots,
        )

    def _dispatch(self, peer: Peer, role: Role, message: AnyMessage) -> None:
        match (role, message):
            case (Role.SCHEDULER, Match()):
                self._run(
                    self._matching,
                    lambda: self._answer_match(peer, self._instance.match(message)),
                )
            case (Role.SCHEDULER, Started()):
                self._instance.started(message.handle, message.engine_tokens, message.loaded_tokens)
            case (Role.SCHEDULER, Finished()):
                self._handles[peer].discard(message.handle)
                self._instance.finished(message.handle)
            case (Role.SCHEDULER, Scrubbed()):
                self._scrubber.answered(peer, message)
            case (Role.WORKER, Load()):
                self._transfers.load(self._links[peer], message)
            case (Role.WORKER, Store()):
                self._transfers.store(self._links[peer], message)
            case (Role.WORKER, Release()):
                self._transfers.release(self._links[peer], message)
            case (Role.GATEWAY, OpenSession()):
                self._run(self._pool, lambda: peer.send_soon(self._open_session(message)))
            case (Role.GATEWAY, Announced()):
                self._announcing.forward(message)
            case (Role.GATEWAY, EraseUser()):
                self._user_erasures.ask(message, peer.send_soon)
            case (Role.GATEWAY, ClaimKey()):
                self._run(self._pool, lambda: peer.send_soon(self._claim_keys.take(message)))
            case (Role.ADMIN, AdminCall()):
                pool = self._erasing if message.operation.startswith("erase") else self._pool
                self._run(pool, lambda: peer.send_soon(self._admin_call(message)))
            case _:
                raise ProtocolError(
                    f"a {role.value} may not send a {type(message).__name__} message"
                )

    def _answer_match(self, peer: Peer, answer: Matched) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._send_match, peer, answer)

    def _send_match(self, peer: Peer, answer: Matched) -> None:
        """Revocations are pushed from the loop too, so neither can overtake the other."""
        if answer.handle:
            if peer.closed:
                self._instance.finished(answer.handle)
                return
            if self._instance.handles.live(answer.handle) is None:
                reason = "the session's key was destroyed meanwhile"
                answer = Matched(answer.request, Verdict.DENIED, reason, 0, ())
            else:
                self._handles[peer].add(answer.handle)
        peer.send(answer)

    def _open_session(self, message: OpenSession) -> SessionOpened:
        try:
            grant = self._instance.open_session(message.tenant, message.session)
        except KvrunError as error:
            elsewhere = error.elsewhere if isinstance(error, ResidencyDeniedError) else ()
            return SessionOpened(message.call, error.status, "", 0, error.diagnostics(), elsewhere)
        return SessionOpened(message.call, 200, grant.salt, grant.generation, "")

    def _admin_call(self, message: AdminCall) -> AdminReply:
        try:
            result = self._admin.call(message.operation, message.arguments)
        except KvrunError as error:
            return AdminReply(message.call, error.status, b"", error.message, error.hint or "")
        except Exception:
            _log.exception("the operation %s failed inside the daemon", message.operation)
            return AdminReply(message.call, 500, b"", _FAILED, "its log says why")
        return AdminReply(message.call, 200, result)

    def _run(self, pool: ThreadPoolExecutor, task: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                task()
            except Exception:
                _log.exception("a request of a connected process failed")

        pool.submit(guarded)

    def _announce_erasure(self, tenant: str, session: str | None) -> None:
        self._push(Role.GATEWAY, SessionInvalidated(tenant, session or ""))

    def _announce_policy(self) -> None:
        # Whoever may not be served any more is refused when its session is opened again.
        self._push(Role.GATEWAY, SessionInvalidated("", ""))

    def _announce_beginning(self, scope: ErasureScope) -> None:
        for tenant in _named(scope):
            self._push(Role.GATEWAY, SessionInvalidated(tenant, scope.session, erasing=True))

    def _announce_scope(self, scope: ErasureScope) -> None:
        for tenant in _named(scope):
            self._announce_erasure(tenant, scope.session)

    def _announce_revoked(self, handles: list[int]) -> None:
        self._push(Role.SCHEDULER, Revoked(tuple(handles)))

    def _ask_gateways(self, message: RenewClaimKey) -> Callable[[], int]:
        asked = [peer for peer, role in list(self._roles.items()) if role is Role.GATEWAY]
        for peer in asked:
            peer.send_soon(message)
        return lambda: sum(peer in self._roles for peer in asked)

    def _push(self, to: Role, message: Message) -> None:
        """Send to every process of a role, from any thread; before the start there is none."""
        if self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._push_now, to, message)

    def _push_now(self, to: Role, message: Message) -> None:
        # A peer that stopped reading is dropped while it is sent to.
        for peer in [peer for peer, role in self._roles.items() if role is to]:
            peer.send(message)

    def _closed(self, peer: Peer, reason: str) -> None:
        role = self._roles.pop(peer, None)
        self._scrubber.disconnected(peer)
        self._announcing.disconnected(peer)
        link = self._links.pop(peer, None)
        if link is not None:
            link.close()
        for handle in self._handles.pop(peer, ()):
            # Its scheduler is gone and will not say so; another worker may still be there.
            self._instance.finished(handle)
        if role is not None:
            _log.info("%s (process %d) is gone: %s", role.value, peer.pid, reason)
        if role in _ENGINE_ROLES and not any(r in _ENGINE_ROLES for r in self._roles.values()):
            self._instance.detach_engine()
            self._instance.journal.deployment_event(Event.DEPLOYMENT_STOPPED)


def _named(scope: ErasureScope) -> list[str]:
    """The tenants of a scope as gateways are told of them: "" stands for all."""
    ids = scope.ids
    return [""] if ids is None else sorted(ids)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
