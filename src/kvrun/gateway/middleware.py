"""The gateway's checks inside ``vllm serve``.

Given as ``--middleware kvrun.gateway.middleware.KvrunMiddleware``; vLLM puts it outermost. It
refuses everything it does not know, since the engine has more ways to a generation than its /v1
paths (``/invocations``, ``/generative_scoring``, ...), and stamps the same signed claim as the
gateway. Settings come from the file named by KVRUN_CONFIG and from KVRUN_GATEWAY__* variables.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvrun.claims.keyfile import load_signing_key
from kvrun.config.gateway import GatewaySettings
from kvrun.errors import KvrunError
from kvrun.gateway.admission import HeaderList, check_body_headers
from kvrun.gateway.app import GatewayParts
from kvrun.gateway.asgi import (
    OPENAI_REQUEST_ID_HEADER,
    REQUEST_ID_HEADER,
    AsgiApp,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    id_headers,
    read_body,
    refuse_websocket,
    send_error,
)
from kvrun.gateway.errors import GatewayConfigError, GatewayError
from kvrun.gateway.routes import Route, find_route
from kvrun.gateway.scrub import EventScrubber, scrub_json
from kvrun.process import leave_no_core
from kvrun.telemetry.traces import PassedOn, read_traceparent

logger = logging.getLogger("kvrun.gateway")

# What an engine shows about itself; none of it holds a request or another client's answer.
READ_PATHS = frozenset({"/health", "/ping", "/version", "/v1/models", "/metrics", "/load"})
_OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics", "/load"})
_REPLACED_IN_ANSWERS = (b"content-length", REQUEST_ID_HEADER, OPENAI_REQUEST_ID_HEADER)


class KvrunMiddleware:
    """Pure ASGI around the engine's application. Tests give ``settings`` and ``parts``."""

    def __init__(
        self,
        app: AsgiApp,
        *,
        settings: GatewaySettings | None = None,
        parts: GatewayParts | None = None,
    ) -> None:
        self._app = app
        if settings is None or parts is None:
            leave_no_core()  # claims and prompts pass through this process
            settings, parts = _parts_from_environment()
        self._settings = settings
        self._admission = parts.admission
        self._running = parts.running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await refuse_websocket(receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._admission.new_request_id()
        try:
            # Servers add a chunked body's trailers to the list, after it was checked: a copy.
            headers: HeaderList = list(scope["headers"])
            _refuse_upgrade(scope["method"], headers)
            if scope["method"] in ("GET", "HEAD") and scope["path"] in READ_PATHS:
                if scope["path"] not in _OPEN_PATHS:
                    await self._admission.authenticate(headers)
                await self._app(scope, receive, send)
                return
            route = find_route(scope["method"], scope["path"])
            await self._generate(scope, headers, receive, send, route, request_id)
        except ClientGoneError:
            return
        except KvrunError as error:
            await send_error(send, error, request_id)

    async def _generate(
        self,
        scope: Scope,
        headers: HeaderList,
        receive: Receive,
        send: Send,
        route: Route,
        request_id: str,
    ) -> None:
        caller = await self._admission.authenticate(headers)
        check_body_headers(headers, self._settings.max_body_bytes)
        raw = await read_body(receive, self._settings.max_body_bytes, self._settings.body_timeout_s)
        trace = PassedOn(read_traceparent(headers))
        admitted = await self._admission.admit(route, caller, raw, request_id, trace)
        inner = dict(scope)
        inner["headers"] = _engine_headers(headers, len(admitted.body), request_id)
        answer = _Answer(send, request_id)
        try:
            with self._running.hold(admitted.tenant, admitted.session):
                await self._app(inner, _replay(admitted.body, receive), answer.send)
        except GatewayError as error:
            if not await answer.broke_off(error):
                raise


class _Answer:
    """Sends the engine's answer on: with the request id, without transfer parameters."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self._start: Message | None = None
        self._whole = bytearray()
        self._events: EventScrubber | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] == "http.response.body":
            if self._events is not None:
                await self._send_events(message, self._events)
            else:
                await self._send_whole(message)
        else:
            await self._send(message)

    async def broke_off(self, error: GatewayError) -> bool:
        """End a stream of events that has begun with the error; False where none has."""
        if self._events is None:
            return False
        body = b"data: " + error.body() + b"\n\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        return True

    async def _begin(self, message: Message) -> None:
        headers = [
            (name, value)
            for name, value in message.get("headers", [])
            if name.lower() not in _REPLACED_IN_ANSWERS
        ]
        headers += id_headers(self._request_id)
        start = {"type": "http.response.start", "status": message["status"], "headers": headers}
        if _content_type(headers).startswith(b"text/event-stream"):
            self._events = EventScrubber()
            await self._send(start)
        else:
            self._start = start

    async def _send_events(self, message: Message, events: EventScrubber) -> None:
        data = events.feed(message.get("body", b""))
        more = message.get("more_body", False)
        if not more:
            data += events.finish()
        if data or not more:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _send_whole(self, message: Message) -> None:
        self._whole += message.get("body", b"")
        if message.get("more_body", False) or self._start is None:
            return
        body = bytes(self._whole)
        if b"json" in _content_type(self._start["headers"]):
            body = scrub_json(body)
        self._start["headers"].append((b"content-length", str(len(body)).encode()))
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": body})


def _content_type(headers: HeaderList) -> bytes:
    return next((value for name, value in headers if name.lower() == b"content-type"), b"")


def _refuse_upgrade(method: str, headers: HeaderList) -> None:
    """Refuse what asks for another protocol, and end its connection.

    uvicorn's httptools server takes such a request to end with its head, and its body for the next
    request. It begins requests in turn, and none on a connection that an answer ended.
    """
    if method == "CONNECT" or any(name.lower() == b"upgrade" for name, _ in headers):
        raise GatewayError(
            "only HTTP/1.1 is spoken here",
            code="no_upgrade",
            hint="Send the request without CONNECT and without the header Upgrade.",
            close=True,
        )


def _engine_headers(
    headers: HeaderList, body_bytes: int, request_id: str
) -> Sequence[tuple[bytes, bytes]]:
    """The client's headers without those that the new body or our own id replaces."""
    replaced = (b"content-length", b"transfer-encoding", b"x-request-id")
    kept = [(name, value) for name, value in headers if name.lower() not in replaced]
    kept.append((b"content-length", str(body_bytes).encode()))
    kept.append((b"x-request-id", request_id.encode()))
    return kept


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the stamped body once, then the client's own messages: its disconnect must arrive."""
    first = True

    async def replayed() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed


def _parts_from_environment() -> tuple[GatewaySettings, GatewayParts]:
    """Everything from the file in KVRUN_CONFIG and what `kvrun instance` left beside its socket."""
    from kvrun.config.load import load_config

    name = os.environ.get("KVRUN_CONFIG")
    if not name:
        raise GatewayConfigError(
            "the environment variable KVRUN_CONFIG is not set",
            hint="Set it to the path of kvrun.toml; docs/existing-vllm.md shows how.",
        )
    config = load_config(Path(name), os.environ)
    settings = config.gateway.model_copy(
        update={"instance_socket": config.gateway.instance_socket or config.instance_socket}
    )
    key_file = settings.claim_key_file or config.layout.claim_key
    token = _gateway_token(config.instance.token_file or config.layout.tokens)
    return settings, GatewayParts(settings, claim_key=load_signing_key(key_file), token=token)


def _gateway_token(path: Path) -> str:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_LaunchTokens).gateway_token
    except OSError as error:
        raise GatewayConfigError(
            f"the launch tokens {path} cannot be read: {error.strerror}",
            hint="Start `kvrun instance` before the engine.",
        ) from None
    except msgspec.DecodeError as error:
        raise GatewayConfigError(f"{path} does not hold launch tokens: {error}") from None


class _LaunchTokens(msgspec.Struct):
    gateway_token: str
