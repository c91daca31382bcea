"""The control plane's own log: who signed in, whose role changed, what became of deployments.

A chained, signed log like an instance's, in ``home/control/audit``. What cannot be put on record
there does not happen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.accounts.events import AccessEvent, AccessEventKind
from kvrun.audit.record import AuditEvent, Event, Outcome
from kvrun.config.layout import DataLayout
from kvrun.control.alerts import Alert, AlertBook, AlertKind
from kvrun.control.journal import ControlJournal, printable
from kvrun.deployments.model import Deployment, DeploymentState

_WORKSPACE = "control-plane"
_log = logging.getLogger(__name__)


class AccessLog:
    """Writes below the control plane's ``home``. Thread-safe. ``now`` in seconds since 1970."""

    def __init__(self, home: Path, now: Callable[[], float]) -> None:
        layout = DataLayout(home)
        layout.control.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal = ControlJournal(layout, _WORKSPACE, now)
        self._now = now
        self.alerts = AlertBook(layout.control / "alerts")

    @property
    def folder(self) -> Path:
        """Where the log is, for ``kvrun verify``."""
        return self._journal.folder

    def note(self, event: AccessEvent) -> None:
        """Put on record what happened to people, before it counts. Raises AuditError."""
        who = f"{event.actor_kind} {event.actor_id}" if event.actor_kind else "nobody"
        said = f"{event.kind} {event.subject} {event.detail}".strip()
        failed = event.kind is AccessEventKind.SIGN_IN_FAILED
        self._journal.append(
            AuditEvent(
                event=Event.SIGNED_IN if event.kind in _SIGN_INS else Event.ROLE_CHANGED,
                outcome=Outcome.DENIED if failed else Outcome.OK,
                workspace=event.workspace_id or "",
                reason=printable(f"{said} by {who}"),
            )
        )

    def warn(self, event: AccessEvent) -> None:
        """Have a person look at it."""
        if not event.alert:
            return
        _log.warning("the owner link was used to sign in")
        detail = "somebody signed in as the local owner with the one-time owner link"
        kind, moment = AlertKind.OWNER_LINK_USED, self._now()
        self.alerts.save(
            Alert(
                id=self.alerts.prepare(_WORKSPACE, kind, moment),
                kind=kind,
                log=_WORKSPACE,
                source=_WORKSPACE,
                seq=0,
                detail=detail,
                raised_at=moment,
                stops=False,
                about=event.subject,
            )
        )

    def created(self, deployment: Deployment, who: str) -> None:
        """Put a new deployment on record. Raises AuditError."""
        self._about(deployment, Event.DEPLOYMENT_CREATED, Outcome.OK, f"by {who}")

    def asked(self, deployment: Deployment, what: str, who: str) -> None:
        """Put on record what somebody asks of a deployment, before it is done.

        What becomes of it is another record. Raises AuditError.
        """
        self._about(deployment, Event.DEPLOYMENT_ASKED, Outcome.OK, f"requested: {what} by {who}")

    def reading(self, workspace_id: str, deployment_id: str, what: str) -> None:
        """Put on record that somebody reads of this log, before they do. Raises AuditError."""
        self._journal.append(
            AuditEvent(
                event=Event.LOG_READ,
                workspace=printable(workspace_id),
                deployment=printable(deployment_id),
                reason=printable(what),
            )
        )

    def acknowledging(self, alert: Alert, reason: str, who: str) -> None:
        """Put on record that somebody settles an alert, before it is settled. Raises AuditError."""
        self._journal.append(
            AuditEvent(
                event=Event.ALERT_ACKNOWLEDGED,
                outcome=Outcome.OK,
                request_id=alert.log,
                reason=printable(f"{alert.id} by {who}: {reason}"),
                digest=sha256(msgspec.json.encode(alert)).hexdigest(),
            )
        )

    def changed(self, deployment: Deployment, before: DeploymentState) -> None:
        """Put on record what became of a deployment; a failure to do so is logged."""
        found = _CHANGES.get(deployment.state)
        if found is None or deployment.state is before:
            return
        event, outcome = found
        if deployment.forgotten:
            # It goes on where it is: nothing of it was deleted.
            event = Event.DEPLOYMENT_ASKED
        reason = f"{before} -> {deployment.state} {deployment.reason}".strip()
        try:
            self._about(deployment, event, outcome, reason)
        except Exception:
            # It has happened already; supervision goes on.
            _log.exception("%s of %s is not on record", event, deployment.id)

    def _about(self, deployment: Deployment, event: Event, outcome: Outcome, reason: str) -> None:
        self._journal.append(
            AuditEvent(
                event=event,
                outcome=outcome,
                workspace=printable(deployment.workspace_id),
                deployment=printable(deployment.id),
                reason=printable(reason),
            )
        )


_SIGN_INS = frozenset(
    {
        AccessEventKind.SIGNED_IN,
        AccessEventKind.SIGN_IN_FAILED,
        AccessEventKind.SIGNED_OUT,
        AccessEventKind.OWNER_LINK_USED,
    }
)
_CHANGES = {
    DeploymentState.RUNNING: (Event.DEPLOYMENT_STARTED, Outcome.OK),
    DeploymentState.STOPPED: (Event.DEPLOYMENT_STOPPED, Outcome.OK),
    DeploymentState.FAILED: (Event.DEPLOYMENT_STOPPED, Outcome.FAILED),
    DeploymentState.DELETED: (Event.DEPLOYMENT_DELETED, Outcome.OK),
}
