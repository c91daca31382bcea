"""Traces are there where they are asked for, and only there."""

import subprocess
import sys

import pytest

from kvrun.telemetry.traces import (
    ATTRIBUTES,
    NoTracing,
    attribute_name,
    read_traceparent,
    valid_traceparent,
)
from kvrun.telemetry.tracing import open_tracing, wanted
from support.otlp import otlp_collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT[:-1],
        PARENT + "0",
        PARENT.upper(),
        PARENT.replace("00-", "01-", 1),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        PARENT + "\r\nx-session-id: 1",
        PARENT + "\n",
        "00-0af7651916cd43dd8448eb211c80319\u0663-b7ad6b7169203331-01",
    ],
)
def test_a_malformed_traceparent_is_as_good_as_none(text: str) -> None:
    assert not valid_traceparent(text)
    assert read_traceparent([(b"traceparent", text.encode("utf-8"))]) == ""


def test_one_traceparent_is_read_and_two_are_none() -> None:
    header = (b"traceparent", PARENT.encode())
    assert read_traceparent([(b"host", b"x"), header]) == PARENT
    assert read_traceparent([(b"Traceparent", PARENT.encode())]) == PARENT
    assert read_traceparent([header, header]) == ""


def test_without_a_place_to_send_to_nothing_is_recorded_and_the_parent_is_passed_on() -> None:
    tracing = open_tracing("kvrun-gateway", {"OTEL_SERVICE_NAME": "x"})
    assert isinstance(tracing, NoTracing)
    with tracing.span("kvrun.request", PARENT) as trace:
        trace.note(request_id="kvr-1")
        with trace.step("kvrun.admission") as step:
            assert step.traceparent == PARENT
    with tracing.span("kvrun.request", "") as trace:
        assert trace.traceparent == ""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_decide(variables: dict[str, str], expected: bool) -> None:
    assert wanted(variables) is expected


def test_a_protocol_that_is_not_spoken_is_said_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    assert isinstance(open_tracing("kvrun-gateway", variables), NoTracing)
    assert "http/protobuf" in caplog.text


def test_a_span_can_say_only_what_is_listed() -> None:
    assert attribute_name("request_id") == "kvrun.request_id"
    assert attribute_name("status_code") == "http.response.status_code"
    for keyword in ("tenant", "session", "prompt", "kvrun.request_id"):
        with pytest.raises(ValueError, match="no attribute"):
            attribute_name(keyword)
    assert not any("tenant" in name or "prompt" in name for name in ATTRIBUTES)


def test_a_failed_span_says_the_kind_of_error_and_not_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with otlp_collector() as collector:
        for name, value in collector.environment().items():
            monkeypatch.setenv(name, value)
        tracing = open_tracing("kvrun-gateway", collector.environment())
        try:
            with (
                pytest.raises(ValueError),
                tracing.span("kvrun.request", PARENT) as trace,
                trace.step("kvrun.admission"),
            ):
                raise ValueError("a prompt about hunter2")
        finally:
            tracing.close()
        found = collector.wait_for("kvrun.request", "kvrun.admission")
    assert found["kvrun.admission"].failed
    assert found["kvrun.admission"].attributes == {"error.type": "ValueError"}
    assert found["kvrun.admission"].parent == found["kvrun.request"].id
    assert found["kvrun.request"].trace == PARENT.split("-")[1]
    assert not any(b"hunter2" in body for body in collector.raw)


def test_processes_do_not_load_opentelemetry_unless_asked() -> None:
    code = (
        "import sys, kvrun.gateway.server, kvrun.instance.daemon, kvrun.cli.collecting;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
