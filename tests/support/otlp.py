"""An OpenTelemetry collector that keeps what it is sent: OTLP over HTTP, protobuf."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class SeenSpan:
    """One span as it arrived. Ids are hex; the parent's is empty for a root."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    failed: bool
    attributes: dict[str, object]


@dataclass
class OtlpCollector:
    """What arrived so far; ``raw`` is every body, for those who look for what must not be there."""

    url: str = ""
    raw: list[bytes] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def environment(self) -> dict[str, str]:
        """The variables that send a process's spans here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "5",
        }

    def spans(self) -> list[SeenSpan]:
        """Every span."""
        found = []
        for body in list(self.raw):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = next(
                    item.value.string_value
                    for item in resource.resource.attributes
                    if item.key == "service.name"
                )
                for scope in resource.scope_spans:
                    found += [
                        SeenSpan(
                            service=service,
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            failed=span.status.code == 2,
                            attributes={
                                item.key: getattr(item.value, item.value.WhichOneof("value"))
                                for item in span.attributes
                            },
                        )
                        for span in scope.spans
                    ]
        return found

    def wait_for(self, *names: str, timeout_s: float = 20.0) -> dict[str, SeenSpan]:
        """The last span of each name, once there is one of each."""
        deadline = time.monotonic() + timeout_s
        with self.arrived:
            while True:
                found = {span.name: span for span in self.spans()}
                missing = set(names) - set(found)
                if not missing:
                    return {name: found[name] for name in names}
                left = deadline - time.monotonic()
                assert left > 0, f"no span {sorted(missing)}; there are {sorted(found)}"
                self.arrived.wait(left)


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """A collector on loopback for the length of a block."""
    seen = OtlpCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            with seen.arrived:
                seen.raw.append(body)
                seen.arrived.notify_all()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
