"""Alerts of all deployments of a workspace, and acknowledging them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvrun.control.alerts import Alert, UnknownAlertError
from kvrun.control.plane import ControlPlane
from kvrun.deployments.service import Deployments
from kvrun.errors import KvrunError

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


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
        """Those that wait for a person, or every one; newest first. Raises KvrunError."""
        rows = [
            AlertRow(item.id, item.spec.name, alert)
            for item in self._deployments.list(workspace_id)
            if deployment_id in (None, item.id)
            for alert in self._plane(item.id).alerts.all()
            if every or alert.acknowledged_at is None
        ]
        return tuple(sorted(rows, key=lambda row: -row.alert.raised_at))

    def evidence(self, deployment_id: str, alert_id: str, name: str) -> bytes:
        """One file of an alert's evidence. Raises UnknownAlertError."""
        book = self._plane(deployment_id).alerts
        alert = book.find(alert_id)
        if name not in alert.files or not _FILE.fullmatch(name):
            raise UnknownAlertError(f"the alert {alert.id} has no file {name[:80]!r}")
        try:
            return (book.place(alert.id) / name).read_bytes()
        except OSError as error:
            raise UnknownAlertError(f"{name} cannot be read: {error.strerror}") from None

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

    def _plane(self, deployment_id: str) -> ControlPlane:
        return ControlPlane(self._deployments.config_of(deployment_id))


class ReasonMissingError(KvrunError):
    """Nobody said why."""

    exit_code = 2
    status = 422
