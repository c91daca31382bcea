"""The slot server's HTTP front: what the gateway talks to in place of an engine's own server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from typing import Any

import msgspec

from kvrun.engines.admission import KEY_DESTROYED, State
from kvrun.engines.llama_cpp.answers import EventReader, whole_answer
from kvrun.engines.llama_cpp.backend import Backend, BackendError, Computed, Timings
from kvrun.engines.llama_cpp.fields import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    UNGOVERNED_PATHS,
    Asked,
    JsonObject,
    RequestError,
    check_window,
    parse_body,
    passed_fields,
    read_request,
    stamps_of,
)
from kvrun.engines.llama_cpp.governed import GovernedSlots, Run, match_names
from kvrun.engines.llama_cpp.link import DaemonLink
from kvrun.engines.llama_cpp.metrics import SlotMetrics
from kvrun.engines.llama_cpp.reply import Message, Reply, Rest, Send, Sending
from kvrun.engines.llama_cpp.slots import ANYONE, Slot, Slots
from kvrun.errors import KvrunError
from kvrun.instance.protocol import page_owner

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
_EARLIER_S = 5.0
_log = logging.getLogger(__name__)


class ErasedError(KvrunError):
    """The session was erased while its request ran."""

    status = 410


class Front:
    """The ASGI application over one server's slots. ``window`` bounds prompt and answer."""

    def __init__(
        self,
        backend: Backend,
        link: DaemonLink,
        slots: Slots,
        metrics: SlotMetrics,
        *,
        name: str,
        window: int,
    ) -> None:
        self._backend = backend
        self._link = link
        self._slots = slots
        self._governed = GovernedSlots(backend, link, metrics)
        self._metrics = metrics
        self._name = name
        self._window = window
        self._running: dict[str, asyncio.Task[None]] = {}
        self._erased: set[str] = set()
        self._retiring: dict[bytes, set[asyncio.Task[None]]] = {}
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        reply = Reply(send)
        try:
            if method == "GET":
                await self._read(path, reply)
            elif method == "POST" and path in (CHAT_PATH, COMPLETIONS_PATH, *UNGOVERNED_PATHS):
                await self._serve(path, await _body(receive), receive, reply)
            else:
                await reply.error(404, "this path is not served by the engine", "unknown_path")
        except RequestError as error:
            await reply.error(error.status, error.message, error.code, error.param)
        except BackendError as error:
            _log.warning("llama.cpp: %s", error.message)
            if error.body and 400 <= error.status < 500:
                await reply.whole(error.status, error.body)
            else:
                await reply.error(502, error.message, "engine_error")
        except KvrunError as error:
            await reply.error(error.status, error.message, "engine_error")

    def denied(self, request_id: str) -> None:
        """A request lost its right to the cache; one whose session was erased ends at once."""
        task = self._running.get(request_id)
        if task is not None and self._link.reason(request_id) == KEY_DESTROYED:
            self._erased.add(request_id)
            task.cancel()

    async def close(self) -> None:
        """Wait for what requests leave behind."""
        for tasks in list(self._retiring.values()):
            if tasks:
                await asyncio.wait(set(tasks))
        await self._slots.drain()

    async def _read(self, path: str, reply: Reply) -> None:
        if path == "/health":
            healthy = not self._slots.broken.is_set() and await self._backend.healthy()
            await reply.whole(200 if healthy else 503, b"{}")
        elif path == "/v1/models":
            model = {
                "id": self._name, "object": "model", "created": self._created,
                "owned_by": "kvrun", "max_model_len": self._window,
            }  # fmt: skip
            await reply.whole(200, msgspec.json.encode({"object": "list", "data": [model]}))
        elif path == "/metrics":
            self._metrics.slots_zeroed.set(self._slots.scrubs)
            await reply.whole(200, self._metrics.render(), b"text/plain; version=0.0.4")
        else:
            await reply.error(404, "this path is not served by the engine", "unknown_path")

    async def _serve(self, path: str, raw: bytes, receive: Receive, reply: Reply) -> None:
        """Serve until the answer is complete, the client leaves or the session is erased."""
        request_id = secrets.token_hex(16)
        work = asyncio.create_task(self._answer(path, raw, request_id, reply))
        self._running[request_id] = work
        self._metrics.running.inc()
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            if request_id in self._erased:
                raise ErasedError("the session was erased while its request ran")
        finally:
            leaving.cancel()
            self._metrics.running.dec()
            if reply.complete:
                self._metrics.finished.inc()
            del self._running[request_id]
            self._erased.discard(request_id)

    async def _answer(self, path: str, raw: bytes, request_id: str, reply: Reply) -> None:
        body = parse_body(raw)
        if path in UNGOVERNED_PATHS:
            await self._pass(path, body, request_id, reply)
            return
        asked = read_request(path, body)
        tokens = await self._tokens(asked)
        limit = check_window(len(tokens), asked.max_tokens, self._window)
        fields: JsonObject = {**asked.fields, "max_tokens": limit}
        if asked.prompt is not None:
            fields["prompt"] = tokens
        owner = page_owner(asked.salt) if asked.claim and asked.salt else ANYONE
        await self._earlier(owner)
        admission = await self._link.admit(
            request_id, asked.claim, asked.salt, match_names(tokens), len(tokens), asked.traceparent
        )
        admitted = admission.state is State.ADMITTED
        self._metrics.requests.labels("governed" if admitted else "none").inc()
        try:
            slot = await self._slots.take(owner if admitted else ANYONE)
        except BaseException:
            self._link.finish(request_id)
            raise
        run = Run(request_id, tokens, admission, slot)
        answer_tokens = 0
        try:
            await self._governed.prepare(run)
            if asked.stream:
                answer_tokens, rest = await self._stream(path, fields, run, reply)
            else:
                answer_tokens, rest = await self._whole(path, fields, run, reply)
        finally:
            self._slots.answered(slot)
            self._retire(owner, self._end(run, answer_tokens))
        await rest()

    async def _tokens(self, asked: Asked) -> list[int]:
        if isinstance(asked.prompt, list):
            return asked.prompt
        text = asked.prompt
        if text is None:
            rendered = {name: value for name, value in asked.fields.items() if name != "stream"}
            text = await self._backend.render(rendered)
        tokens = await self._backend.tokenize(text)
        if not tokens:
            raise RequestError("the prompt is empty", param="prompt")
        return tokens

    async def _whole(
        self, path: str, fields: JsonObject, run: Run, reply: Reply
    ) -> tuple[int, Rest]:
        """Compute the answer; its tokens, 0 where there is none, and what sends it."""
        for _ in range(2):
            status, answer = await self._backend.call(path, self._pinned(fields, run))
            if status != 200:
                return 0, partial(reply.whole, status, answer)
            timings = _decoded(answer).timings
            if await self._governed.generated(run, timings):
                whole = whole_answer(answer, run.reused)
                return timings.predicted_n, partial(reply.whole, 200, whole)
            await self._governed.start_over(run)
        raise BackendError("llama.cpp computed on a slot that was not empty")

    async def _stream(
        self, path: str, fields: JsonObject, run: Run, reply: Reply
    ) -> tuple[int, Rest]:
        for _ in range(2):
            told = await self._stream_once(path, fields, run, reply)
            if told is not None:
                return told
            await self._governed.start_over(run)
        raise BackendError("llama.cpp computed on a slot that was not empty")

    async def _stream_once(
        self, path: str, fields: JsonObject, run: Run, reply: Reply
    ) -> tuple[int, Rest] | None:
        """Stream the answer up to its last events; its tokens, and what sends those.

        None where it must not be used and none was sent.
        """
        body = {**self._pinned(fields, run), "return_progress": True}
        reader, checked = EventReader(), False
        timings: Timings | None = None
        last = b""
        with Sending(reply) as sending:
            async with self._backend.stream(path, body) as answer:
                if answer.status != 200:
                    return 0, partial(reply.whole, answer.status, await answer.read())
                async for chunk in answer.content.iter_any():
                    for event in reader.feed(chunk):
                        if event.cache_n is not None and not checked:
                            checked = await self._governed.generated(run, Timings(event.cache_n))
                            if not checked:
                                return None
                            reader.reused = run.reused
                        if event.generated and not checked:
                            return None
                        timings = event.timings or timings
                        if timings is not None:
                            last += event.data
                        elif event.data:
                            await sending.add(event.data)
            return 0 if timings is None else timings.predicted_n, sending.rest(last)

    def _pinned(self, fields: JsonObject, run: Run) -> JsonObject:
        return {**fields, "id_slot": run.slot.number, "cache_prompt": True, "n_cache_reuse": 0}

    async def _pass(self, path: str, body: JsonObject, request_id: str, reply: Reply) -> None:
        """A request that llama.cpp puts into a slot of its own choice: alone, and uncached."""
        fields = passed_fields(path, body)
        claim, salt, traceparent = stamps_of(body)
        if claim:
            # Admitted all the same: each request that the gateway let in is on record.
            await self._link.admit(request_id, claim, salt, [], 0, traceparent)
        self._metrics.requests.labels("none").inc()
        slots: list[Slot] = []
        try:
            slots = await self._slots.take_all()
            rest = await self._passed(path, fields, reply)
        finally:
            self._link.finish(request_id)
            self._retire(ANYONE, self._slots.give_back(slots))
        await rest()

    async def _passed(self, path: str, fields: JsonObject, reply: Reply) -> Rest:
        """Read an answer as fast as it is computed, while what was read is sent."""
        with Sending(reply) as sending:
            async with self._backend.stream(path, fields) as answer:
                kind = answer.headers.get("content-type", "application/json")
                if answer.status != 200 or not kind.startswith("text/event-stream"):
                    return partial(reply.whole, answer.status, await answer.read())
                async for chunk in answer.content.iter_any():
                    await sending.add(chunk)
            return sending.rest()

    async def _end(self, run: Run, answer_tokens: int) -> None:
        """Keep the answer, and give the slot back."""
        try:
            if answer_tokens:
                await self._governed.keep_answer(run, answer_tokens)
        except KvrunError as error:
            _log.warning("an answer was not kept: %s", error.message)
        finally:
            # What is written to the slot's scratch must have ended before that is wiped.
            await self._slots.empty(run.slot)
            await self._governed.finish(run)
            await self._slots.give_back([run.slot])

    def _retire(self, owner: bytes, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks = self._retiring.setdefault(owner, set())
        tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            tasks.discard(finished)
            if not tasks and self._retiring.get(owner) is tasks:
                del self._retiring[owner]

        task.add_done_callback(done)

    async def _earlier(self, owner: bytes) -> None:
        """Let a session's last request keep its answer before the next one looks for it."""
        earlier = self._retiring.get(owner)
        if owner != ANYONE and earlier:
            await asyncio.wait(set(earlier), timeout=_EARLIER_S)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("the client left before its request was complete")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _decoded(answer: bytes) -> Computed:
    try:
        return msgspec.json.decode(answer, type=Computed)
    except msgspec.DecodeError as error:
        raise BackendError(f"llama.cpp's answer is not understood: {error}") from None
