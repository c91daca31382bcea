"""Erasures that gateways ask for: a few of a tenant at a time, and each answer fits a frame."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

import msgspec

from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import erasure_scope
from kvrun.errors import KvrunError
from kvrun.instance.erasures import ErasureRequest, Erasures
from kvrun.instance.protocol import EraseUser, UserErased

AT_ONCE = 8
"""How many erasures of one tenant wait or run; more are refused with status 429."""
MAX_INLINE_BYTES = 8 << 20
"""The largest certificate that an answer carries."""
_log = logging.getLogger(__name__)
_Answer = Callable[[UserErased], None]
_Waiting = list[tuple[int, _Answer]]
_Asked = tuple[str, str, str, str, str]


class LargeCertificate(msgspec.Struct, frozen=True):
    """The answer in place of a certificate that is too large; ``digest`` is of its statement."""

    id: str
    digest: str
    size_bytes: int
    detail: str = "The certificate is in the deployment's Storage: it is too large to be sent."


class UserErasures:
    """Takes requests and answers them. Thread-safe.

    The same request again joins one that has not begun, since that will find the same keys.
    """

    def __init__(self, erasures: Erasures, run: Callable[[Callable[[], None]], None]) -> None:
        """``run`` carries out a task on a thread."""
        self._erasures = erasures
        self._task = run
        self._lock = threading.Lock()
        self._waiting: dict[_Asked, _Waiting] = {}
        self._of_tenant: Counter[str] = Counter()

    def ask(self, message: EraseUser, answer: _Answer) -> None:
        """Erase; ``answer`` is called once, from any thread."""
        asked = (
            message.tenant,
            message.session,
            message.requester,
            message.reference,
            message.legal_basis,
        )
        with self._lock:
            joined = self._waiting.get(asked)
            if joined is not None:
                joined.append((message.call, answer))
                return
            full = self._of_tenant[message.tenant] >= AT_ONCE
            if not full:
                self._of_tenant[message.tenant] += 1
                waiting = self._waiting[asked] = [(message.call, answer)]
        if full:
            reason = f"{AT_ONCE} erasures of this tenant are under way; ask again when one is done"
            answer(UserErased(message.call, 429, b"", reason))
            return
        self._task(lambda: self._run(asked, message, waiting))

    def _run(self, asked: _Asked, message: EraseUser, waiting: _Waiting) -> None:
        def begins() -> None:
            with self._lock:
                if self._waiting.get(asked) is waiting:
                    del self._waiting[asked]

        try:
            status, certificate, reason = self._erase(message, begins)
        finally:
            begins()
            with self._lock:
                self._of_tenant[message.tenant] -= 1
                self._of_tenant += Counter()  # forgets tenants of which none is left
        for call, answer in waiting:
            answer(UserErased(call, status, certificate, reason))

    def _erase(self, message: EraseUser, begins: Callable[[], None]) -> tuple[int, bytes, str]:
        try:
            kind = RequestKind.SESSION if message.session else RequestKind.TENANT
            scope = erasure_scope(kind, message.tenant, message.session)
            request = ErasureRequest(
                scope, message.requester, message.reference, message.legal_basis, confirmed=True
            )
            done = self._erasures.erase(request, begins=begins)
            certificate = self._erasures.certificate(done.id) or b""
        except KvrunError as error:
            return error.status, b"", error.diagnostics()
        except Exception:
            _log.exception("an erasure failed inside the daemon")
            return 500, b"", "the daemon failed to do it"
        if len(certificate) > MAX_INLINE_BYTES:
            large = LargeCertificate(done.id, done.digest, len(certificate))
            return 200, msgspec.json.encode(large), ""
        return 200, certificate, ""
