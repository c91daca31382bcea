"""Evidence for somebody: the controls as they stand, and bundles. Routes and pages use these.

Who makes or fetches a bundle reads logs, so it is on record before it is begun.
"""

from __future__ import annotations

from pathlib import Path

from kvrun.accounts.actor import Actor
from kvrun.accounts.permissions import Permission, require
from kvrun.api.reading import note_read
from kvrun.api.services import Services
from kvrun.evidence.anchor import scope_anchor
from kvrun.evidence.controls import ControlMap
from kvrun.evidence.errors import EvidenceNotFoundError
from kvrun.evidence.export import Request
from kvrun.evidence.jobs import Asked, EvidenceJob
from kvrun.evidence.live import live_controls
from kvrun.evidence.period import Period
from kvrun.evidence.scope import Scope, scope_of_workspace


def start(
    services: Services,
    actor: Actor,
    workspace_id: str,
    request: Request,
    deployment_id: str = "",
) -> EvidenceJob:
    """Begin a bundle of a workspace, or of one deployment of it.

    Raises NotFoundError, ForbiddenError, EvidenceBusyError, and AuditError where it cannot be put
    on record.
    """
    _check(services, actor, workspace_id, deployment_id)
    _note(services, actor, workspace_id, deployment_id, f"evidence of {request.period}")
    asked = Asked(workspace_id, deployment_id, request, actor.reference)
    return services.evidence.start(
        asked, lambda: _scope(services, actor, workspace_id, deployment_id)
    )


def listed(
    services: Services, actor: Actor, workspace_id: str, deployment_id: str | None = None
) -> list[EvidenceJob]:
    """Bundles of a workspace, or those of one deployment alone; the newest first."""
    _check(services, actor, workspace_id, deployment_id or "")
    return services.evidence.of(workspace_id, deployment_id)


def get(services: Services, actor: Actor, workspace_id: str, evidence_id: str) -> EvidenceJob:
    """How far a bundle of the workspace is.

    Raises NotFoundError, ForbiddenError, and EvidenceNotFoundError where the workspace has none of
    that id.
    """
    try:
        job = services.evidence.get(evidence_id)
    except EvidenceNotFoundError:
        job = None
    if job is None or job.workspace_id != workspace_id:
        require(actor, Permission.EVIDENCE, workspace_id)
        raise EvidenceNotFoundError("there is no such evidence", hint="It is kept for seven days.")
    _check(services, actor, workspace_id, job.deployment_id)
    return job


def bundle(services: Services, actor: Actor, workspace_id: str, evidence_id: str) -> Path:
    """The file of a bundle that is done. That it is fetched is on record first."""
    job = get(services, actor, workspace_id, evidence_id)
    path = services.evidence.bundle(job.id)
    what = f"evidence {job.id} of {job.since} to {job.until}, the file"
    _note(services, actor, job.workspace_id, job.deployment_id, what)
    return path


def controls(
    services: Services, actor: Actor, workspace_id: str, period: Period, deployment_id: str = ""
) -> ControlMap:
    """The controls as they stand for a period. Raises NotFoundError, ForbiddenError, KvrunError."""
    _check(services, actor, workspace_id, deployment_id)
    return live_controls(_scope(services, actor, workspace_id, deployment_id), period)


def anchor(services: Services, actor: Actor, workspace_id: str) -> bytes:
    """The trust anchor over a workspace's deployments and its evidence."""
    require(actor, Permission.EVIDENCE, workspace_id)
    return scope_anchor(_scope(services, actor, workspace_id, ""))


def _check(services: Services, actor: Actor, workspace_id: str, deployment_id: str) -> None:
    if deployment_id:
        found = services.find(actor, Permission.EVIDENCE, deployment_id)
        services.same_workspace(found, workspace_id)
    else:
        require(actor, Permission.EVIDENCE, workspace_id)


def _note(
    services: Services, actor: Actor, workspace_id: str, deployment_id: str, what: str
) -> None:
    services.access_log.reading(workspace_id, deployment_id, f"{what} by {actor.reference}")
    for found in services.deployments.list(workspace_id):
        if deployment_id in ("", found.id):
            note_read(services.deployments, actor, found, what)


def _scope(services: Services, actor: Actor, workspace_id: str, deployment_id: str) -> Scope:
    names = {place.id: place.name for place in services.accounts.list_workspaces(actor)}
    ours = names.get(workspace_id) == services.first_workspace
    return scope_of_workspace(
        services.deployments,
        services.home,
        workspace=names.get(workspace_id, workspace_id),
        workspace_id=workspace_id,
        deployment_id=deployment_id,
        installation=services.config.layout if ours else None,
    )
