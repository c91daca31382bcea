"""What the control plane of a deployment can be asked: its logs as collected, alerts, deliveries.

:class:`CollectedMetrics` reads what is on disk, so any process can offer it; what a running
collector did is in its :class:`CollectorMetrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from kvrun.config.deployment import DeploymentSection
from kvrun.control.alerts import Alert, AlertKind
from kvrun.control.collector import CollectOutcome
from kvrun.control.plane import ControlPlane
from kvrun.control.remembered import RememberedLog
from kvrun.control.rounds import RoundReport
from kvrun.control.webhook import Delivery
from kvrun.errors import KvrunError
from kvrun.telemetry.endpoint import Readiness
from kvrun.telemetry.exposition import Labelled, MetricSource, deployment_labels, render

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_READ = (CollectOutcome.COLLECTED, CollectOutcome.UNCHANGED, CollectOutcome.RETIRED)


class CollectedMetrics:
    """The collected logs and the alerts of one data folder, read when asked."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """The families as they are now; what cannot be read is left out and said so."""
        readable = GaugeMetricFamily(
            "kvrun_control_readable",
            "Whether all that the control plane remembers of logs and alerts can be read (1).",
        )
        try:
            logs, alerts = self._plane.memory.all(), self._plane.alerts.all()
        except (KvrunError, OSError):
            readable.add_metric([], 0)
            yield readable
            return
        readable.add_metric([], 1)
        yield readable
        yield from _of_logs(logs)
        yield _of_alerts(alerts)


class CollectorMetrics:
    """What a running collector did, beside what it collected. One writer, any readers."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._last: RoundReport | None = None
        self.registry = CollectorRegistry()
        self._collections = Counter(
            "kvrun_collections",
            "Collections of an instance's log by outcome; error: the collector could not work.",
            ("outcome",),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "kvrun_collection_seconds",
            "Time that one round over all logs took.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._webhook = Counter(
            "kvrun_webhook_messages",
            "Messages to the webhook for alerts: delivered, or failed and sent again.",
            ("outcome",),
            registry=self.registry,
        )
        self._waiting = Gauge(
            "kvrun_webhook_waiting",
            "Messages that the webhook has not taken yet.",
            registry=self.registry,
        )
        for outcome in [*CollectOutcome, _ERROR]:
            self._collections.labels(str(outcome))
        for outcome in ("delivered", "failed"):
            self._webhook.labels(outcome)

    def round_done(self, report: RoundReport | None, duration_s: float) -> None:
        """A round is over; None where the collector could not work."""
        self._last = report
        self._seconds.observe(duration_s)
        if report is None:
            self._collections.labels(_ERROR).inc()
            return
        for item in report.logs:
            self._collections.labels(str(item.outcome)).inc()

    def delivery_done(self, delivery: Delivery) -> None:
        """A pass of the webhook is over."""
        self._webhook.labels("delivered").inc(delivery.delivered)
        self._webhook.labels("failed").inc(delivery.failed)
        self._waiting.set(delivery.waiting)

    def readiness(self) -> Readiness:
        """Ready where the last round could read every log and none is stopped by an alert."""
        last = self._last
        if last is None:
            return Readiness(False, {"collection": "no round was completed"})
        outcomes = {item.source: str(item.outcome) for item in last.logs}
        bad = sorted({outcome for outcome in outcomes.values() if outcome not in _READ})
        return Readiness(not bad, {"collection": ", ".join(bad) or "ok"})

    def render(self) -> bytes:
        """Prometheus's text format."""
        own = Labelled(self.registry, labels_of(self._plane.config.deployment))
        return render(collected([self._plane]), own)


def collected(planes: Iterable[ControlPlane]) -> MetricSource:
    """The collected logs and the alerts of several deployments, for a process that knows them."""
    return _Collected(tuple(planes))


def labels_of(deployment: DeploymentSection) -> dict[str, str]:
    """The labels of a deployment's metrics."""
    return deployment_labels(deployment.workspace, deployment.name)


@dataclass(frozen=True, slots=True)
class _Collected:
    planes: tuple[ControlPlane, ...]

    def collect(self) -> Iterator[Metric]:
        for plane in self.planes:
            labels = labels_of(plane.config.deployment)
            yield from Labelled(CollectedMetrics(plane), labels).collect()


def _of_logs(logs: list[RememberedLog]) -> Iterator[Metric]:
    labels = ["log"]
    verified = GaugeMetricFamily(
        "kvrun_log_verified_records", "Records of a log that were verified.", labels=labels
    )
    stored = GaugeMetricFamily(
        "kvrun_log_stored_records", "Records of a log that Storage holds.", labels=labels
    )
    at = GaugeMetricFamily(
        "kvrun_log_collected_timestamp_seconds",
        "When a log was last collected, in seconds since 1970.",
        labels=labels,
    )
    stopped = GaugeMetricFamily(
        "kvrun_log_stopped", "Whether an alert stopped a log's collection (1).", labels=labels
    )
    for item in logs:
        if item.retired:
            continue
        verified.add_metric([item.log], item.seen.size)
        stored.add_metric([item.log], item.stored.size)
        at.add_metric([item.log], item.collected_at)
        stopped.add_metric([item.log], 1 if item.alert else 0)
    yield from (verified, stored, at, stopped)


def _of_alerts(alerts: list[Alert]) -> Metric:
    waiting = dict.fromkeys(AlertKind, 0)
    for alert in alerts:
        if alert.acknowledged_at is None:
            waiting[alert.kind] += 1
    family = GaugeMetricFamily(
        "kvrun_alerts_waiting",
        "Alerts by kind that nobody acknowledged.",
        labels=["kind"],
    )
    for kind, count in waiting.items():
        family.add_metric([str(kind)], count)
    return family


_ERROR = "error"
