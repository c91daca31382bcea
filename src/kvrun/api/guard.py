"""What every request passes first: host, origin, size, request id, security headers.

Plain ASGI around the whole application, the console included, so that no route can be without it.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvrun.api.problems import RequestRefusedError, problem_of, problem_response, unexpected
from kvrun.config.control import ControlSection

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that a browser sends "Origin: null" with a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}
_STRICT_TRANSPORT = "max-age=31536000"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
_LENGTH = re.compile(r"[0-9]{1,12}")
_BODY_TIMEOUT_S = 30.0


class Guard:
    """Refuses what no route should see, and answers every request with the same protections."""

    def __init__(self, app: ASGIApp, settings: ControlSection) -> None:
        self._app = app
        self._hosts = settings.host_names
        self._own = urlsplit(settings.url).netloc.lower()
        self._max_body = settings.max_body_bytes
        self._headers = dict(_HEADERS)
        if settings.secure:
            self._headers["Strict-Transport-Security"] = _STRICT_TRANSPORT

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._protect(MutableHeaders(raw=message["headers"]), request_id)
            await send(message)

        try:
            self._check(scope["method"], headers)
            await self._app(scope, await self._with_body(headers, receive), guarded)
        except RequestRefusedError as error:
            answer = problem_response(problem_of(error), request_id=request_id)
            await answer(scope, receive, guarded)
        except Exception:
            answer = unexpected(request_id)
            if not started:
                await answer(scope, receive, guarded)

    def _protect(self, headers: MutableHeaders, request_id: str) -> None:
        for name, value in self._headers.items():
            headers.setdefault(name, value)
        headers["X-Request-Id"] = request_id

    def _check(self, method: str, headers: Headers) -> None:
        host = _HOST.fullmatch(headers.get("host", ""))
        if host is None or host[1].lower() not in self._hosts or len(headers.getlist("host")) > 1:
            raise RequestRefusedError(
                "the Host header names none of the control plane's addresses",
                code="unknown_host",
                hint="control.allowed_hosts and control.public_url say which there are",
            )
        origin = headers.get("origin")
        if method in SAFE_METHODS or origin is None:
            return
        # Browsers say where a request comes from; nobody else's page may change anything here.
        if urlsplit(origin).netloc.lower() not in (host[0].lower(), self._own):
            raise RequestRefusedError(
                "a request of another origin changes nothing here",
                status=403,
                code="foreign_origin",
            )

    async def _with_body(self, headers: Headers, receive: Receive) -> Receive:
        """Read a body whole, up to the limit, so that no route can be made to read more."""
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return receive
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length) or int(length) > self._max_body:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        # Half a list, replayed as if it were whole, would be carried out.
                        raise RequestRefusedError(
                            "the connection ended within the request's body", code="cut_off"
                        )
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_body:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise RequestRefusedError(
                "the request's body did not come in time", status=408, code="timeout"
            ) from None
        waiting: list[Message] = [
            {"type": "http.request", "body": b"".join(parts), "more_body": False}
        ]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay

    def _too_large(self) -> RequestRefusedError:
        return RequestRefusedError(
            f"the request's body has more than {self._max_body} bytes",
            status=413,
            code="too_large",
            hint="control.max_body_bytes is the limit; import tenants in several requests",
        )


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
