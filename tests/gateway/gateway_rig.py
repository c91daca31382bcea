"""A gateway on a real socket before a real (aiohttp) engine that records what it gets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.config.gateway import GatewaySettings
from kvrun.errors import KvrunError
from kvrun.gateway.app import GatewayParts, build_proxy
from kvrun.gateway.direct import DirectProtocol
from kvrun.gateway.server import bind

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Grant:
    salt: str
    generation: int = 1


class FakeDaemon:
    """Gives every session a salt while ``answers`` is set; ``refuse`` is raised where it is set."""

    workspace = "w1"
    deployment = "chat"
    connected = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.refuse: Exception | None = None
        self.called = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self.delay_s = 0.0
        self.generation = 1

    async def start(self, *, timeout_s: float) -> None:
        if isinstance(self.refuse, ConnectionError):
            raise self.refuse

    async def open_session(self, tenant: str, session: str) -> Grant:
        self.asked.append((tenant, session))
        self.called.set()
        await asyncio.sleep(self.delay_s)
        await self.answers.wait()
        if self.refuse is not None:
            raise self.refuse
        mark = sum(f"{tenant}/{session}/{self.generation}".encode()) % 26
        return Grant(chr(ord("a") + mark) * 43, self.generation)

    async def close(self) -> None:
        return None


class LimitError(KvrunError):
    status = 429


@dataclass
class FakeEngine:
    """Answers through ``handler``; keeps every request's path, headers and body."""

    handler: Handler
    url: str = ""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_body(self) -> dict[str, Any]:
        return self.requests[-1][2]

    @property
    def last_headers(self) -> dict[str, str]:
        return self.requests[-1][1]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            if request.path == "/health":
                return web.Response()
            self.requests.append((request.path, dict(request.headers), {}))
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})
        body = await request.json()
        self.requests.append((request.path_qs, dict(request.headers), body))
        try:
            return await self.handler(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled.set()
            raise


async def stream_events(request: web.Request, events: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    await response.write_eof()
    return response


async def answer_plainly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"id": "x", "ok": True, "kv_transfer_params": {"secret": 1}})


@dataclass
class Gateway:
    url: str
    parts: GatewayParts
    daemon: FakeDaemon
    claim_key: Ed25519PrivateKey
    client: aiohttp.ClientSession

    def post(self, path: str, body: object, **headers: str) -> Any:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(self.url + path, json=body, headers=names)

    async def chat(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        headers = changes.pop("headers", {})
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **changes}
        url = f"{self.url}/v1/chat/completions"
        async with self.client.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    fake = FakeEngine(answer_plainly)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
    fake.url = f"unix:{tmp_path / 'engine.sock'}"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def start_gateway(
    engine: FakeEngine,
) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(daemon: FakeDaemon | None = None, **settings: Any) -> Gateway:
            labels, tracing = settings.pop("labels", None), settings.pop("tracing", None)
            options = {"require_auth": False, "engine_url": engine.url, **settings}
            chosen = GatewaySettings(**options)
            the_daemon, key = daemon or FakeDaemon(), Ed25519PrivateKey.generate()
            parts = GatewayParts(chosen, claim_key=key, make_client=lambda: the_daemon)
            listener = bind("127.0.0.1", 0)
            config = uvicorn.Config(
                build_proxy(chosen, parts, labels=labels, tracing=tracing),
                http=DirectProtocol,
                ws="none",
                lifespan="on",
                access_log=False,
                log_level="error",
                ssl_certfile=chosen.tls_cert,
                ssl_keyfile=chosen.tls_key,
            )
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                assert not task.done()
                await asyncio.sleep(0.01)
            client = await stack.enter_async_context(aiohttp.ClientSession())

            async def stop() -> None:
                server.should_exit = True
                server.force_exit = True
                await task

            stack.push_async_callback(stop)
            scheme = "https" if chosen.tls_cert is not None else "http"
            url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
            return Gateway(url, parts, the_daemon, key, client)

        yield start


@pytest.fixture
async def gateway(start_gateway: Callable[..., Awaitable[Gateway]]) -> Gateway:
    return await start_gateway()
