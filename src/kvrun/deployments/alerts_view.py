"""Alerts of all deployments of a workspace, and acknowledging them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvrun.control.alerts import Alert
from kvrun.control.plane import ControlPlane
from kvrun.deployments.each import Problem, read_each
from kvrun.deployments.model import Deployment
from kvrun.deployments.service import Deployments
from kvrun.errors import KvrunError


@dataclass(frozen=True, slots=True)
class AlertRow:
    """An alert and the deployment whose log it is about."""

    deployment_id: str
    deployment_name: str
    alert: Alert


@dataclass(frozen=True, slots=True)
class AlertList:
    """Alerts; ``problems`` are deployments whose alerts could not be read."""

    rows: tuple[AlertRow, ...]
    problems: tuple[Problem, ...]


class AlertViews:
    """Reads and acknowledges what the collectors of the deployments raised."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    def alerts(
        self, workspace_id: str, deployment_id: str | None = None, *, every: bool = False
    ) -> AlertList:
        """Those that wait for a person, or every one; newest first."""

        def read(item: Deployment) -> Iterator[AlertRow]:
            for alert in self._plane(item).alerts.all():
                if every or alert.acknowledged_at is None:
                    yield AlertRow(item.id, item.spec.name, alert)

        rows, problems = read_each(self._deployments, workspace_id, read, deployment_id)
        return AlertList(tuple(sorted(rows, key=lambda row: -row.alert.raised_at)), problems)

    def acknowledge(
        self, deployment_id: str, log: str, reason: str, *, start_over: bool = False
    ) -> tuple[Alert, ...]:
        """Let the collection of a log go on; the reason is put on record.

        Raises UnknownAlertError, and KvrunError without a reason.
        """
        if not reason.strip():
            raise ReasonMissingError("an acknowledgement needs a reason")
        plane = self._plane(deployment_id)
        with plane.hold():
            return tuple(plane.alarm.acknowledge(log, reason.strip(), start_over=start_over))

    def _plane(self, deployment: str | Deployment) -> ControlPlane:
        return ControlPlane(self._deployments.config_of(deployment))


class ReasonMissingError(KvrunError):
    """Nobody said why."""

    exit_code = 2
    status = 422
