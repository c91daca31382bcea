"""The daemon's metrics: read from what it keeps anyway when somebody asks, and not before.

No label holds a tenant, a session or a key. Tenants appear by pseudonym only where an operator
asks for it, the largest few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from kvrun import __version__
from kvrun.audit.settings import LogHealth
from kvrun.cache.events import Tier
from kvrun.cache.memory import TenantUsage
from kvrun.erasure.certificate import RequestKind
from kvrun.instance.erasures import Erasures
from kvrun.instance.instance import Instance
from kvrun.policy.observed import Standing
from kvrun.telemetry.endpoint import Readiness
from kvrun.telemetry.exposition import Labelled, deployment_labels, render

OTHER = "other"
_ERASURE_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TIERS = {Tier.MEMORY: "memory", Tier.DISK: "disk", Tier.OBJECT: "object"}


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """What the metrics are read from. At most ``tenants`` pseudonyms are shown.

    ``key_copy_refused`` says why key slots are not copied to Storage, nothing where they are.
    """

    instance: Instance
    erasures: Erasures
    health: Callable[[], LogHealth]
    tenants: int = 0
    key_copy_refused: Callable[[], str] = lambda: ""


class InstanceMetrics:
    """The metrics of one daemon."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        instance = source.instance
        self._labels = deployment_labels(instance.workspace, instance.deployment)
        self._registry = CollectorRegistry()
        self._erasures = Counter(
            "kvrun_erasures",
            "Erasures by kind of scope: certified, or failed and tried again.",
            ("kind", "outcome"),
            registry=self._registry,
        )
        self._erasure_seconds = Histogram(
            "kvrun_erasure_seconds",
            "Time from the request to the certificate.",
            buckets=_ERASURE_BUCKETS,
            registry=self._registry,
        )
        for kind in RequestKind:
            for outcome in ("certified", "failed"):
                self._erasures.labels(str(kind), outcome)
        source.erasures.on_certified = self._certified
        source.erasures.on_failed = lambda kind: self._erasures.labels(kind, "failed").inc()

    def render(self) -> bytes:
        """Prometheus's text format."""
        return render(Labelled(self, self._labels), Labelled(self._registry, self._labels))

    def readiness(self) -> Readiness:
        """Ready where the cache may be used: the log can be written and the lease holds."""
        health, leased = self._source.health(), self._source.instance.keys.leased
        return Readiness(
            health.available and leased,
            {
                "log": "ok" if health.available else "cannot be written",
                "lease": "ok" if leased else "over",
                "engine": "connected" if self._source.instance.layout else "not connected",
            },
        )

    def _certified(self, kind: str, duration_s: float) -> None:
        self._erasures.labels(kind, "certified").inc()
        self._erasure_seconds.observe(max(0.0, duration_s))

    def collect(self) -> Iterator[Metric]:
        """Everything but erasures, as it is now."""
        yield from self._requests()
        yield from self._blocks()
        yield from self._tiers()
        yield from self._log()
        if self._source.tenants:
            yield from _of_tenants(self._source.instance.cache.top_tenants(self._source.tenants))

    def _requests(self) -> Iterator[Metric]:
        instance = self._source.instance
        counts, layout = instance.handles.totals.snapshot(), instance.layout
        info = InfoMetricFamily("kvrun_instance", "Version of kvrun and of the engine, and mode.")
        info.add_metric(
            [],
            {
                "version": __version__,
                "engine": layout.software if layout is not None else "",
                "stateless": str(instance.stateless).lower(),
            },
        )
        yield info
        yield _gauge("kvrun_engine_connected", "Whether an engine is connected (1).", bool(layout))
        yield _counter(
            "kvrun_requests_admitted", "Requests that may use the cache.", counts.admitted
        )
        yield _labelled_counter(
            "kvrun_requests_denied",
            "Requests that went on without the cache, by class of reason.",
            "reason",
            {str(denial): count for denial, count in counts.denied.items()},
        )
        running = sum(1 for handle in instance.handles if handle.finished_at is None)
        yield _gauge("kvrun_requests_running", "Admitted requests that run now.", running)
        yield _gauge("kvrun_sessions", "Sessions that have a key.", instance.keys.session_count)
        yield _gauge(
            "kvrun_key_lease_valid",
            "Whether keys may be used: the key root confirmed them in time (1).",
            instance.keys.leased,
        )
        found = instance.residency.standings
        yield _labelled_gauge(
            "kvrun_residency_region_mismatch",
            "Whether something was seen in another region than is declared (1).",
            "place",
            {
                "instance": found.instance is Standing.MISMATCH,
                "storage": found.storage is Standing.MISMATCH,
            },
        )
        yield _gauge(
            "kvrun_erasures_unfinished",
            "Erasures that are not certified yet.",
            self._source.erasures.unfinished,
        )
        yield _counter(
            "kvrun_prompt_tokens", "Prompt tokens of admitted requests.", counts.prompt_tokens
        )
        yield _labelled_counter(
            "kvrun_reused_tokens",
            "Prompt tokens that were not computed, by the tier that had them.",
            "tier",
            counts.reused,
        )

    def _blocks(self) -> Iterator[Metric]:
        instance = self._source.instance
        counts, cache = instance.handles.totals.snapshot(), instance.cache.counters()
        yield _counter("kvrun_blocks_sealed", "Blocks that were sealed.", counts.sealed_blocks)
        yield _counter(
            "kvrun_sealed_bytes", "Bytes of blocks that were sealed.", counts.sealed_bytes
        )
        yield _labelled_counter(
            "kvrun_blocks_opened",
            "Sealed blocks that were opened, by the tier that had them.",
            "tier",
            {_TIERS[tier]: count for tier, count in counts.opened.items()},
        )
        yield _counter(
            "kvrun_blocks_failed",
            "Blocks that were asked for and not opened: gone, damaged or not readable.",
            counts.failed_blocks,
        )
        yield _counter(
            "kvrun_blocks_quarantined",
            "Blocks that did not open under their session's key: integrity failures.",
            cache.quarantined,
        )
        yield _counter(
            "kvrun_cache_evictions", "Blocks that left the memory tier for others.", cache.evicted
        )
        yield _counter(
            "kvrun_cache_persisted_blocks",
            "Blocks that were written to disk, and again to Storage.",
            cache.persisted,
        )
        yield _counter(
            "kvrun_cache_restored_blocks",
            "Blocks that came back from disk or Storage.",
            cache.restored,
        )
        yield _counter(
            "kvrun_cache_lost_blocks", "Blocks that the disk did not give back.", cache.lost
        )
        yield _counter(
            "kvrun_cache_no_room", "Blocks that found no room in the memory tier.", cache.no_room
        )

    def _tiers(self) -> Iterator[Metric]:
        levels = self._source.instance.cache.levels()
        yield _labelled_gauge(
            "kvrun_cache_blocks",
            "Sealed blocks in a tier; on disk and in Storage (object) those of sessions opened "
            "since the start.",
            "tier",
            {
                "memory": levels.memory_blocks,
                "disk": levels.disk_blocks,
                "object": levels.object_blocks,
            },
        )
        yield _labelled_gauge(
            "kvrun_cache_bytes",
            "Sealed bytes in a tier.",
            "tier",
            {
                "memory": levels.memory_bytes,
                "disk": levels.disk_bytes,
                "object": levels.object_bytes,
            },
        )
        yield _labelled_gauge(
            "kvrun_cache_capacity_bytes",
            "What a tier may hold; 0 where there is none.",
            "tier",
            {"memory": levels.memory_capacity_bytes, "disk": levels.disk_capacity_bytes},
        )
        yield _gauge(
            "kvrun_cache_waiting_bytes", "Sealed bytes that wait for disk.", levels.waiting_bytes
        )
        yield _gauge(
            "kvrun_disk_available", "Whether the disk tier takes blocks (1).", levels.disk_available
        )
        yield _gauge(
            "kvrun_object_available",
            "0 while Storage does not answer: what the object tier holds is a miss then.",
            levels.object_available or not levels.has_objects,
        )
        yield _gauge(
            "kvrun_object_waiting_bytes",
            "Sealed bytes in memory that wait to be packed for Storage.",
            levels.object_waiting_bytes,
        )
        yield _gauge(
            "kvrun_object_undeleted_sessions",
            "Erased or expired sessions whose ciphertext is still to be deleted from Storage.",
            levels.undeleted,
        )
        yield _gauge(
            "kvrun_key_copy_refused",
            "1 while Storage has a copy of other or newer key slots, and none is made of these.",
            bool(self._source.key_copy_refused()),
        )

    def _log(self) -> Iterator[Metric]:
        health = self._source.health()
        yield _counter("kvrun_audit_records", "Records of the audit log.", health.records)
        yield _counter("kvrun_audit_lost_records", "Records that could not be kept.", health.lost)
        yield _gauge(
            "kvrun_audit_owed_records",
            "Records that wait until the log can be written.",
            self._source.instance.journal.owed,
        )
        yield _gauge(
            "kvrun_audit_available", "Whether the audit log can be written (1).", health.available
        )
        yield _gauge(
            "kvrun_audit_uncollected_bytes",
            "Bytes of the audit log that nobody collected.",
            health.stored_bytes,
        )
        yield _gauge(
            "kvrun_audit_quota_bytes",
            "What the audit log may take until it is collected.",
            health.quota_bytes,
        )


def _of_tenants(usage: Mapping[str, TenantUsage]) -> Iterator[Metric]:
    """``usage`` is by pseudonym, with OTHER for the rest."""
    yield _labelled_gauge(
        "kvrun_tenant_blocks",
        "Sealed blocks in memory of the tenants that hold most, by pseudonym, and of all others.",
        "tenant_ref",
        {reference: used.blocks for reference, used in usage.items()},
    )
    yield _labelled_gauge(
        "kvrun_tenant_bytes",
        "Sealed bytes in memory of the tenants that hold most, by pseudonym, and of all others.",
        "tenant_ref",
        {reference: used.bytes for reference, used in usage.items()},
    )


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=float(value))


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)


def _labelled_gauge(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _labelled_counter(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
