"""Reading a deployment's log is on record before anybody sees any of it."""

from kvrun.accounts.actor import Actor
from kvrun.control.plane import ControlPlane
from kvrun.deployments.model import Deployment
from kvrun.deployments.service import Deployments


def note_read(deployments: Deployments, actor: Actor, deployment: Deployment, what: str) -> None:
    """Write that the actor reads ``what`` of a deployment's log, in the log of its collector.

    Raises AuditError when it cannot be written: then nothing is to be shown.
    """
    config = deployments.config_of(deployment.id)
    plane = ControlPlane(config)
    name = config.deployment.name
    logs = [item for item in plane.memory.all() if item.deployment == name]
    latest = max(logs, key=lambda item: item.collected_at, default=None)
    note = latest.note.encode() if latest is not None else b""
    plane.journal.record_read(note, reason=f"{what} by {actor.reference}", deployment=name)
