"""What goes past ASGI: events to a client that reads slowly, leaves, or asks twice at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from gateway_rig import FakeEngine, Gateway, stream_events

Start = Callable[..., Awaitable[Gateway]]
BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


async def connect(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 16)


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and unchunked body of one answer."""
    head, body = await reader.readuntil(b"\r\n\r\n"), bytearray()
    assert b"transfer-encoding: chunked" in head
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return head, bytes(body)


async def test_a_slow_client_slows_the_engine_and_gets_everything(
    engine: FakeEngine, gateway: Gateway
) -> None:
    sent, count = 0, 400
    event = b"data: " + b"x" * 65_000 + b"\n\n"
    stuck = asyncio.Event()

    async def flood(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(count):
            write = asyncio.ensure_future(response.write(event))
            done, _ = await asyncio.wait({write}, timeout=0.5)
            if not done:
                stuck.set()
            await write
            sent += 1
        await response.write_eof()
        return response

    engine.handler = flood
    reader, writer = await connect(gateway)
    writer.write(REQUEST)
    await asyncio.wait_for(stuck.wait(), 20)
    assert sent < count
    _, body = await asyncio.wait_for(read_answer(reader), 30)
    assert body == event * count
    writer.close()


async def test_a_client_that_leaves_while_it_is_slow_stops_the_engine(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"data: " + b"x" * 65_000 + b"\n\n")

    engine.handler = endless
    reader, writer = await connect(gateway)
    writer.write(REQUEST)
    await reader.readuntil(b"\n\n")
    writer.transport.abort()
    await asyncio.wait_for(engine.cancelled.wait(), 10)


async def test_requests_sent_at_once_on_one_connection_are_answered_in_order(
    engine: FakeEngine, gateway: Gateway
) -> None:
    count = 0

    async def numbered(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal count
        count += 1
        return await stream_events(request, [b"data: %d\n\n" % count, b"data: [DONE]\n\n"])

    engine.handler = numbered
    reader, writer = await connect(gateway)
    writer.write(REQUEST * 3)
    bodies = [(await asyncio.wait_for(read_answer(reader), 10))[1] for _ in range(3)]
    assert bodies == [b"data: %d\n\ndata: [DONE]\n\n" % number for number in (1, 2, 3)]
    writer.close()


async def test_a_body_that_comes_in_pieces_is_read_whole(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async def events(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream_events(request, [b"data: 1\n\n"])

    engine.handler = events
    reader, writer = await connect(gateway)
    for cut in (1, len(REQUEST) - len(BODY), len(REQUEST) - 1):
        writer.write(REQUEST[:cut])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(REQUEST[cut:])
        head, body = await asyncio.wait_for(read_answer(reader), 10)
        assert (head[:15], body) == (b"HTTP/1.1 200 OK", b"data: 1\n\n")
        assert engine.last_body["messages"] == [{"role": "user", "content": "hello"}]
    writer.close()


async def test_nothing_follows_an_event_that_cannot_be_scrubbed(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async def broken(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"data: good\n\n")
            await response.write(b'data: {"kv_transfer_params": secret\n\n')
            await asyncio.sleep(0.001)

    engine.handler = broken
    reader, writer = await connect(gateway)
    writer.write(REQUEST)
    _, body = await asyncio.wait_for(read_answer(reader), 10)
    *before, last, end = body.split(b"\n\n")
    assert set(before) <= {b"data: good"}
    assert len(before) <= 1
    assert b"bad_engine_answer" in last
    assert end == b""
    await asyncio.wait_for(engine.cancelled.wait(), 10)
    writer.close()
