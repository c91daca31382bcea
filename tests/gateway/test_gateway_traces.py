"""A client's trace goes through the gateway to the engine, and holds nothing of the client's."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from gateway_rig import FakeEngine, Gateway

from kvrun.telemetry.traces import ATTRIBUTES, Tracing
from kvrun.telemetry.tracing import open_tracing
from support.otlp import OtlpCollector, otlp_collector

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SECRETS = ("tenant-marker", "session-marker", "prompt-marker")
HEADERS = {"traceparent": PARENT, "X-KV-Tenant": SECRETS[0], "X-KV-Session": SECRETS[1]}
MESSAGES = [{"role": "user", "content": SECRETS[2]}]

Start = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpCollector]:
    with otlp_collector() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def tracing(collector: OtlpCollector) -> Iterator[Tracing]:
    opened = open_tracing("kvrun-gateway", collector.environment())
    yield opened
    opened.close()


async def flushed(tracing: Tracing) -> None:
    await asyncio.to_thread(tracing.close)


async def test_a_clients_trace_arrives_at_the_engine_and_at_the_collector(
    start_gateway: Start, engine: FakeEngine, tracing: Tracing, collector: OtlpCollector
) -> None:
    gateway = await start_gateway(tracing=tracing)
    status, _ = await gateway.chat(headers=HEADERS, messages=MESSAGES)
    assert status == 200
    await flushed(tracing)
    names = ("request", "admission", "session", "claim", "first_byte")
    found = collector.wait_for(*(f"kvrun.{name}" for name in names))
    request, admission = found["kvrun.request"], found["kvrun.admission"]
    assert {span.trace for span in found.values()} == {TRACE}
    assert {span.service for span in found.values()} == {"kvrun-gateway"}
    assert request.parent == PARENT.split("-")[2]
    assert admission.parent == found["kvrun.first_byte"].parent == request.id
    assert found["kvrun.session"].parent == found["kvrun.claim"].parent == admission.id
    # The engine's own spans go below the wait for its first byte, the daemon's below the admission.
    sent = engine.last_headers["traceparent"].split("-")
    assert sent[1:3] == [TRACE, found["kvrun.first_byte"].id]
    stamped = engine.last_body["kv_transfer_params"]["kvrun_traceparent"].split("-")
    assert stamped[1:3] == [TRACE, admission.id]
    assert request.attributes["kvrun.request_id"] == engine.last_headers["X-Request-ID"]
    assert request.attributes["http.response.status_code"] == 200


async def test_a_trace_holds_no_prompt_no_tenant_and_no_key(
    start_gateway: Start, engine: FakeEngine, tracing: Tracing, collector: OtlpCollector
) -> None:
    gateway = await start_gateway(tracing=tracing)
    await gateway.chat(headers=HEADERS, messages=MESSAGES)
    salt = engine.last_body["cache_salt"]
    await gateway.chat(headers=HEADERS, messages=MESSAGES, **{SECRETS[2]: SECRETS[2]})
    await gateway.chat(headers={**HEADERS, "X-KV-Oops": SECRETS[0]}, messages=MESSAGES)
    await flushed(tracing)
    collector.wait_for("kvrun.request", "kvrun.claim")
    spans = collector.spans()
    assert {span.attributes.get("error.type") for span in spans} > {None}
    for span in spans:
        assert set(span.attributes) <= ATTRIBUTES
    for body in collector.raw:
        for secret in (*SECRETS, "kvc1.", salt):
            assert secret.encode() not in body


async def test_without_tracing_the_clients_own_traceparent_is_passed_on(
    start_gateway: Start, engine: FakeEngine
) -> None:
    gateway = await start_gateway()
    await gateway.chat(headers={**HEADERS, "tracestate": "vendor=tenant-marker"})
    assert engine.last_headers["traceparent"] == PARENT
    assert engine.last_body["kv_transfer_params"]["kvrun_traceparent"] == PARENT
    assert "tracestate" not in {name.lower() for name in engine.last_headers}


@pytest.mark.parametrize("sent", [{}, {"traceparent": "00-x"}, {"traceparent": PARENT + "-more"}])
async def test_nothing_is_passed_on_without_a_well_formed_one(
    start_gateway: Start, engine: FakeEngine, sent: dict[str, str]
) -> None:
    gateway = await start_gateway()
    await gateway.chat(headers=sent)
    assert "traceparent" not in {name.lower() for name in engine.last_headers}
    assert set(engine.last_body["kv_transfer_params"]) == {"kvrun_claim"}


async def test_a_collector_that_is_away_costs_requests_nothing(
    start_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("kvrun.telemetry.otel._CLOSE_S", 0.2)
    away = open_tracing("kvrun-gateway", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    gateway = await start_gateway(tracing=away)
    status, _ = await gateway.chat()
    assert status == 200
