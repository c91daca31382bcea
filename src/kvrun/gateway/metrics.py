"""What the gateway counts. No label ever holds a tenant, a session, a key or any text."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvrun.telemetry.exposition import CONTENT_TYPE_LATEST, Labelled, render

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class GatewayMetrics:
    """One registry of its own, so that several gateways in one process do not collide.

    ``labels`` say which deployment it serves.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = labels
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kvrun_gateway_requests",
            "Requests by API and HTTP status.",
            ("api", "status"),
            registry=self.registry,
        )
        self.refusals = Counter(
            "kvrun_gateway_refusals",
            "Requests that the gateway refused, by reason.",
            ("code",),
            registry=self.registry,
        )
        self.uncached = Counter(
            "kvrun_gateway_uncached_requests",
            "Requests that went on without a claim since the daemon did not answer.",
            registry=self.registry,
        )
        self.disconnects = Counter(
            "kvrun_gateway_client_disconnects",
            "Requests whose client left before the answer was complete.",
            registry=self.registry,
        )
        self.engine_errors = Counter(
            "kvrun_gateway_engine_failures",
            "Requests that failed since the engine was unreachable or broke off.",
            registry=self.registry,
        )
        self.routed = Counter(
            "kvrun_gateway_routed_requests",
            "Requests that went to a gateway of another region, by that region.",
            ("region",),
            registry=self.registry,
        )
        self._answered: dict[tuple[str, int], Counter] = {}
        self.in_flight = Gauge(
            "kvrun_gateway_requests_in_flight",
            "Requests being served now.",
            registry=self.registry,
        )
        self.first_byte = Histogram(
            "kvrun_gateway_first_byte_seconds",
            "Time from the request to the first byte of the engine's answer.",
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def answered(self, api: str, status: int) -> None:
        """Count one request. Looking the labels up costs more than counting: they are kept."""
        counter = self._answered.get((api, status))
        if counter is None:
            counter = self._answered[api, status] = self.requests.labels(api, str(status))
        counter.inc()

    def was_routed(self, region: str) -> None:
        """Count one request that another region's gateway answers."""
        self.routed.labels(region).inc()

    def render(self) -> bytes:
        """The Prometheus text format."""
        return render(Labelled(self.registry, self._labels or {}))
