"""The daemon's work for a request is in the trace that the request came with."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_instance_requests import blocks, hashes

from kvrun.instance.protocol import Verdict
from kvrun.telemetry.traces import ATTRIBUTES
from support.byhand import HandEngine
from support.client import eventually, grant
from support.daemon import Daemon
from support.otlp import OtlpCollector, otlp_collector

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with otlp_collector() as running:
        yield running


@pytest.fixture
def daemon(collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    for name, value in collector.environment().items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="kvr-", dir="/tmp") as folder:
        running = Daemon(Path(folder))
        running.start()
        yield running
        running.stop()


def test_match_seal_and_load_are_spans_of_the_requests_trace(
    daemon: Daemon, collector: OtlpCollector
) -> None:
    made = blocks(3)
    granted = grant(daemon, "tenant-marker", "session-marker")

    def claim(request_id: str) -> str:
        return daemon.claim(
            "tenant-marker",
            granted.salt,
            granted.generation,
            session="session-marker",
            request_id=request_id,
        )

    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        first = engine.match(claim("r-1"), granted.salt, hashes(made), traceparent=PARENT)
        engine.store(first.handle, made)
        eventually(lambda: daemon.reuse("r-1").sealed_blocks == 3, "the blocks are sealed")
        second = engine.match(claim("r-2"), granted.salt, hashes(made), traceparent=PARENT)
        assert engine.load(second.handle, hashes(made)).plain == dict(made)
        refused = engine.match("kvc1.no.claim.at-all", granted.salt, traceparent="not a parent")
        assert refused.verdict is Verdict.DENIED
        found = collector.wait_for("kvrun.match", "kvrun.seal", "kvrun.load")
        eventually(
            lambda: (
                {span.attributes.get("kvrun.verdict") for span in collector.spans()}
                >= {"admitted", "denied"}
            ),
            "both matches arrived",
        )
    for name in ("kvrun.seal", "kvrun.load"):
        assert (found[name].trace, found[name].parent) == (TRACE, SPAN)
    spans = collector.spans()
    matches = [span for span in spans if span.attributes.get("kvrun.request_id") == "r-2"]
    assert {span.name for span in matches} == {"kvrun.match", "kvrun.load"}
    assert {span.service for span in spans} == {"kvrun-instance"}
    assert next(span for span in matches if span.name == "kvrun.match").attributes == {
        "kvrun.request_id": "r-2",
        "kvrun.verdict": "admitted",
        "kvrun.blocks": 3,
    }
    # What names no trace begins one of its own.
    denied = [span for span in spans if span.attributes.get("kvrun.verdict") == "denied"]
    assert all(span.trace != TRACE and not span.parent for span in denied)
    for span in spans:
        assert set(span.attributes) <= ATTRIBUTES
    for secret in ("tenant-marker", "session-marker", granted.salt):
        assert not any(secret.encode() in body for body in collector.raw)
