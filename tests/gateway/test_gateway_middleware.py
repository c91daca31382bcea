"""The middleware around an ASGI application that stands in for the engine's."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gateway_rig import FakeDaemon

from kvrun.config.gateway import GatewaySettings
from kvrun.gateway.app import GatewayParts
from kvrun.gateway.errors import GatewayConfigError
from kvrun.gateway.middleware import KvrunMiddleware

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
JSON = (b"content-type", b"application/json")


class EngineApp:
    """Records what reaches it and answers in pieces."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], bytes]] = []
        self.events: list[bytes] = []
        self.disconnected = False
        self.wait_for_disconnect = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self.seen.append((dict(scope), b""))
            return
        message = await receive() if scope["method"] == "POST" else {"body": b""}
        self.seen.append((dict(scope), message["body"]))
        if self.wait_for_disconnect:
            self.disconnected = (await receive())["type"] == "http.disconnect"
            return
        kind = b"text/event-stream; charset=utf-8" if self.events else b"application/json"
        pieces = self.events or [b'{"id":1,"kv_trans', b'fer_params":{"a":1}}']
        headers = [(b"content-type", kind), (b"x-request-id", b"engines"), (b"x-extra", b"1")]
        if not self.events:
            headers.append((b"content-length", str(sum(map(len, pieces))).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Rig:
    def __init__(self, **settings: Any) -> None:
        chosen = GatewaySettings(**{"require_auth": False, **settings})
        parts = GatewayParts(chosen, claim_key=Ed25519PrivateKey.generate(), make_client=FakeDaemon)
        self.engine = EngineApp()
        self.app = KvrunMiddleware(self.engine, settings=chosen, parts=parts)

    async def call(
        self,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        body: object = BODY,
        headers: tuple[tuple[bytes, bytes], ...] = (JSON,),
        kind: str = "http",
    ) -> list[dict[str, Any]]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        messages = [{"type": "http.request", "body": raw}, {"type": "http.disconnect"}]
        sent: list[dict[str, Any]] = []

        async def receive() -> Any:
            return messages.pop(0) if len(messages) > 1 else messages[0]

        async def send(message: Any) -> None:
            sent.append(dict(message))

        scope = {"type": kind, "method": method, "path": path, "headers": list(headers)}
        await self.app(scope, receive, send)
        return sent


async def test_a_request_reaches_the_engine_stamped_and_measured() -> None:
    rig = Rig()
    headers = (JSON, (b"content-length", b"5"), (b"transfer-encoding", b"chunked"),
               (b"x-kv-tenant", b"alice"), (b"x-request-id", b"theirs"),
               (b"authorization", b"Bearer engine-key"))  # fmt: skip
    await rig.call(headers=headers)
    scope, body = rig.engine.seen[0]
    stamped = json.loads(body)
    assert len(stamped["cache_salt"]) == 43
    assert stamped["kv_transfer_params"]["kvrun_claim"].startswith("kvc1.")
    got = dict(scope["headers"])
    assert got[b"content-length"] == str(len(body)).encode()
    assert b"transfer-encoding" not in got
    assert got[b"x-request-id"].startswith(b"kvr-")
    assert got[b"authorization"] == b"Bearer engine-key"


async def test_a_whole_answer_loses_its_transfer_parameters() -> None:
    start, body = await Rig().call()
    headers = dict(start["headers"])
    assert json.loads(body["body"]) == {"id": 1}
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert headers[b"x-kv-request-id"] == headers[b"x-request-id"]
    assert headers[b"x-request-id"].startswith(b"kvr-")
    assert headers[b"x-extra"] == b"1"


async def test_a_stream_passes_event_by_event() -> None:
    rig = Rig()
    rig.engine.events = [b"data: 1\n\n", b'data: {"kv_transfer_params":1}\n\n', b"data: [DONE]\n\n"]
    _, *bodies = await rig.call(body={**BODY, "stream": True})
    assert [message["body"] for message in bodies] == [
        b"data: 1\n\n", b"data: {}\n\n", b"data: [DONE]\n\n", b""
    ]  # fmt: skip
    assert [message["more_body"] for message in bodies] == [True, True, True, False]


async def test_the_engine_hears_that_its_client_left() -> None:
    rig = Rig()
    rig.engine.wait_for_disconnect = True
    await rig.call()
    assert rig.engine.disconnected


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    ["/invocations", "/generative_scoring", "/inference/v1/generate", "/tokenize", "/detokenize",
     "/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/messages/count_tokens",
     "/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v2/embed", "/cohere/chat",
     "/v1/systemone", "/pooling", "/score", "/rerank", "/collective_rpc", "/server_info",
     "/reset_prefix_cache", "/sleep", "/v1/load_lora_adapter", "/v1/audio/transcriptions",
     "/docs", "/openapi.json", "/v1/completions/", "//v1/completions", "/V1/COMPLETIONS"],
)  # fmt: skip
async def test_everything_else_is_refused_before_the_engine(method: str, path: str) -> None:
    rig = Rig()
    start, _ = await rig.call(method, path)
    assert start["status"] == 404
    assert rig.engine.seen == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
async def test_generation_paths_take_post_only(method: str) -> None:
    rig = Rig()
    start, _ = await rig.call(method, "/v1/completions")
    assert start["status"] == 405
    assert rig.engine.seen == []


async def test_websockets_are_closed_before_the_engine() -> None:
    rig = Rig()
    sent = await rig.call(kind="websocket", path="/v1/realtime")
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "not served here"}]
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    "path", ["/health", "/metrics", "/version", "/v1/models", "/ping", "/load"]
)
async def test_what_holds_no_request_may_be_read(path: str) -> None:
    rig = Rig()
    assert (await rig.call("GET", path))[0]["status"] == 200
    assert (await rig.call("POST", path))[0]["status"] in (404, 405)
    assert len(rig.engine.seen) == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (((b"x-session-id", b"s"), JSON), BODY),
        (((b"x-vllm-priority", b"-5"), JSON), BODY),
        (((b"x-data-parallel-rank", b"1"), JSON), BODY),
        (((b"x-kv-tenant", b"a"), (b"x-kv-tenant", b"b"), JSON), BODY),
        ((JSON,), {**BODY, "cache_salt": "x"}),
        ((JSON,), {**BODY, "kv_transfer_params": {"kvrun_claim": "x"}}),
        ((JSON,), b'{"model":"m","messages":[],"messages":[]}'),
        (((b"content-type", b"text/plain"),), BODY),
    ],
)
async def test_the_gateways_refusals_hold_here_too(
    headers: tuple[tuple[bytes, bytes], ...], body: object
) -> None:
    rig = Rig()
    start, answer = await rig.call(headers=headers, body=body)
    assert start["status"] in (400, 415)
    assert "error" in json.loads(answer["body"])
    assert rig.engine.seen == []


async def test_the_lifespan_is_the_engines_own() -> None:
    rig = Rig()
    await rig.call(kind="lifespan")
    assert rig.engine.seen[0][0]["type"] == "lifespan"


def test_without_a_configuration_the_engine_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KVRUN_CONFIG", raising=False)
    with pytest.raises(GatewayConfigError, match="KVRUN_CONFIG is not set"):
        KvrunMiddleware(EngineApp())


def test_settings_come_from_the_file_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kvrun.claims.keyfile import create_signing_key

    config = tmp_path / "kvrun.toml"
    config.write_text('[instance]\ndata_dir = "data"\n[gateway]\nrequire_auth = false\n')
    run = tmp_path / "data" / "run"
    create_signing_key(run / "claim.key")
    monkeypatch.setenv("KVRUN_CONFIG", str(config))
    monkeypatch.setenv("KVRUN_GATEWAY__MULTI_TENANT", "true")
    engine = EngineApp()
    with pytest.raises(GatewayConfigError, match=r"launch tokens .*tokens.json cannot be read"):
        KvrunMiddleware(engine)
    (run / "tokens.json").write_text('{"engine_token":"aa","gateway_token":"bb"}')
    app = KvrunMiddleware(engine)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(BODY).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [JSON]}
    asyncio.run(app(scope, receive, send))
    assert b"this deployment is multi-tenant" in sent[1]["body"]
