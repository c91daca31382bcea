"""A daemon's connection to its key service: requests with answers, and what the service says."""

import contextlib
import hmac
import itertools
import os
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.keys.daemon_state import Pages
from kvrun.keys.errors import KeysError, KeyUnavailableError
from kvrun.keys.greeting import hello_proof, signed_by, welcome_proof
from kvrun.keys.locked import LockedBuffer, Protection
from kvrun.keys.stream import Stream
from kvrun.keys.wire import (
    LENT_BYTES,
    MAX_ANSWER_BYTES,
    NONCE_BYTES,
    VERSION,
    Answer,
    Bye,
    Challenge,
    Cleared,
    End,
    Ended,
    Failed,
    Hello,
    LeaseOver,
    Lent,
    Message,
    Welcome,
    WireError,
    decode_answer,
    error_of,
)

T = TypeVar("T", bound=Message)
_HANDSHAKE_S = 5.0
_CALLS = itertools.count(1)
"""Of every connection: what is left over of one request is never taken for another's answer."""
_replace = msgspec.structs.replace


class NoAnswerError(KeyUnavailableError):
    """The key service is connected and does not answer."""


class RemoteLink:
    """One connection, with a thread that receives.

    ``on_lent(message, keys)`` is called for keys that came, in locked memory that is zeroed
    afterwards; ``on_end`` and ``on_lease_over`` for what the service says by itself. All of them on
    the receiving thread, in the order in which it was said. Keys have ended when ``on_end(end,
    tell)`` returns; ``tell(pages)`` says later what became of their pages, on this connection.
    """

    def __init__(
        self,
        path: Path,
        token: bytes,
        hello: Hello,
        instance_key: Ed25519PrivateKey,
        *,
        on_lent: Callable[[Lent, memoryview], object],
        on_end: Callable[[End, Callable[[Pages], None]], None],
        on_lease_over: Callable[[LeaseOver], None],
        strict_memory: bool = False,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Connect, show the token, and which instance this is.

        Raises KeyUnavailableError or WireError.
        """
        self._on_lent = on_lent
        self._on_end = on_end
        self._on_lease_over = on_lease_over
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Answer | None]] = {}
        self._closed = False
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            raw.connect(str(path))
        except OSError as error:
            raw.close()
            raise KeyUnavailableError(
                f"the key service at {path} does not answer: {error.strerror or error}",
                hint="Is `kvrun keys serve` running with this configuration?",
            ) from None
        self._stream = Stream(raw, at_most=MAX_ANSWER_BYTES)
        try:
            self._buffer = LockedBuffer(LENT_BYTES, strict=strict_memory)
            self.service, self.gone = self._greet(token, hello, instance_key, random_bytes)
        except BaseException:
            self._stream.release()
            raise
        self._thread = threading.Thread(target=self._receive, name="kvrun-keys-link", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._closed

    @property
    def protection(self) -> Protection:
        """That of the memory through which keys come."""
        return self._buffer.protection

    def ask(self, make: Callable[[int], Message], answer: type[T], *, within_s: float) -> T:
        """Send the request that ``make`` builds for a number, and wait for its answer.

        Raises the error that the service answers with, and KeyUnavailableError without an answer.
        """
        found = self.ask_any(make, within_s=within_s)
        if not isinstance(found, answer):
            raise WireError(f"the key service answered with a {type(found).__name__}")
        return found

    def ask_any(self, make: Callable[[int], Message], *, within_s: float) -> Answer:
        """As ``ask``, where the answer may be one of several."""
        with self._lock:
            call = next(_CALLS)
            waiting = self._waiting[call] = queue.SimpleQueue()
        try:
            self.send(make(call))
            return self._next(waiting, within_s)
        finally:
            with self._lock:
                self._waiting.pop(call, None)

    def send(self, message: Message) -> None:
        """Send without waiting. Raises KeyUnavailableError."""
        try:
            self._stream.send(message)
        except WireError as error:
            raise KeyUnavailableError(f"the key service is away: {error.message}") from None

    def close(self, *, bye: bool = False) -> None:
        """End it; with ``bye`` the service need not wait for what was held here."""
        if bye and not self._closed:
            with contextlib.suppress(WireError):
                self._stream.send(Bye())
        self._stream.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)

    def _greet(
        self,
        token: bytes,
        hello: Hello,
        instance_key: Ed25519PrivateKey,
        random_bytes: Callable[[int], bytes],
    ) -> tuple[bytes, list[bytes]]:
        self._stream.within(_HANDSHAKE_S)
        challenge = decode_answer(self._stream.receive())
        if not isinstance(challenge, Challenge) or challenge.version != VERSION:
            raise WireError("it is no key service of this version")
        instance = instance_key.public_key().public_bytes_raw()
        hello = _replace(hello, instance=instance, nonce=random_bytes(NONCE_BYTES))
        hello = _replace(
            hello,
            proof=hello_proof(token, challenge, hello),
            signature=signed_by(instance_key, challenge, hello),
        )
        self._stream.send(hello)
        welcome = decode_answer(self._stream.receive())
        if not isinstance(welcome, Welcome):
            raise WireError("it does not welcome us")
        if not hmac.compare_digest(welcome.proof, welcome_proof(token, challenge, hello)):
            raise WireError("it does not know the token: it is no key service of ours")
        self._stream.within(None)
        return challenge.service, welcome.gone

    def _next(self, waiting: "queue.SimpleQueue[Answer | None]", within_s: float) -> Answer:
        try:
            found = waiting.get(timeout=within_s)
        except queue.Empty:
            raise NoAnswerError("the key service did not answer in time") from None
        if found is None:
            raise KeyUnavailableError("the key service went away before it answered")
        if isinstance(found, Failed):
            raise error_of(found)
        return found

    def _cleared(self, number: int, pages: Pages) -> None:
        # Where the connection was lost, the service asks again on the next one.
        with contextlib.suppress(WireError):
            self._stream.send(Cleared(number, pages))

    def _receive(self) -> None:
        try:
            while True:
                self._take(decode_answer(self._stream.receive()))
        except KeysError:
            pass  # gone, or not what a key service says
        finally:
            self._closed = True
            self._stream.release()
            self._buffer.close()
            with self._lock:
                waiting = list(self._waiting.values())
            for item in waiting:
                item.put(None)

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, End):
            self._on_end(answer, lambda pages: self._cleared(answer.number, pages))
            self._stream.send(Ended(answer.number))
        elif isinstance(answer, LeaseOver):
            self._on_lease_over(answer)
        else:
            if isinstance(answer, Lent):
                keys = self._buffer.view
                try:
                    self._stream.receive_into(keys)
                    self._on_lent(answer, keys)
                finally:
                    self._buffer.wipe()
            with self._lock:
                waiting = self._waiting.get(getattr(answer, "call", 0))
            if waiting is not None:
                waiting.put(answer)
