"""A body never becomes a request, whatever other protocol its request asks for."""

import asyncio
import re
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gateway_rig import FakeDaemon, FakeEngine, Gateway, answer_plainly
from test_gateway_head import App, served

from kvrun.config.gateway import GatewaySettings
from kvrun.gateway.app import GatewayParts
from kvrun.gateway.bounded import BoundedHeadProtocol
from kvrun.gateway.middleware import KvrunMiddleware

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
CHAT = b"POST /v1/chat/completions"
HOST = b" HTTP/1.1\r\nhost: x\r\n"
JSON = b"content-type: application/json\r\n"
WEBSOCKET = (
    b"connection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: eHh4eHh4eHh4eHh4eHh4eA==\r\nsec-websocket-version: 13\r\n"
)
# What each asks for; the body is a request that nobody but the sender's front may send.
ASKED = {
    "of no known name": (CHAT, b"connection: upgrade\r\nupgrade: x\r\n"),
    "h2c": (CHAT, b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: A\r\n"),
    "among others": (CHAT, b"connection: keep-alive, upgrade\r\nupgrade: x\r\n"),
    "websocket": (CHAT, WEBSOCKET),
    "with GET": (b"GET /v1/models", b"connection: upgrade\r\nupgrade: x\r\n"),
    "websocket with GET": (b"GET /v1/models", WEBSOCKET),
    "with DELETE": (b"DELETE /kv/v1/users/alice", b"connection: upgrade\r\nupgrade: x\r\n"),
    "CONNECT": (b"CONNECT engine:80", b""),
}


def request(line: bytes = CHAT, fields: bytes = b"", body: bytes = BODY) -> bytes:
    length = b"content-length: %d\r\n\r\n" % len(body)
    return line + HOST + JSON + fields + length + body


def pieces(whole: bytes, body: bytes, how: str) -> list[bytes]:
    cut = len(whole) - len(body)
    return {
        "whole": [whole],
        "body later": [whole[:cut], whole[cut:]],
        "body in two": [whole[:cut], body[:20], body[20:]],
        "head in two": [whole[:30], whole[30:cut], whole[cut:]],
        "body and more": [whole[:cut], body + request()],
    }[how]


HOW = ["whole", "body later", "body in two", "head in two", "body and more"]


async def talk(connect: Any, parts: list[bytes]) -> bytes:
    """Everything that is answered until the server closes the connection."""
    reader, writer = await connect()
    try:
        for part in parts:
            writer.write(part)
            # Each a segment of its own, which the server reads by itself.
            await asyncio.sleep(0.02)
        return bytes(await asyncio.wait_for(reader.read(), 10))
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def answers(connect: Any, parts: list[bytes], count: int) -> bytes:
    """All up to the head of the last of ``count`` answers on a connection that stays open."""
    reader, writer = await connect()
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0.02)
    answer = b""
    while len(heads(answer)) < count:
        answer += await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    writer.close()
    return answer


def heads(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 \d{3}", answer)


def connecting(gateway: Gateway) -> Any:
    host, port = gateway.url.removeprefix("http://").split(":")
    return lambda: asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("asked", ASKED)
async def test_the_gateway_refuses_once_and_reads_no_further(
    asked: str, how: str, engine: FakeEngine, gateway: Gateway
) -> None:
    line, fields = ASKED[asked]
    inner = request()
    hostile = request(line, fields, inner)
    answer = await talk(connecting(gateway), pieces(hostile, inner, how))
    assert heads(answer) in ([b"HTTP/1.1 400"], []), answer
    if how == "whole":
        assert b"connection: close" in answer
        assert b"without Upgrade" in answer
    assert engine.requests == []
    # The same without what asks for another protocol is a request.
    ordinary = request(line if fields else CHAT)
    count = 2 if how == "body and more" else 1
    answer = await answers(connecting(gateway), pieces(ordinary, BODY, how), count)
    if line.startswith(b"DELETE"):
        assert heads(answer)[0] == b"HTTP/1.1 403"  # nobody erases without a key
    else:
        assert heads(answer) == [b"HTTP/1.1 200"] * count
        assert len(engine.requests) == count


@pytest.mark.parametrize("asked", ASKED)
async def test_what_was_asked_before_is_answered_first(
    asked: str, engine: FakeEngine, gateway: Gateway
) -> None:
    line, fields = ASKED[asked]
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        begun.set()
        await go.wait()
        return await answer_plainly(request, body)

    engine.handler = slow
    reader, writer = await connecting(gateway)()
    writer.write(request() + request() + request(line, fields, request()))
    await begun.wait()
    writer.write(request())
    go.set()
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert heads(answer) == [b"HTTP/1.1 200", b"HTTP/1.1 200", b"HTTP/1.1 400"]
    assert len(engine.requests) == 2


async def test_the_preface_of_http_2_is_no_request(engine: FakeEngine, gateway: Gateway) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    answer = await talk(connecting(gateway), [preface, request()])
    assert heads(answer) in ([b"HTTP/1.1 400"], [])
    assert engine.requests == []


async def test_a_refused_upgrade_reaches_no_application() -> None:
    app = App()
    async with served(app, BoundedHeadProtocol) as connect:
        whole = request(fields=WEBSOCKET, body=request())
        assert heads(await talk(connect, [whole])) == [b"HTTP/1.1 400"]
        assert app.body == b""
        assert app.headers == []
        assert heads(await talk(connect, [request(fields=b"connection: close\r\n")])) != []
        assert app.body == BODY


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("asked", ASKED)
async def test_inside_the_engine_the_body_reaches_it_as_no_request(
    asked: str, how: str, http: str
) -> None:
    settings = GatewaySettings(require_auth=False)
    given = GatewayParts(settings, claim_key=Ed25519PrivateKey.generate(), make_client=FakeDaemon)
    reached = []
    engine = App()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await engine(scope, receive, send)

    line, fields = ASKED[asked]
    inner = request()
    async with served(KvrunMiddleware(app, settings=settings, parts=given), http) as connect:
        hostile = request(line, fields, inner)
        assert heads(await talk(connect, pieces(hostile, inner, how))) in ([b"HTTP/1.1 400"], [])
        assert reached == []
        count = 2 if how == "body and more" else 1
        answer = await answers(connect, pieces(request(), BODY, how), count)
        assert heads(answer) == [b"HTTP/1.1 200"] * count
        assert len(reached) == count
