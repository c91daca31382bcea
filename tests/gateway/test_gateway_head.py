"""What a client can do before and after the body: endless heads, slow heads, trailers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gateway_rig import FakeDaemon

from kvrun.config.gateway import GatewaySettings
from kvrun.gateway import bounded
from kvrun.gateway.app import GatewayParts
from kvrun.gateway.bounded import MAX_HEAD_BYTES, BoundedHeadProtocol
from kvrun.gateway.middleware import KvrunMiddleware
from kvrun.gateway.server import bind

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


class App:
    """Reads the whole body, then notes the headers it has been given."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.body = b""
        while True:
            message = await receive()
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.headers = list(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})


@asynccontextmanager
async def served(app: Any, http: Any) -> AsyncIterator[Callable[[], Any]]:
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(app, http=http, lifespan="off", log_level="critical", ws="none")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    port = listener.getsockname()[1]
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        server.should_exit = server.force_exit = True
        await task


async def answer_to(connect: Callable[[], Any], *parts: bytes, pause_s: float = 0) -> bytes:
    reader, writer = await connect()
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        return bytes(await asyncio.wait_for(reader.readuntil(b"\r\n"), 10))
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""
    finally:
        writer.close()


def chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize("line", [b"x-%d: " + b"v" * 1000 + b"\r\n", b"%d" + b"v" * 1000])
async def test_an_endless_head_is_refused_early(line: bytes) -> None:
    sent = 0

    def parts() -> Any:
        nonlocal sent
        yield HEAD + b"x-first: "
        for number in range(5000):
            sent += 1
            yield line % number

    async with served(App(), BoundedHeadProtocol) as connect:
        reader, writer = await connect()
        try:
            for part in parts():
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
                if reader.at_eof() or reader._buffer:
                    break
            status = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
            assert status.startswith(b"HTTP/1.1 400")
        except ConnectionError:
            pass
        writer.close()
    assert sent < 4000


async def test_endless_trailers_and_chunk_framing_end_the_connection() -> None:
    start = chunked(BODY)[: -len(b"\r\n")]
    trailer = b"x-trailer: " + b"v" * 4096 + b"\r\n"
    async with served(App(), BoundedHeadProtocol) as connect:
        assert await answer_to(connect, start, *[trailer] * 100, pause_s=0.001) == b""


async def test_ordinary_requests_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "HEAD_TIMEOUT_S", 0.2)
    app = App()
    async with served(app, BoundedHeadProtocol) as connect:
        long = HEAD + b"x-long: " + b"v" * (MAX_HEAD_BYTES // 2) + b"\r\n"
        whole = long + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        assert b"200" in await answer_to(connect, whole)
        assert b"200" in await answer_to(connect, chunked(*(b"x" for _ in range(200_000))))
        assert app.body == b"x" * 200_000
        big = b"y" * (4 << 20)
        plain = HEAD + b"content-length: %d\r\n\r\n" % len(big)
        reader, writer = await connect()
        for _ in range(3):
            writer.write(plain + big)
            assert b"200" in await reader.readuntil(b"\r\n")
            await reader.readuntil(b"0\r\n\r\n")
        # The head came in time: how long the body and the pause take is not its concern.
        await asyncio.sleep(0.4)
        writer.write(plain)
        await asyncio.sleep(0.4)
        writer.write(big)
        assert b"200" in await reader.readuntil(b"\r\n")
        writer.close()


async def test_a_head_that_does_not_come_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded, "HEAD_TIMEOUT_S", 0.2)
    async with served(App(), BoundedHeadProtocol) as connect:
        for start in (b"", HEAD):
            reader, writer = await connect()
            writer.write(start)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()


@pytest.mark.parametrize("http", ["httptools", BoundedHeadProtocol])
async def test_trailers_do_not_reach_the_engine_as_headers(http: Any) -> None:
    settings = GatewaySettings(require_auth=False)
    given = GatewayParts(settings, claim_key=Ed25519PrivateKey.generate(), make_client=FakeDaemon)
    engine = App()
    app = KvrunMiddleware(engine, settings=settings, parts=given)
    async with served(app, http) as connect:
        smuggled = b"x-session-id: other\r\nx-data-parallel-rank: 1\r\n"
        # Late enough that the headers have been checked by then.
        parts = chunked(BODY, trailers=smuggled).partition(b"0\r\nx-")
        answer = await answer_to(connect, parts[0], parts[1] + parts[2], pause_s=0.3)
        assert b"200" in answer
    names = {name for name, _ in engine.headers}
    assert b"content-type" in names
    assert names.isdisjoint({b"x-session-id", b"x-data-parallel-rank"})


async def test_a_second_head_that_stops_half_way_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded, "HEAD_TIMEOUT_S", 0.2)
    async with served(App(), BoundedHeadProtocol) as connect:
        reader, writer = await connect()
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert b"200" in await reader.readuntil(b"\r\n")
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(HEAD)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
