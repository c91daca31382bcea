"""The few ASGI types and helpers that proxy and middleware share (ASGI 3)."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kvrun.errors import KvrunError
from kvrun.gateway.admission import body_too_large
from kvrun.gateway.errors import GatewayError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID_HEADER = b"x-kv-request-id"
OPENAI_REQUEST_ID_HEADER = b"x-request-id"


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, max_bytes: int, timeout_s: float) -> bytes:
    """The whole request body. Raises GatewayError 408 or 413, or ClientGoneError."""
    message = await _next(receive, timeout_s)
    if not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > max_bytes:
            raise body_too_large(max_bytes)
        return body
    parts = bytearray(message.get("body", b""))
    deadline = asyncio.get_running_loop().time() + timeout_s
    while message.get("more_body", False):
        if len(parts) > max_bytes:
            raise body_too_large(max_bytes)
        message = await _next(receive, deadline - asyncio.get_running_loop().time())
        parts += message.get("body", b"")
    if len(parts) > max_bytes:
        raise body_too_large(max_bytes)
    return bytes(parts)


async def send_error(send: Send, error: KvrunError, request_id: str) -> GatewayError:
    """Answer with the error in OpenAI's shape; returns it as the gateway's own kind."""
    shown = error if isinstance(error, GatewayError) else _of_daemon(error)
    await send_whole(send, shown.status, shown.headers(), shown.body(), request_id)
    return shown


async def send_whole(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes, request_id: str
) -> None:
    """A complete answer with its length and the request id."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                *headers,
                (b"content-length", str(len(body)).encode()),
                *id_headers(request_id),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


def id_headers(request_id: str) -> list[tuple[bytes, bytes]]:
    """The request id under our name and under the one that OpenAI's clients show."""
    value = request_id.encode()
    return [(REQUEST_ID_HEADER, value), (OPENAI_REQUEST_ID_HEADER, value)]


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Close before accepting, which servers answer with 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": "not served here"})


async def _next(receive: Receive, timeout_s: float) -> Message:
    # A bare timer instead of asyncio.timeout: the body has nearly always arrived with the headers.
    task = asyncio.current_task()
    assert task is not None
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(timeout_s, expire)
    try:
        message = await receive()
    except asyncio.CancelledError:
        if expired and not task.uncancel():
            raise GatewayError(
                "the body did not arrive in time", status=408, code="body_timeout"
            ) from None
        raise
    finally:
        timer.cancel()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


def _of_daemon(error: KvrunError) -> GatewayError:
    limited = error.status == 429
    codes = {403: "residency_denied", 429: "session_limit"}
    return GatewayError(
        error.message,
        status=error.status,
        code=codes.get(error.status, "refused"),
        retry_after_s=60 if limited else None,
        hint=error.hint,
    )
