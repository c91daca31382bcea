"""A witness for the logs of other installations: C2SP ``tlog-witness`` over HTTP.

Source: https://c2sp.org/tlog-witness. It cosigns only what continues what it cosigned before, and
remembers durably before it signs. There is no login: a log is known by its key.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvrun.audit.checkpoint import Checkpoint, open_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import EMPTY_ROOT, verify_consistency
from kvrun.audit.note import NoteSignature, VerifierKey, cosigned_message
from kvrun.control.witness_request import (
    MAX_REQUEST_BYTES,
    PATH,
    SIZE_TYPE,
    AddCheckpoint,
    parse_request,
)
from kvrun.control.witness_state import Refusal, Remembered, WitnessState
from kvrun.gateway.asgi import ClientGoneError, Receive, Scope, Send, read_body
from kvrun.gateway.errors import GatewayError

BODY_TIMEOUT_S = 10.0
CLOCK_SLACK_S = 300
_TEXT = "text/plain; charset=utf-8"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: bytes
    media_type: str = _TEXT


class Cosigner:
    """Answers ``add-checkpoint`` for the logs whose verifier keys it was given. Thread-safe.

    A key counts for the log whose id is the key's name. ``now``: seconds since 1970.
    """

    def __init__(
        self, state: WitnessState, log_keys: Sequence[VerifierKey], *, now: Callable[[], float]
    ) -> None:
        self._state = state
        self._now = now
        logs: dict[str, list[VerifierKey]] = {}
        for key in log_keys:
            logs.setdefault(key.name, []).append(key)
        self._logs: Mapping[str, list[VerifierKey]] = logs

    def add_checkpoint(self, body: bytes) -> Reply:
        """The answer to a request's body."""
        try:
            request = parse_request(body)
            checkpoint = open_checkpoint(request.note, ()).checkpoint
            keys = self._logs.get(checkpoint.origin)
            if keys is None:
                return _reply(404, "this witness does not know that log")
            opened = open_checkpoint(request.note, keys)
        except NoteFormatError as error:
            return _reply(400, error.message)
        if not opened.signed_by or opened.broken:
            return _reply(403, "no known key of that log signed this checkpoint")
        try:
            return self._decide(request, checkpoint)
        except sqlite3.Error as error:
            _log.error("cannot remember a checkpoint: %s", error)
            return _reply(503, "this witness cannot remember anything now")

    def _decide(self, request: AddCheckpoint, checkpoint: Checkpoint) -> Reply:
        known = self._state.remembered(checkpoint.origin)
        refused = judge(request, checkpoint, known)
        if refused is None:
            return self._cosign(request, checkpoint, known)
        if known is not None and _contradicts(checkpoint, known, refused.status):
            _log.warning("refused %d records of %s", checkpoint.size, checkpoint.origin)
            refusal = Refusal(int(self._now()), refused.status, request.note)
            self._state.refuse(checkpoint.origin, refusal)
        return refused

    def _cosign(
        self, request: AddCheckpoint, checkpoint: Checkpoint, known: Remembered | None
    ) -> Reply:
        # A cosignature states that no larger size was seen by its time, so a small step back of the
        # clock is held. A large one is stated: the clock was wrong before, and must not stay wrong.
        time = int(self._now())
        if known is not None and time < known.time <= time + CLOCK_SLACK_S:
            time = known.time
        new = Remembered(checkpoint.size, checkpoint.root, request.note, time)
        if not self._state.remember(checkpoint.origin, known, new):
            present = self._state.remembered(checkpoint.origin)
            return _size(present.size if present else 0)
        key = self._state.key
        text = checkpoint.text()
        signature = self._state.private_key.sign(cosigned_message(text, time))
        item = NoteSignature(key.name, key.key_id, time.to_bytes(8, "big") + signature)
        return Reply(200, item.line())


def judge(request: AddCheckpoint, checkpoint: Checkpoint, known: Remembered | None) -> Reply | None:
    """The refusal of a request whose signature holds, or None: it continues what is known. Pure."""
    if request.old_size > checkpoint.size:
        return _reply(400, "the old size is larger than the checkpoint's")
    size, root = (known.size, known.root) if known else (0, EMPTY_ROOT)
    if request.old_size != size or (checkpoint.size == size and checkpoint.root != root):
        return _size(size)
    if verify_consistency(size, checkpoint.size, root, checkpoint.root, request.proof):
        return None
    # What was cosigned is signed by the log, so it lets the asker prove a fork.
    return Reply(422, known.note) if known else _reply(422, "a proof from size 0 is empty")


class WitnessApp:
    """The ASGI application around a Cosigner: ``POST /add-checkpoint`` and ``GET /healthz``."""

    def __init__(self, cosigner: Cosigner) -> None:
        self._cosigner = cosigner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            reply = await self._answer(scope, receive)
        except ClientGoneError:
            return
        except GatewayError as error:
            reply = _reply(error.status, error.message)
        headers = [
            (b"content-type", reply.media_type.encode()),
            (b"content-length", str(len(reply.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        if scope["path"] == "/healthz":
            return _reply(200, "ok")
        if scope["path"] != PATH:
            return _reply(404, f"only POST {PATH} is served here")
        if scope["method"] != "POST":
            return _reply(405, f"only POST {PATH} is served here")
        body = await read_body(receive, MAX_REQUEST_BYTES, BODY_TIMEOUT_S)
        return await asyncio.to_thread(self._cosigner.add_checkpoint, body)


def _contradicts(checkpoint: Checkpoint, known: Remembered, status: int) -> bool:
    """Whether a refused note is worth keeping: it is another history, or may be one."""
    other = checkpoint.size == known.size and checkpoint.root != known.root
    return other or status == 422


def _reply(status: int, text: str) -> Reply:
    return Reply(status, text.encode() + b"\n")


def _size(size: int) -> Reply:
    return Reply(409, b"%d\n" % size, SIZE_TYPE)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
