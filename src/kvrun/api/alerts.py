"""Alerts for somebody: of the workspace's deployments and of the control plane itself."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.accounts.actor import Actor, ActorKind
from kvrun.accounts.permissions import Permission, may, require
from kvrun.api.services import Services
from kvrun.control.alerts import Alert, UnknownAlertError
from kvrun.deployments.each import Problem


@dataclass(frozen=True, slots=True)
class AlertEntry:
    """An alert; ``deployment_id`` is empty where it is about the control plane."""

    deployment_id: str
    deployment_name: str
    alert: Alert


@dataclass(frozen=True, slots=True)
class AlertsListed:
    """Alerts, and the deployments whose alerts could not be read."""

    entries: list[AlertEntry]
    problems: tuple[Problem, ...]


def listed(
    services: Services, actor: Actor, workspace_id: str, *, every: bool = False
) -> AlertsListed:
    """Those that wait for a person, or every one; the newest first."""
    require(actor, Permission.VIEW, workspace_id)
    read = services.alerts.alerts(workspace_id, every=every)
    found = [AlertEntry(row.deployment_id, row.deployment_name, row.alert) for row in read.rows]
    if may(actor, Permission.ALERTS, workspace_id) and _answers_for_all(services, actor):
        own = services.access_log.alerts.all()
        found += [
            AlertEntry("", "control plane", alert)
            for alert in own
            if every or alert.acknowledged_at is None
        ]
    found.sort(key=lambda entry: entry.alert.raised_at, reverse=True)
    return AlertsListed(found, read.problems)


def acknowledge(
    services: Services,
    actor: Actor,
    workspace_id: str,
    *,
    deployment_id: str,
    log: str,
    reason: str,
    start_over: bool = False,
) -> list[AlertEntry]:
    """Let the collection of a log go on. The reason and who gave it are put on record first.

    Raises UnknownAlertError where none waits that is the actor's business, and AuditError where
    it cannot be put on record.
    """
    said = f"{reason} ({actor.reference})"
    if deployment_id:
        found = services.find(actor, Permission.ALERTS, deployment_id)
        services.same_workspace(found, workspace_id)
        done = services.alerts.acknowledge(found.id, log, said, start_over=start_over)
        return [AlertEntry(found.id, found.spec.name, alert) for alert in done]
    require(actor, Permission.ALERTS, workspace_id)
    book = services.access_log.alerts
    waiting = [alert for alert in book.all() if alert.log == log and not alert.acknowledged_at]
    if not waiting or not _answers_for_all(services, actor):
        raise UnknownAlertError("no alert of that log waits for an acknowledgement")
    for alert in waiting:
        services.access_log.acknowledging(alert, reason, actor.reference)
    now = services.now()
    return [
        AlertEntry("", "control plane", book.acknowledge(alert.id, said, now)) for alert in waiting
    ]


def _answers_for_all(services: Services, actor: Actor) -> bool:
    """Whether the control plane's own alerts are the actor's business.

    They are about everybody's workspaces: they are for the local owner, and for who acknowledges
    alerts in the first workspace.
    """
    if actor.kind is ActorKind.LOCAL_OWNER:
        return True
    return any(
        place.name == services.first_workspace and may(actor, Permission.ALERTS, place.id)
        for place in services.accounts.list_workspaces(actor)
    )
