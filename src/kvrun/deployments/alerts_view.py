"""Alerts of all deployments of a workspace, and acknowledging them."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.control.alerts import Alert
from kvrun.deployments.service import Deployments


@dataclass(frozen=True, slots=True)
class AlertRow:
    """An alert and the deployment whose log it is about."""

    deployment_id: str
    deployment_name: str
    alert: Alert


class AlertViews:
    """Reads and acknowledges what the collectors of the deployments raised."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    def alerts(
        self, workspace_id: str, deployment_id: str | None = None, *, every: bool = False
    ) -> tuple[AlertRow, ...]:
        """Those that wait for a person, or every one; newest first."""
        raise NotImplementedError

    def evidence(self, deployment_id: str, alert_id: str, name: str) -> bytes:
        """One file of an alert's evidence. Raises UnknownAlertError."""
        raise NotImplementedError

    def acknowledge(
        self, deployment_id: str, log: str, reason: str, *, start_over: bool = False
    ) -> tuple[Alert, ...]:
        """Let the collection of a log go on; the reason is put on record."""
        raise NotImplementedError
