"""Clients of the instance daemon for everything that is not an engine adapter."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kvrun.claims.rotating import RotatingSigner
from kvrun.errors import KvrunError
from kvrun.instance.claim_messages import (
    AnnounceClaims,
    Announced,
    ClaimKey,
    ClaimKeyTaken,
    RenewClaimKey,
)
from kvrun.instance.connection import Connection, InstanceUnavailableError, make_hello
from kvrun.instance.grant import SessionGrant
from kvrun.instance.protocol import (
    AdminCall,
    AdminReply,
    AnyMessage,
    EraseUser,
    FrameReader,
    OpenSession,
    ProtocolError,
    Refused,
    Role,
    SessionInvalidated,
    SessionOpened,
    UserErased,
    Welcome,
    encode_frame,
)

_READ_BYTES = 1 << 16
_RECONNECT_S = 1.0
_log = logging.getLogger(__name__)


class SessionRefusedError(KvrunError):
    """The daemon refused to open a session; ``status`` says how (429: too many sessions).

    ``elsewhere``: regions where the tenant may be processed who may not here (403).
    """

    def __init__(self, reason: str, status: int, elsewhere: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.elsewhere = elsewhere


class ErasureRefusedError(KvrunError):
    """The daemon did not erase; ``status`` says how it failed."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class AdminClient:
    """The command line's blocking client; one call at a time."""

    def __init__(self, socket: Path, token: str, *, timeout_s: float = 10.0) -> None:
        hello = make_hello(Role.ADMIN, token, "kvrun-cli")
        self._connection = Connection.connect(socket, hello, timeout_s=timeout_s)
        self._calls = itertools.count(1)

    @property
    def welcome(self) -> Welcome:
        """What the daemon said about itself."""
        return self._connection.welcome

    def call(
        self, operation: str, arguments: Mapping[str, str] | None = None, *, timeout_s: float = 60.0
    ) -> bytes:
        """The operation's result as JSON.

        Raises:
            InstanceUnavailableError: no answer in time.
            KvrunError: the daemon refused; ``status`` and ``hint`` are the daemon's.
        """
        call = next(self._calls)
        self._connection.send(AdminCall(call, operation, dict(arguments or {})))
        deadline = time.monotonic() + timeout_s
        while not self._connection.closed and time.monotonic() < deadline:
            for message in self._connection.poll(0.1):
                if isinstance(message, AdminReply) and message.call == call:
                    if message.status == 200:
                        return message.result
                    error = KvrunError(message.reason, hint=message.hint or None)
                    error.status = message.status
                    raise error
        raise InstanceUnavailableError(f"the daemon did not answer {operation!r} in {timeout_s} s")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncInstanceClient:
    """The gateway's client: opens sessions and hears which ones to forget.

    A lost connection is looked for again in the background; meanwhile ``open_session`` fails at
    once and the gateway goes on without the cache.
    """

    def __init__(
        self,
        socket: Path,
        token: str,
        *,
        on_invalidated: Callable[[str, str], None],
        on_lost: Callable[[], None],
        on_erasing: Callable[[str, str], None] = lambda tenant, session: None,
        claims: RotatingSigner | None = None,
        erase_timeout_s: float = 300.0,
    ) -> None:
        """``claims``: the signer whose key the daemon may have replaced."""
        self._socket = socket
        self._hello = make_hello(Role.GATEWAY, token, "kvrun-gateway")
        self._on_invalidated = on_invalidated
        self._on_erasing = on_erasing
        self._on_lost = on_lost
        self._claims = claims
        self._erase_timeout_s = erase_timeout_s
        self._calls = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[SessionOpened]] = {}
        self._erasing: dict[int, asyncio.Future[UserErased]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._announces = False
        self._frames = FrameReader()
        self._welcome: Welcome | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether the daemon can be asked now."""
        return self._writer is not None

    @property
    def welcome(self) -> Welcome:
        """What the daemon said about itself at the first connection.

        Raises:
            InstanceUnavailableError: ``start`` has not succeeded yet.
        """
        if self._welcome is None:
            raise InstanceUnavailableError("the gateway has not reached the instance daemon yet")
        return self._welcome

    @property
    def workspace(self) -> str:
        """The workspace that the daemon serves."""
        return self.welcome.workspace

    @property
    def deployment(self) -> str:
        """The deployment that the daemon serves."""
        return self.welcome.deployment

    @property
    def stateless(self) -> bool:
        """Whether every request has a salt of its own."""
        return self.welcome.stateless

    async def start(self, *, timeout_s: float = 30.0) -> None:
        """Connect for the first time and keep connected.

        Raises:
            InstanceUnavailableError: the daemon cannot be reached in time, or refused.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                reader = await self._connect()
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise InstanceUnavailableError(
                        f"the instance daemon at {self._socket} cannot be reached: {error}",
                        hint="start it with `kvrun instance` or `kvrun up`",
                    ) from error
                await asyncio.sleep(0.1)
        self._task = asyncio.create_task(self._keep(reader))

    async def open_session(self, tenant: str, session: str) -> SessionGrant:
        """The session's salt and generation.

        Raises:
            InstanceUnavailableError: the daemon is away.
            SessionRefusedError: it refused; ``status`` 429 beyond the tenant's session limit.
        """
        writer = self._writer
        if writer is None:
            raise InstanceUnavailableError("the instance daemon is away")
        call = next(self._calls)
        answer: asyncio.Future[SessionOpened] = asyncio.get_running_loop().create_future()
        self._waiting[call] = answer
        try:
            writer.write(encode_frame(OpenSession(call, tenant, session)))
            opened = await answer
        finally:
            self._waiting.pop(call, None)
        if opened.status != 200:
            raise SessionRefusedError(opened.reason, opened.status, opened.elsewhere)
        return SessionGrant(opened.salt, opened.generation)

    @property
    def announces(self) -> bool:
        """Whether an engine is connected that gets claims no other way."""
        return self._announces

    def announce(self, salt: str, claim: str, uses: int, traceparent: str = "") -> None:
        """Send a claim to the engine's adapter, if that gets none with the request."""
        if self._announces and self._writer is not None:
            self._writer.write(encode_frame(Announced(salt, claim, uses, traceparent)))

    async def erase_user(
        self, tenant: str, session: str, *, requester: str, reference: str, legal_basis: str
    ) -> bytes:
        """Erase a session, or with an empty ``session`` the tenant; the certificate's bytes.

        In place of a very large one: its id, digest and size, as JSON.

        Raises:
            InstanceUnavailableError: the daemon is away (503) or did not answer in time (504);
                whether it erased is not known.
            ErasureRefusedError: it refused or failed; ``status`` is the daemon's.
        """
        writer = self._writer
        if writer is None:
            raise _away("the instance daemon is away")
        call = next(self._calls)
        answer: asyncio.Future[UserErased] = asyncio.get_running_loop().create_future()
        self._erasing[call] = answer
        try:
            writer.write(
                encode_frame(EraseUser(call, tenant, session, requester, reference, legal_basis))
            )
            async with asyncio.timeout(self._erase_timeout_s):
                erased = await answer
        except TimeoutError:
            late = f"the instance daemon did not answer in {self._erase_timeout_s:.0f} s"
            raise _away(late, status=504) from None
        finally:
            self._erasing.pop(call, None)
        if erased.status != 200:
            raise ErasureRefusedError(erased.reason, erased.status)
        return erased.certificate

    async def close(self) -> None:
        """Close the connection and stop looking for the daemon."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._writer is not None:
            self._writer.close()

    async def _connect(self) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        writer.write(encode_frame(self._hello))
        self._frames = FrameReader()
        messages: list[AnyMessage] = []
        while not messages:
            data = await reader.read(_READ_BYTES)
            if not data:
                writer.close()
                raise ConnectionError("the daemon closed the connection")
            messages = list(self._frames.feed(data))
        first = messages.pop(0)
        if not isinstance(first, Welcome):
            writer.close()
            reason = first.reason if isinstance(first, Refused) else "an unexpected answer"
            raise InstanceUnavailableError(
                f"the instance daemon at {self._socket} refused the gateway: {reason}"
            )
        self._welcome = first
        self._announces = False
        self._writer = writer
        for message in messages:  # pushed right behind the welcome
            self._take(message)
        if self._claims is not None and self._claims.key_id not in first.claim_keys:
            # It was replaced while this gateway, or the daemon, was away.
            self._introduce(0)
        return reader

    def _introduce(self, call: int) -> None:
        if self._claims is None or self._writer is None:
            return
        made = self._claims.introduction()
        self._writer.write(
            encode_frame(
                ClaimKey(call, made.public_key, made.introduced_by, made.signature, made.replaces)
            )
        )

    async def _keep(self, reader: asyncio.StreamReader) -> None:
        while True:
            await self._read(reader)
            self._writer = None
            self._on_lost()
            owed: list[asyncio.Future[SessionOpened] | asyncio.Future[UserErased]]
            owed = [*self._waiting.values(), *self._erasing.values()]
            for waiting in owed:
                if not waiting.done():
                    waiting.set_exception(_away("the instance daemon went away"))
            while self._writer is None:
                await asyncio.sleep(_RECONNECT_S)
                with contextlib.suppress(OSError, KvrunError):
                    reader = await self._connect()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                data = await reader.read(_READ_BYTES)
                messages = list(self._frames.feed(data)) if data else []
            except (OSError, ProtocolError):
                return
            if not data:
                return
            for message in messages:
                self._take(message)

    def _take(self, message: AnyMessage) -> None:
        if isinstance(message, SessionOpened):
            answer = self._waiting.get(message.call)
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif isinstance(message, UserErased):
            erased = self._erasing.get(message.call)
            if erased is not None and not erased.done():
                erased.set_result(message)
        elif isinstance(message, AnnounceClaims):
            self._announces = message.wanted
        elif isinstance(message, RenewClaimKey):
            self._introduce(message.call)
        elif isinstance(message, ClaimKeyTaken):
            if message.reason:
                _log.warning("the daemon refused a claim key: %s", message.reason)
            elif self._claims is not None:
                self._claims.use(message.key_id)
        elif isinstance(message, SessionInvalidated):
            tell = self._on_erasing if message.erasing else self._on_invalidated
            tell(message.tenant, message.session)


def _away(reason: str, *, status: int = 503) -> InstanceUnavailableError:
    error = InstanceUnavailableError(reason)
    error.status = status
    return error
