"""Spans by OpenTelemetry's SDK, sent to an OTLP/HTTP collector; needs the extra ``otel``.

The SDK reads the other ``OTEL_*`` variables itself: endpoint, headers, certificate, sampler, batch
sizes, resource attributes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvrun import __version__
from kvrun.errors import KvrunError
from kvrun.telemetry.traces import AttributeValue, SpanKind, Trace, attribute_name

_CLOSE_S = 3.0
_PROPAGATOR = TraceContextTextMapPropagator()
_KINDS = {
    SpanKind.SERVER: api.SpanKind.SERVER,
    SpanKind.CLIENT: api.SpanKind.CLIENT,
    SpanKind.INTERNAL: api.SpanKind.INTERNAL,
}


class OtelTracing:
    """A Tracing that records. A provider of its own: nothing global is touched."""

    def __init__(self, service: str) -> None:
        resource = Resource.create({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("kvrun", __version__)
        self._closed = False

    @contextmanager
    def span(
        self, name: str, traceparent: str, kind: SpanKind = SpanKind.SERVER
    ) -> Iterator[Trace]:
        """See Tracing."""
        parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
        span = self._tracer.start_span(name, context=parent, kind=_KINDS[kind])
        with _ended(span):
            yield _OtelTrace(self._tracer, span)

    def close(self) -> None:
        """See Tracing."""
        if self._closed:
            return
        self._closed = True
        # A collector that does not answer must not hold the process up.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


class _OtelTrace:
    def __init__(self, tracer: api.Tracer, span: api.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, api.set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    @contextmanager
    def step(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Iterator[Trace]:
        below = api.set_span_in_context(self._span)
        span = self._tracer.start_span(name, context=below, kind=_KINDS[kind])
        with _ended(span):
            yield _OtelTrace(self._tracer, span)

    def note(self, **attributes: AttributeValue) -> None:
        for keyword, value in attributes.items():
            self._span.set_attribute(attribute_name(keyword), value)


@contextmanager
def _ended(span: api.Span) -> Iterator[None]:
    """End the span with the block; of an exception only the kind is kept, its text may quote."""
    try:
        yield
    except BaseException as error:
        span.set_attribute("error.type", _kind(error))
        span.set_status(api.StatusCode.ERROR)
        raise
    finally:
        span.end()


def _kind(error: BaseException) -> str:
    code = getattr(error, "code", None)
    return code if isinstance(error, KvrunError) and isinstance(code, str) else type(error).__name__
