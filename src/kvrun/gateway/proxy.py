"""The gateway's ASGI application: check, stamp, pass on, stream back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TypeVar

import msgspec

from kvrun.errors import KvrunError
from kvrun.gateway.admission import (
    Admission,
    Admitted,
    HeaderList,
    body_too_large,
    check_body_headers,
)
from kvrun.gateway.apikeys import SCOPE_METRICS
from kvrun.gateway.asgi import (
    OPENAI_REQUEST_ID_HEADER,
    REQUEST_ID_HEADER,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    read_body,
    refuse_websocket,
    send_error,
    send_whole,
)
from kvrun.gateway.direct import ClientConnection, take_connection
from kvrun.gateway.elsewhere import OtherGateways
from kvrun.gateway.erase import PREFIX as ERASE_PREFIX
from kvrun.gateway.erase import erase
from kvrun.gateway.errors import GatewayError
from kvrun.gateway.link import InstanceLink
from kvrun.gateway.metrics import GatewayMetrics
from kvrun.gateway.routes import (
    HEALTH_PATH,
    METRICS_PATH,
    MODELS_PATH,
    READ_PATHS,
    READY_PATH,
    ROUTES,
    Route,
    find_route,
)
from kvrun.gateway.running import RunningRequests
from kvrun.gateway.scrub import EventScrubber, scrub_json
from kvrun.gateway.upstream import (
    Engine,
    EngineAnswer,
    EngineBrokeError,
    EngineTimeoutError,
    EngineUnavailableError,
)
from kvrun.telemetry.traces import NoTracing, SpanKind, Trace, Tracing, read_traceparent

logger = logging.getLogger("kvrun.gateway")

T = TypeVar("T")

RETRY_AFTER_S = 5
CLIENT_CLOSED_REQUEST = 499  # in metrics only; nobody is left to read it
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


class GatewayProxy:
    """One deployment's OpenAI-compatible front, served by ``kvrun.gateway.direct``.

    ``lifespan`` surrounds serving.
    """

    def __init__(
        self,
        *,
        admission: Admission,
        engine: Engine,
        elsewhere: OtherGateways,
        metrics: GatewayMetrics,
        link: InstanceLink | None,
        running: RunningRequests,
        max_body_bytes: int,
        body_timeout_s: float,
        lifespan: Lifespan,
        clock: Callable[[], float],
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing or NoTracing()
        self._admission = admission
        self._engine = engine
        self._elsewhere = elsewhere
        self._metrics = metrics
        self._link = link
        self._running = running
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._lifespan = lifespan
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        else:
            await refuse_websocket(receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        route = ROUTES.get(path)
        api = route.api.value if route is not None else "other"
        tracker = _Tracker(send, self._admission.new_request_id)
        self._metrics.in_flight.inc()
        try:
            if scope["method"] == "GET" and path in READ_PATHS:
                await self._read(path, scope["headers"], tracker.send, tracker.request_id)
            elif path.startswith(ERASE_PREFIX):
                await erase(scope, tracker.send, tracker.request_id, self._admission, self._link)
            else:
                await self._generate(scope, receive, tracker)
        except ClientGoneError:
            tracker.status = tracker.status or CLIENT_CLOSED_REQUEST
            self._metrics.disconnects.inc()
        except KvrunError as error:
            await self._fail(tracker, error)
        except Exception:
            logger.exception("request %s failed inside the gateway", tracker.request_id)
            failure = GatewayError("the gateway failed", status=500, code="internal_error")
            await self._fail(tracker, failure)
        finally:
            self._metrics.in_flight.dec()
            self._metrics.answered(api, tracker.status)

    async def _fail(self, tracker: _Tracker, error: KvrunError) -> None:
        """Answer with the error; once the answer has begun, only end it there."""
        if tracker.status:
            logger.warning("request %s broke off: %s", tracker.request_id, error.message)
            await tracker.abort(error)
            return
        shown = await send_error(tracker.send, error, tracker.request_id)
        self._metrics.refusals.labels(shown.code or "other").inc()

    async def _read(self, path: str, headers: HeaderList, send: Send, request_id: str) -> None:
        if path in (HEALTH_PATH, READY_PATH):
            await self._health(send, request_id)
            return
        if path == METRICS_PATH:
            await self._admission.authenticate(headers, SCOPE_METRICS)
            kind = [(b"content-type", self._metrics.content_type.encode())]
            await send_whole(send, 200, kind, self._metrics.render(), request_id)
            return
        await self._admission.authenticate(headers)
        answer = await self._ask(self._engine.request("GET", MODELS_PATH, request_id))
        try:
            await self._pass_whole(answer, send, request_id, secrets=())
        finally:
            answer.close()

    async def _health(self, send: Send, request_id: str) -> None:
        status, state = 200, "ok"
        try:
            answer = await self._engine.request("GET", "/health", request_id)
            if answer.status != 200:
                status, state = 503, "engine unhealthy"
            answer.close()
        except (EngineUnavailableError, EngineTimeoutError):
            status, state = 503, "engine unavailable"
        # Without the daemon requests are answered all the same, only uncached.
        text = msgspec.json.encode({"status": state, "cache": await self._cache_state()})
        await send_whole(send, status, [(b"content-type", b"application/json")], text, request_id)

    async def _cache_state(self) -> str:
        if self._link is None:
            return "off"
        try:
            await self._link.start()
        except (OSError, KvrunError):
            return "away"
        return "ok" if self._link.connected else "away"

    async def _generate(self, scope: Scope, receive: Receive, tracker: _Tracker) -> None:
        route = find_route(scope["method"], scope["path"])
        traceparent = read_traceparent(scope["headers"])
        with self._tracing.span("kvrun.request", traceparent) as trace:
            trace.note(api=route.api.value)
            try:
                await self._generate_on(route, scope, receive, tracker, trace)
            finally:
                trace.note(request_id=tracker.request_id)
            trace.note(status_code=tracker.status)

    async def _generate_on(
        self,
        route: Route,
        scope: Scope,
        receive: Receive,
        tracker: _Tracker,
        trace: Trace,
    ) -> None:
        started = self._clock()
        headers: HeaderList = scope["headers"]
        caller = await self._admission.authenticate(headers)
        check_body_headers(headers, self._max_body_bytes)
        client = take_connection(scope)
        raw = client.whole_body()
        if raw is None:
            raw = await read_body(receive, self._max_body_bytes, self._body_timeout_s)
        elif len(raw) > self._max_body_bytes:
            raise body_too_large(self._max_body_bytes)
        admitted: Admitted | None = None
        regions: tuple[str, ...] = ()
        with trace.step("kvrun.admission") as step:
            try:
                admitted = await self._admission.admit(route, caller, raw, trace=step)
                tracker.request_id = admitted.request_id
            except KvrunError as error:
                regions = self._elsewhere.regions(error, headers)
                if not regions:
                    raise
        if admitted is not None:
            trace.note(governed=admitted.governed, stream=admitted.stream)
            if not admitted.governed:
                self._metrics.uncached.inc()
        task = asyncio.current_task()
        assert task is not None
        client.cancel_when_left(task)  # which hangs up on the engine
        try:
            with self._held(admitted):
                with trace.step("kvrun.first_byte", SpanKind.CLIENT) as step:
                    sent = ("POST", route.path, tracker.request_id)
                    if admitted is not None:
                        asked = self._engine.request(*sent, admitted.body, step.traceparent)
                    else:
                        asked = self._elsewhere.request(
                            regions, *sent, raw, step.traceparent, headers
                        )
                    answer = await self._ask(asked)
                self._metrics.first_byte.observe(self._clock() - started)
                try:
                    secrets = admitted.secrets if admitted is not None else ()
                    await self._pass_on(answer, client, tracker, secrets)
                finally:
                    answer.close()
        except asyncio.CancelledError:
            if client.left and not task.uncancel():
                raise ClientGoneError from None
            raise
        finally:
            client.stop_watching()

    def _held(self, admitted: Admitted | None) -> AbstractContextManager[None]:
        """What ends the request where its session is erased here."""
        if admitted is None:
            return nullcontext()
        return self._running.hold(admitted.tenant, admitted.session)

    async def _pass_on(
        self,
        answer: EngineAnswer,
        client: ClientConnection,
        tracker: _Tracker,
        secrets: Sequence[str],
    ) -> None:
        request_id = tracker.request_id
        if answer.status != 200 or not answer.content_type.startswith("text/event-stream"):
            await self._pass_whole(answer, tracker.send, request_id, secrets=secrets)
            return
        tracker.status = 200
        client.begin(_EVENTS_HEAD % {b"id": request_id.encode()})
        scrubber = EventScrubber()

        def pass_events(chunk: bytes) -> bool:
            events = scrubber.feed(chunk)
            return not events or client.write(events)

        try:
            last = await answer.pump(pass_events, client.drain)
        except (EngineBrokeError, EngineTimeoutError):
            self._metrics.engine_errors.inc()
            raise GatewayError(
                "the engine broke off in the middle of its answer",
                status=502,
                code="engine_broke_off",
            ) from None
        client.end(scrubber.feed(last) + scrubber.finish())

    async def _pass_whole(
        self, answer: EngineAnswer, send: Send, request_id: str, *, secrets: Sequence[str]
    ) -> None:
        body = await self._ask(answer.read_all())
        headers = [(b"content-type", b"application/json")]
        if answer.status >= 400:
            body = _engine_error(body, answer.status)
            # The engine's validation errors quote the request, our stamps included.
            for secret in secrets:
                body = body.replace(secret.encode(), b"[removed]")
            if answer.retry_after is not None and answer.retry_after.isdigit():
                headers.append((b"retry-after", answer.retry_after.encode()))
        else:
            body = scrub_json(body)
        await send_whole(send, answer.status, headers, body, request_id)

    async def _ask(self, question: Awaitable[T]) -> T:
        """Await something of the engine; its absence becomes the error a client sees."""
        try:
            return await question
        except (EngineUnavailableError, EngineBrokeError):
            self._metrics.engine_errors.inc()
            raise GatewayError(
                "the engine is not available right now",
                status=503,
                code="engine_unavailable",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        except EngineTimeoutError:
            self._metrics.engine_errors.inc()
            raise GatewayError(
                "the engine did not answer in time", status=504, code="engine_timeout"
            ) from None

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self._lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except KvrunError as error:
            await send({"type": "lifespan.startup.failed", "message": error.diagnostics()})
            return
        await send({"type": "lifespan.shutdown.complete"})


class _Tracker:
    """Knows a request's id, whether its answer has begun, and with which status."""

    def __init__(self, send: Send, new_request_id: Callable[[], str]) -> None:
        self.raw_send = send
        self.status = 0
        self._request_id = ""
        self._new_request_id = new_request_id

    @property
    def request_id(self) -> str:
        """The id that admission gave; before that, or without it, a new one."""
        if not self._request_id:
            self._request_id = self._new_request_id()
        return self._request_id

    @request_id.setter
    def request_id(self, request_id: str) -> None:
        self._request_id = request_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self.raw_send(message)

    async def abort(self, error: KvrunError) -> None:
        """End a stream that has begun with an error event, as OpenAI's clients expect it."""
        shown = error if isinstance(error, GatewayError) else GatewayError(error.message)
        event = b"data: " + shown.body() + b"\n\n"
        await self.raw_send({"type": "http.response.body", "body": event, "more_body": False})


def _engine_error(body: bytes, status: int) -> bytes:
    """The engine's error if it is one in OpenAI's shape, otherwise one of ours for it."""
    try:
        told = msgspec.json.decode(body, type=_EngineError)
    except (msgspec.DecodeError, RecursionError):
        told = _EngineError()
    if told.error is not None:
        return scrub_json(body)
    # SGLang's errors are flat; what failed inside it is nobody's business.
    message = told.message if told.object == "error" and status < 500 else ""
    message = message or f"the engine answered with status {status}"
    return GatewayError(message, status=status, code="engine_error").body()


_EVENTS_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"
    b"%b: %%(id)b\r\n%b: %%(id)b\r\n" % (REQUEST_ID_HEADER, OPENAI_REQUEST_ID_HEADER)
)


class _ErrorDetail(msgspec.Struct):
    message: str


class _EngineError(msgspec.Struct):
    error: _ErrorDetail | None = None
    object: str = ""
    message: str = ""
