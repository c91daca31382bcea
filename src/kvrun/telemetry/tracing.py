"""Traces where the standard ``OTEL_*`` variables name a collector; else nothing is even loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kvrun.telemetry.traces import NoTracing, Tracing

EXTRA = "otel"
_log = logging.getLogger(__name__)


def open_tracing(service: str, environment: Mapping[str, str]) -> Tracing:
    """Tracing as the variables ask for it; ``service`` is its name where they give none.

    Where it is asked for and cannot be had, that is said in the log and nothing is recorded:
    requests are served all the same.
    """
    if not wanted(environment):
        return NoTracing()
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if protocol != "http/protobuf":
        _log.warning("no traces: only the OTLP protocol http/protobuf is spoken here")
        return NoTracing()
    try:
        from kvrun.telemetry.otel import OtelTracing
    except ImportError:
        _log.warning("no traces: OTEL_* asks for them, and kvrun[%s] is not installed", EXTRA)
        return NoTracing()
    return OtelTracing(environment.get("OTEL_SERVICE_NAME") or service)


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the variables name a collector and do not switch traces off."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    endpoint = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environment.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    return bool(endpoint) and not off and exporter == "otlp"
