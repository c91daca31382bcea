"""Read the request counters of engine and gateway on this machine.

The engine's are vLLM's own metrics, or those of llama.cpp's slot server; the gateway's need an API
key of the scope ``metrics`` where it asks for keys. A side that does not answer is left out:
counting never holds a collection up.
"""

import http.client
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as MetricSample

from kvrun.config import KvrunConfig
from kvrun.control.reconcile import Counts, Sample
from kvrun.launch.processes import gateway_url
from kvrun.launch.readiness import connect

_TIMEOUT_S = 5.0
_MAX_BYTES = 8 * 2**20
_FINISHED = ("vllm:request_success_total", "kvrun_engine_requests_finished_total")
_UNDER_WAY = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "kvrun_engine_requests_running",
)


def read_sample(config: KvrunConfig) -> Sample:
    """What both sides count now."""
    if config.audit.metrics_key_file is not None and not _key(config):
        return Sample()
    seen = read_gateway_metrics(config)
    engine = _metrics(config.gateway.engine_url or "", {})
    return Sample(
        engine=None if engine is None else engine_counts(engine),
        gateway=None if seen is None else gateway_counts(seen),
    )


def read_gateway_metrics(config: KvrunConfig) -> list[MetricSample] | None:
    """Every metric of the gateway now; None where it does not answer."""
    key = _key(config)
    return _metrics(gateway_url(config), {"Authorization": f"Bearer {key}"} if key else {})


def engine_counts(metrics: Iterable[MetricSample]) -> Counts | None:
    """An engine's counters, vLLM's aborted requests included; None where they are not there."""
    found = list(metrics)
    finished = [item.value for item in found if item.name in _FINISHED]
    under_way = [item.value for item in found if item.name in _UNDER_WAY]
    if not finished or not under_way:
        return None
    return Counts(finished=int(sum(finished)), in_flight=int(sum(under_way)))


def gateway_counts(metrics: Iterable[MetricSample]) -> Counts | None:
    """The gateway's counters: generations that were answered; None where they are not there."""
    found = list(metrics)
    under_way = [item.value for item in found if item.name == "kvrun_gateway_requests_in_flight"]
    if not under_way:
        return None
    finished = sum(
        item.value
        for item in found
        if item.name == "kvrun_gateway_requests_total"
        and item.labels.get("api") not in ("other", "embeddings")
        and item.labels.get("status") == "200"
    )
    # Embeddings carry no claim: the engine finishes them, the log does not know them.
    uncached = sum(
        item.value
        for item in found
        if item.name == "kvrun_gateway_uncached_requests_total"
        or (item.name == "kvrun_gateway_requests_total" and item.labels.get("api") == "embeddings")
    )
    return Counts(finished=int(finished), in_flight=int(sum(under_way)), uncached=int(uncached))


def _key(config: KvrunConfig) -> str:
    """The API key for the gateway's metrics; nothing where none is set or it cannot be read."""
    if config.audit.metrics_key_file is None:
        return ""
    try:
        return config.audit.metrics_key_file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _metrics(url: str, headers: dict[str, str]) -> list[MetricSample] | None:
    connection = connect(url, _TIMEOUT_S)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        text = answer.read(_MAX_BYTES).decode()
        if answer.status != 200:
            return None
        return [item for family in text_string_to_metric_families(text) for item in family.samples]
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
