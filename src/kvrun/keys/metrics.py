"""What a key service says of itself: whether it lives, is ready, and how many daemons it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from kvrun.telemetry.endpoint import Probes, Readiness
from kvrun.telemetry.exposition import Labelled, deployment_labels, render


@dataclass(frozen=True, slots=True)
class KeyServiceState:
    """How many daemons are connected, and whether the root confirmed the keys, also in words."""

    daemons: int
    leased: bool
    lease: str


@dataclass(frozen=True, slots=True)
class KeyServiceMetrics:
    """Reads the ``state`` of a key service when it is asked. Any readers."""

    state: Callable[[], KeyServiceState]
    workspace: str
    deployment: str

    @property
    def probes(self) -> Probes:
        """What ``/healthz``, ``/readyz`` and ``/metrics`` answer."""
        return Probes(lambda: True, self.readiness, self.render)

    def readiness(self) -> Readiness:
        """Ready while the root confirms the keys."""
        state = self.state()
        return Readiness(state.leased, {"keys": state.lease})

    def render(self) -> bytes:
        """Prometheus's text format."""
        return render(Labelled(self, deployment_labels(self.workspace, self.deployment)))

    def collect(self) -> Iterator[Metric]:
        """The families as they are now."""
        state = self.state()
        yield GaugeMetricFamily(
            "kvrun_key_lease_valid",
            "Whether keys may be used: the key root confirmed them in time (1).",
            value=float(state.leased),
        )
        yield GaugeMetricFamily(
            "kvrun_key_service_daemons",
            "Daemons connected to the key service.",
            value=float(state.daemons),
        )
