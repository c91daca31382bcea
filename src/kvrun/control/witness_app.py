"""The witness as an ASGI application: ``POST /add-checkpoint``, and what it says of itself."""

import asyncio
from collections.abc import Sequence

from kvrun.control.witness_metrics import WitnessMetrics
from kvrun.control.witness_request import MAX_REQUEST_BYTES, PATH
from kvrun.control.witness_server import Cosigner, Refused, Reply, refusal
from kvrun.gateway.asgi import ClientGoneError, Receive, Scope, Send, read_body
from kvrun.gateway.errors import GatewayError
from kvrun.telemetry.endpoint import PATHS, Answer, answer

BODY_TIMEOUT_S = 10.0
_TEXT = "text/plain; charset=utf-8"


class WitnessApp:
    """Answers with ``cosigner``, counts in ``metrics``.

    ``offered``: which of the paths of :mod:`kvrun.telemetry.endpoint` are answered here.
    """

    def __init__(
        self, cosigner: Cosigner, metrics: WitnessMetrics, *, offered: Sequence[str] = PATHS
    ) -> None:
        self._cosigner = cosigner
        self._metrics = metrics
        self._offered = frozenset(offered)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            found = await self._answer(scope, receive)
        except ClientGoneError:
            return
        headers = [
            (b"content-type", found.content_type.encode()),
            (b"content-length", str(len(found.body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": found.status, "headers": headers})
        await send({"type": "http.response.body", "body": found.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path, method = scope["path"], scope["method"]
        if path in self._offered:
            if method not in ("GET", "HEAD"):
                return _said(405, f"{path} takes GET only")
            found = await asyncio.to_thread(answer, self._metrics.probes, path)
            assert found is not None
            return found
        if path != PATH:
            return _said(404, f"only POST {PATH} is served here")
        if method != "POST":
            return _said(405, f"only POST {PATH} is served here")
        reply = await self._add_checkpoint(receive)
        self._metrics.answered(reply.outcome)
        return Answer(reply.status, reply.media_type, reply.body)

    async def _add_checkpoint(self, receive: Receive) -> Reply:
        try:
            body = await read_body(receive, MAX_REQUEST_BYTES, BODY_TIMEOUT_S)
        except GatewayError as error:
            return refusal(error.status, error.message, Refused.MALFORMED)
        return await asyncio.to_thread(self._cosigner.add_checkpoint, body)


def _said(status: int, text: str) -> Answer:
    return Answer(status, _TEXT, text.encode() + b"\n")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
