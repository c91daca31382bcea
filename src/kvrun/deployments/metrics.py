"""Metrics of several deployments: their states, and what the control plane knows of their logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from kvrun.control.metrics import collected, labels_of
from kvrun.control.plane import ControlPlane
from kvrun.deployments.model import Deployment
from kvrun.deployments.service import Deployments
from kvrun.errors import KvrunError
from kvrun.telemetry.exposition import deployment_labels


class DeploymentMetrics:
    """The metrics of ``shown`` deployments, read when asked."""

    def __init__(self, deployments: Deployments, shown: Sequence[Deployment]) -> None:
        self._deployments = deployments
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        """The families as they are now. One deployment's trouble leaves out no other."""
        states = GaugeMetricFamily(
            "kvrun_deployment_state",
            "The state that a deployment is in (1).",
            labels=["workspace", "deployment", "state"],
        )
        planes = []
        for item in self._shown:
            labels = deployment_labels(item.workspace_id, item.id)
            try:
                config = self._deployments.config_of(item.id)
                labels = labels_of(config.deployment)
                planes.append(ControlPlane(config))
            except (KvrunError, OSError):
                pass  # its state is shown all the same
            states.add_metric([*labels.values(), str(item.state)], 1)
        yield states
        yield from collected(planes).collect()
