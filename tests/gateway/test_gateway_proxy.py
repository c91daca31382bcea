import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_rig import FakeDaemon, FakeEngine, Gateway, LimitError, stream_events

from kvrun.claims import ClaimVerifier
from kvrun.gateway.apikeys import ApiKeyRecord, hash_api_key, make_api_key, save_api_keys

Start = Callable[..., Awaitable[Gateway]]
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def raw_exchange(gateway: Gateway, request: bytes) -> bytes:
    """Send bytes as they are and read until the gateway closes."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


def raw_post(body: bytes, *headers: str) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "Host: x", "Connection: close",
             "Content-Type: application/json", *headers]  # fmt: skip
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_the_engine_gets_the_salt_and_a_claim_that_verifies(
    engine: FakeEngine, gateway: Gateway
) -> None:
    status, answer = await gateway.chat(
        n=2, headers={"X-KV-Tenant": "alice", "X-KV-Session": "s1", "X-Request-Id": "theirs"}
    )
    assert (status, answer) == (200, {"id": "x", "ok": True})
    body = engine.last_body
    verifier = ClaimVerifier(
        [gateway.claim_key.public_key()], "chat", now=time.time, workspace="w1"
    )
    claim = verifier.verify(body["kv_transfer_params"]["kvrun_claim"])
    assert (claim.tenant, claim.session, claim.uses) == ("alice", "s1", 2)
    assert claim.salt == body["cache_salt"]
    assert claim.expires_at - claim.issued_at == 300
    assert claim.request_id == engine.last_headers["X-Request-ID"]
    assert claim.request_id.startswith("kvr-")
    assert {key: value for key, value in body.items() if key in BODY} == BODY


async def test_nothing_of_the_clients_headers_reaches_the_engine(
    engine: FakeEngine, gateway: Gateway
) -> None:
    await gateway.chat(headers={"Authorization": "Bearer x", "Cookie": "a=b", "X-Other": "1"})
    names = {name.lower() for name in engine.last_headers}
    assert names == {
        "host", "accept", "accept-encoding", "user-agent", "x-request-id", "content-type",
        "content-length",
    }  # fmt: skip


async def test_the_answer_carries_our_request_id(gateway: Gateway) -> None:
    async with gateway.post(CHAT, BODY, X_Request_Id="theirs") as answer:
        assert answer.headers["X-KV-Request-Id"].startswith("kvr-")
        assert answer.headers["X-Request-Id"] == answer.headers["X-KV-Request-Id"]
        assert "kv_transfer_params" not in await answer.text()
    async with gateway.post(CHAT, {}) as answer:
        assert answer.status == 400
        assert answer.headers["X-KV-Request-Id"].startswith("kvr-")


async def test_tenants_and_sessions_have_salts_of_their_own(
    engine: FakeEngine, gateway: Gateway
) -> None:
    salts = set()
    for tenant, session in (("alice", "1"), ("bob", "1"), ("alice", "2")):
        await gateway.chat(headers={"X-KV-Tenant": tenant, "X-KV-Session": session})
        salts.add(engine.last_body["cache_salt"])
    assert len(salts) == 3


async def test_a_named_tenant_makes_later_unnamed_requests_an_error(gateway: Gateway) -> None:
    assert (await gateway.chat())[0] == 200
    assert (await gateway.chat(headers={"X-KV-Tenant": "alice"}))[0] == 200
    status, answer = await gateway.chat()
    assert status == 400
    assert answer["error"]["code"] == "missing_tenant"


async def test_an_error_has_openais_shape(gateway: Gateway) -> None:
    status, answer = await gateway.chat(cache_salt="x")
    assert status == 400
    assert answer["error"] == {
        "message": "'cache_salt' is set by the gateway and may not be set by a client",
        "type": "invalid_request_error",
        "param": "cache_salt",
        "code": "governed_field",
    }


async def test_without_the_daemon_requests_are_answered_uncached(
    start_gateway: Start, engine: FakeEngine
) -> None:
    daemon = FakeDaemon()
    daemon.refuse = ConnectionRefusedError()
    gateway = await start_gateway(daemon)
    salts = []
    for _ in range(3):
        assert (await gateway.chat(headers={"X-KV-Tenant": "alice"}))[0] == 200
        assert "kv_transfer_params" not in engine.last_body
        salts.append(engine.last_body["cache_salt"])
    assert len(set(salts)) == 3
    assert all(len(salt) == 43 for salt in salts)
    async with gateway.client.get(gateway.url + "/metrics") as answer:
        assert "kvrun_gateway_uncached_requests_total 3.0" in await answer.text()


async def test_too_many_sessions_are_answered_with_429(start_gateway: Start) -> None:
    daemon = FakeDaemon()
    daemon.refuse = LimitError("the tenant has 5 sessions, at most 5 are allowed")
    gateway = await start_gateway(daemon)
    async with gateway.post(CHAT, BODY, X_KV_Session="s6") as answer:
        assert answer.status == 429
        assert answer.headers["Retry-After"] == "60"
        error = (await answer.json())["error"]
    assert error["message"] == "the tenant has 5 sessions, at most 5 are allowed"
    assert (error["type"], error["code"]) == ("rate_limit_error", "session_limit")


async def test_an_erased_session_gets_its_new_salt(engine: FakeEngine, gateway: Gateway) -> None:
    await gateway.chat(headers={"X-KV-Tenant": "alice"})
    old = engine.last_body["cache_salt"]
    gateway.daemon.generation = 2
    gateway.parts.on_invalidated("alice", "default")
    await gateway.chat(headers={"X-KV-Tenant": "alice"})
    assert engine.last_body["cache_salt"] != old


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_erasure_of_a_session_ends_its_requests_and_no_others(
    engine: FakeEngine, gateway: Gateway, streaming: bool
) -> None:
    go = asyncio.Event()
    asked: list[str] = []
    both = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream" if streaming else "application/json"}
        )
        if streaming:
            await response.prepare(request)
            await response.write(b'data: {"n":1}\n\n')
        asked.append(body["cache_salt"])
        if len(asked) == 2:
            both.set()
        await go.wait()
        if not streaming:
            return web.json_response({"n": 1})
        await response.write(b"data: [DONE]\n\n")
        return response

    plainly, engine.handler = engine.handler, slow
    begun = {"alice": asyncio.Event(), "bob": asyncio.Event()}

    async def ask(tenant: str) -> tuple[int, bytes]:
        async with gateway.post(CHAT, {**BODY, "stream": streaming}, X_KV_Tenant=tenant) as answer:
            begun[tenant].set()
            return answer.status, await answer.read()

    alice, bob = asyncio.create_task(ask("alice")), asyncio.create_task(ask("bob"))
    await both.wait()
    if streaming:
        await begun["alice"].wait()
    gateway.parts.on_erasing("alice", "default")
    status, body = await alice
    assert b"session_erased" in body
    assert status == (200 if streaming else 410)
    assert not bob.done()
    go.set()
    status, body = await bob
    assert status == 200
    assert b"session_erased" not in body
    # Her next request goes on under the session's new salt.
    engine.handler = plainly
    gateway.daemon.generation = 2
    assert (await ask("alice"))[0] == 200
    assert engine.last_body["cache_salt"] not in asked


async def test_events_arrive_in_order_and_as_they_are_made(
    engine: FakeEngine, gateway: Gateway
) -> None:
    go = asyncio.Queue[None]()

    async def one_by_one(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(5):
            await go.get()
            await response.write(b'data: {"n":%d}\n\n' % number)
        await response.write_eof()
        return response

    engine.handler = one_by_one
    async with gateway.post(CHAT, {**BODY, "stream": True}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for number in range(5):
            go.put_nowait(None)
            # The engine makes no further event before this one has been read here.
            line = await asyncio.wait_for(answer.content.readuntil(b"\n\n"), 5)
            assert line == b'data: {"n":%d}\n\n' % number
        assert await answer.content.read() == b""


async def test_transfer_parameters_leave_every_event(engine: FakeEngine, gateway: Gateway) -> None:
    async def leaky(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream_events(
            request, [b'data: {"i":1,"kv_transfer', b'_params":{"a":1}}\n\n', b"data: [DONE]\n\n"]
        )

    engine.handler = leaky
    async with gateway.post(CHAT, {**BODY, "stream": True}) as answer:
        assert await answer.read() == b'data: {"i":1}\n\ndata: [DONE]\n\n'


async def test_a_client_that_leaves_a_stream_stops_the_engine(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"data: {}\n\n")
            await asyncio.sleep(0.01)

    engine.handler = endless
    answer = await gateway.post(CHAT, {**BODY, "stream": True})
    await answer.content.readuntil(b"\n\n")
    answer.close()
    await asyncio.wait_for(engine.cancelled.wait(), 5)


async def test_a_client_that_leaves_while_it_waits_stops_the_engine(
    engine: FakeEngine, gateway: Gateway
) -> None:
    started = asyncio.Event()

    async def silent(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        started.set()
        await asyncio.sleep(60)
        return web.Response()

    engine.handler = silent
    waiting = asyncio.create_task(gateway.chat())
    await asyncio.wait_for(started.wait(), 5)
    waiting.cancel()
    await asyncio.wait_for(engine.cancelled.wait(), 5)
    async with asyncio.timeout(5):
        text = ""
        while "kvrun_gateway_client_disconnects_total 1.0" not in text:
            async with gateway.client.get(gateway.url + "/metrics") as metrics:
                text = await metrics.text()
    assert "kvrun_gateway_requests_in_flight 1.0" in text  # the metrics request itself


async def _plain(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"ok": True})


async def test_many_streams_at_once_get_their_own_events(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        mark = body["messages"][0]["content"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(20):
            await response.write(f"data: {mark}/{number}\n\n".encode())
            await asyncio.sleep(0.002)
        await response.write_eof()
        return response

    engine.handler = echo

    async def one(number: int) -> None:
        messages = [{"role": "user", "content": f"c{number}"}]
        headers = {"X-KV-Tenant": f"t{number % 7}", "X-KV-Session": f"s{number}"}
        async with gateway.client.post(
            gateway.url + CHAT,
            json={"model": "m", "messages": messages, "stream": True},
            headers=headers,
        ) as answer:
            expected = "".join(f"data: c{number}/{i}\n\n" for i in range(20))
            assert await answer.text() == expected

    connector = aiohttp.TCPConnector(limit=0)
    await gateway.client.close()
    async with aiohttp.ClientSession(connector=connector) as client:
        gateway.client = client
        await asyncio.gather(*(one(number) for number in range(128)))
    claims = {body["kv_transfer_params"]["kvrun_claim"] for _, _, body in engine.requests}
    assert len(claims) == 128


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
async def test_the_engines_errors_keep_their_shape_and_status(
    engine: FakeEngine, gateway: Gateway, status: int
) -> None:
    async def failing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": "too long: 40000 > 32000", "type": "BadRequestError", "code": status}
        return web.json_response({"error": error}, status=status, headers={"Retry-After": "7"})

    engine.handler = failing
    async with gateway.post(CHAT, {**BODY, "stream": True}) as answer:
        assert answer.status == status
        assert answer.headers["Retry-After"] == "7"
        assert (await answer.json())["error"]["message"] == "too long: 40000 > 32000"


async def test_an_engine_error_that_quotes_our_stamps_is_cleaned(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async def quoting(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": f"bad input: {json.dumps(body)}", "type": "x", "code": 400}
        return web.json_response({"error": error}, status=400)

    engine.handler = quoting
    status, answer = await gateway.chat()
    assert status == 400
    text = json.dumps(answer)
    assert engine.last_body["cache_salt"] not in text
    assert engine.last_body["kv_transfer_params"]["kvrun_claim"] not in text
    assert "[removed]" in text


@pytest.mark.parametrize(
    ("status", "shown"),
    [(400, "too long: 40000 > 32000"), (500, "the engine answered with status 500")],
)
async def test_a_flat_error_of_sglang_gets_the_usual_shape(
    engine: FakeEngine, gateway: Gateway, status: int, shown: str
) -> None:
    async def flat(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        error = {"object": "error", "message": "too long: 40000 > 32000", "code": status}
        return web.json_response(error, status=status)

    engine.handler = flat
    answered, answer = await gateway.chat()
    assert answered == status
    assert answer["error"]["message"] == shown


async def test_an_error_in_another_shape_is_replaced(engine: FakeEngine, gateway: Gateway) -> None:
    async def plain(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=500, text="Traceback: secret")

    engine.handler = plain
    status, answer = await gateway.chat()
    assert status == 500
    assert answer["error"]["message"] == "the engine answered with status 500"


async def test_an_engine_that_is_down_is_503_with_retry_after(
    start_gateway: Start, tmp_path: Path
) -> None:
    gateway = await start_gateway(engine_url=f"unix:{tmp_path / 'nothing.sock'}")
    async with gateway.post(CHAT, BODY) as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "5"
        error = (await answer.json())["error"]
    assert error["message"] == "the engine is not available right now"
    assert error["type"] == "service_unavailable_error"
    async with gateway.client.get(gateway.url + "/healthz") as answer:
        assert answer.status == 503
        assert (await answer.json())["status"] == "engine unavailable"


async def test_the_health_page_tells_engine_and_cache_apart(start_gateway: Start) -> None:
    daemon = FakeDaemon()
    daemon.refuse = ConnectionRefusedError()
    gateway = await start_gateway(daemon)
    for cache in ("away", "ok"):
        async with gateway.client.get(gateway.url + "/healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok", "cache": cache})
        daemon.refuse = None


async def test_a_silent_engine_is_504(start_gateway: Start, engine: FakeEngine) -> None:
    async def silent(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    engine.handler = silent
    gateway = await start_gateway(response_timeout_s=0.1)
    status, answer = await gateway.chat()
    assert (status, answer["error"]["code"]) == (504, "engine_timeout")


async def test_an_engine_that_breaks_off_ends_the_stream_with_an_error_event(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async def breaking(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"i":1}\n\n')
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    engine.handler = breaking
    async with gateway.post(CHAT, {**BODY, "stream": True}) as answer:
        first, second, end = (await answer.read()).split(b"\n\n")
    assert (first, end) == (b'data: {"i":1}', b"")
    assert json.loads(second.removeprefix(b"data: "))["error"]["code"] == "engine_broke_off"


async def test_a_kept_connection_that_the_engine_closed_is_not_the_clients_problem(
    tmp_path: Path, start_gateway: Start
) -> None:
    """The engine answers once a connection, then closes it without saying so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        await reader.readexactly(length)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n'
                     b'Content-Length: 11\r\n\r\n{"ok":true}')  # fmt: skip
        await writer.drain()
        await reader.read(1)  # the next request's first byte: hang up on it
        writer.close()

    path = str(tmp_path / "once.sock")
    server = await asyncio.start_unix_server(serve, path)
    gateway = await start_gateway(engine_url=f"unix:{path}")
    for _ in range(4):
        assert (await gateway.chat())[0] == 200
    server.close()


async def test_the_models_list_is_passed_on(gateway: Gateway) -> None:
    async with gateway.client.get(gateway.url + "/v1/models?x=1") as answer:
        assert answer.status == 200
        assert (await answer.json())["data"][0]["id"] == "m"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/invocations", 404),
        ("POST", "/generative_scoring", 404),
        ("POST", "/inference/v1/generate", 404),
        ("POST", "/tokenize", 404),
        ("POST", "/v1/chat/completions/batch", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1/chat/completions/../../invocations", 404),
        ("GET", "/v1/responses/resp_1", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/healthz", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
    ],
)
async def test_what_is_not_listed_never_reaches_the_engine(
    engine: FakeEngine, gateway: Gateway, method: str, path: str, status: int
) -> None:
    request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    answer = await raw_exchange(gateway, request)
    assert answer.startswith(f"HTTP/1.1 {status}".encode())
    assert b'"error"' in answer
    assert engine.requests == []


async def test_a_query_never_reaches_the_engine(engine: FakeEngine, gateway: Gateway) -> None:
    async with gateway.post(CHAT + "?cache_salt=x", BODY) as answer:
        assert answer.status == 200
    assert engine.requests[-1][0] == CHAT


async def test_a_websocket_is_refused(gateway: Gateway) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await gateway.client.ws_connect(gateway.url + "/v1/realtime")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["X-KV-Tenant: a", "x-kv-tenant: b"], 400),
        (["X-KV-Tenant: a", "X-KV-Tenant: a"], 400),
        (["X-KV-Tenant: a\r\n b"], 400),
        (["X-KV-Tenant:"], 400),
        (["X-KV-Tenant: a b"], 400),
        (["X-KV-Tenant: a\tb"], 400),
        (["X_KV_Tenant: a"], 400),
        (["X-KV-Salt: a"], 400),
        (["X-Session-ID: a"], 400),
        (["Content-Encoding: gzip"], 415),
        (["Content-Length: 99999999999999999999999"], 400),
        (["Content-Length: 99999999"], 413),
    ],
)
async def test_headers_that_could_be_read_two_ways_are_refused(
    engine: FakeEngine, gateway: Gateway, headers: list[str], status: int
) -> None:
    answer = await raw_exchange(gateway, raw_post(json.dumps(BODY).encode(), *headers))
    assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer
    assert engine.requests == []


async def test_two_ways_to_give_the_length_are_refused(
    engine: FakeEngine, gateway: Gateway
) -> None:
    body = b"0\r\n\r\nPOST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    headers = (f"Content-Length: {len(body)}", "Transfer-Encoding: chunked")
    answer = await raw_exchange(gateway, raw_post(body, *headers))
    assert answer.startswith(b"HTTP/1.1 400")
    assert engine.requests == []


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","messages":[],"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","messages":[],"cache_salt":"evil"}',
        b'{"model":"m","messages":[],"Cache_Salt":"evil"}',
        b'{"model":"m","messages":[],"extra_body":{"cache_salt":"evil"}}',
        b'{"model":"m","messages":[],"cache_\\u0073alt":"evil"}',
        b'{"model":"m","messages":[],"vllm_xargs":{"kv_transfer_params":"evil"}}',
        b'[{"model":"m","messages":[],"cache_salt":"evil"}]',
        b'{"model":"m","messages":[]}{"cache_salt":"evil"}',
    ],
)
async def test_a_smuggled_salt_never_reaches_the_engine(
    engine: FakeEngine, gateway: Gateway, raw: bytes
) -> None:
    answer = await raw_exchange(gateway, raw_post(raw))
    assert answer.startswith(b"HTTP/1.1 400")
    assert engine.requests == []


async def test_only_json_of_a_bearable_size_is_read(
    start_gateway: Start, engine: FakeEngine
) -> None:
    gateway = await start_gateway(max_body_bytes=2048, body_timeout_s=0.2)
    url = gateway.url + CHAT
    async with gateway.client.post(url, data=b"a=1") as answer:
        assert answer.status == 415
    async with gateway.client.post(url, json={"prompt": "x" * 4000}) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["message"] == "the body is larger than 2048 bytes"

    async def chunks() -> Any:
        for _ in range(5):
            yield b"x" * 1000

    kind = {"Content-Type": "application/json"}
    async with gateway.client.post(url, data=chunks(), headers=kind) as answer:
        assert answer.status == 413
    slow = raw_post(b"{", "Content-Length: 100")
    assert (await raw_exchange(gateway, slow)).startswith(b"HTTP/1.1 408")
    assert engine.requests == []


async def test_a_key_is_needed_where_keys_are_set(
    start_gateway: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    keys, path = [make_api_key(bytes([n]) * 32) for n in range(2)], tmp_path / "keys.json"
    save_api_keys(
        path,
        [
            ApiKeyRecord(id="app", sha256=hash_api_key(keys[0])),
            ApiKeyRecord(id="mon", sha256=hash_api_key(keys[1]), scopes=("metrics",)),
        ],
    )
    gateway = await start_gateway(require_auth=True, api_keys_file=path)
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer kvk_x"}, 401),
        ({"Authorization": f"Bearer {keys[1]}"}, 403),
        ({"Authorization": f"Bearer {keys[0]}"}, 200),
    ):
        assert (await gateway.chat(headers=headers))[0] == status
    for path_, key, status in (
        ("/metrics", None, 401),
        ("/metrics", keys[0], 403),
        ("/metrics", keys[1], 200),
        ("/v1/models", None, 401),
        ("/v1/models", keys[0], 200),
        ("/healthz", None, 200),
    ):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with gateway.client.get(gateway.url + path_, headers=headers) as answer:
            assert answer.status == status


async def test_the_engines_own_key_is_sent(
    start_gateway: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("engine-secret\n")
    gateway = await start_gateway(engine_api_key_file=tmp_path / "key")
    await gateway.chat(headers={"Authorization": "Bearer whatever"})
    assert engine.last_headers["Authorization"] == "Bearer engine-secret"


async def test_embeddings_are_salted_but_carry_no_claim(
    engine: FakeEngine, gateway: Gateway
) -> None:
    async with gateway.post("/v1/embeddings", {"model": "m", "input": ["a"]}) as answer:
        assert answer.status == 200
    assert len(engine.last_body["cache_salt"]) == 43
    assert "kv_transfer_params" not in engine.last_body


async def test_metrics_never_name_a_tenant_or_a_text(gateway: Gateway) -> None:
    await gateway.chat(headers={"X-KV-Tenant": "alice-marker", "X-KV-Session": "session-marker"})
    await gateway.chat(**{"field-marker": 1})
    async with gateway.client.get(gateway.url + "/metrics") as answer:
        text = await answer.text()
    assert "marker" not in text
    assert 'kvrun_gateway_requests_total{api="chat",status="200"} 1.0' in text
    assert 'kvrun_gateway_refusals_total{code="unknown_field"} 1.0' in text
