"""Erasing in one deployment for somebody: who may, whose word it needs, and what was done.

Routes and pages both use these functions. A session or a tenant needs the permission ``erase``; a
whole deployment ``erase_wide`` and, where there is one, a second person's approval.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import InvalidError
from kvrun.accounts.permissions import Permission
from kvrun.accounts.records import Approval
from kvrun.api.services import Services, requester
from kvrun.config import KvrunConfig
from kvrun.deployments.deleting import DELETION_REFERENCE
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import ErasureStatement, RequestKind
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import ID_BYTES, Job, JobState, JobStore
from kvrun.erasure.plan import ConfirmationError, ErasureScope, Plan
from kvrun.errors import KvrunError
from kvrun.instance.erasures import ErasureResult
from kvrun.instance.parts import certificates_folder
from kvrun.launch import erasing

_log = logging.getLogger(__name__)
ERASE_DEPLOYMENT = "erase_deployment"
"""The operation that approvals name."""


class ErasureNotFoundError(ErasureError):
    """There is no erasure of that id in the deployment."""

    status = 404


@dataclass(frozen=True, slots=True)
class Reasons:
    """What is written into the certificate about the request.

    Raises InvalidError for a reference that would pass for one of a deployment's deletion.
    """

    reference: str = ""
    legal_basis: str = ""

    def __post_init__(self) -> None:
        """Look at the reference as it will be written: only what can be printed is."""
        written = "".join(char for char in self.reference if char.isprintable())
        if written.startswith(DELETION_REFERENCE):
            raise InvalidError(
                f"a reference may not begin with {DELETION_REFERENCE.strip()!r}",
                hint="Those are the references of deployments' deletions.",
            )


@dataclass(frozen=True, slots=True)
class ErasureRow:
    """An erasure. ``state`` is ``certified`` once it has its certificate."""

    id: str
    state: str
    kind: str
    requested_at: str
    issued_at: str
    reference: str
    claim_class: str
    keys: int


@dataclass(frozen=True, slots=True)
class ErasureStatus:
    """How far an erasure has come. ``steps`` are names and times (RFC 3339)."""

    row: ErasureRow
    steps: tuple[tuple[str, str], ...]
    unacknowledged: tuple[str, ...]
    certificates: tuple[str, ...]


def plan(services: Services, actor: Actor, deployment_id: str, scope: ErasureScope) -> Plan:
    """Count what an erasure would reach; its token confirms it. Raises KvrunError."""
    found = services.find(actor, _permission(scope), deployment_id)
    config = services.deployments.config_of(found.id)
    return erasing.plan_erasure(config, _asked(scope), offline=True)


def needs_approval(services: Services, actor: Actor, deployment_id: str) -> bool:
    """Whether erasing the deployment needs a second person's word."""
    found = services.find(actor, Permission.ERASE_WIDE, deployment_id)
    return services.accounts.approval_needed(actor, found.workspace_id)


def ask_approval(
    services: Services, actor: Actor, workspace_id: str, deployment_id: str, token: str
) -> Approval:
    """Ask a second person to agree to the plan with that token; its counts go with it.

    Raises ConfirmationError for what is no token of a plan to erase this deployment, or too old.
    """
    found = services.find(actor, Permission.ERASE_WIDE, deployment_id)
    services.same_workspace(found, workspace_id)
    asked = {**_asked(ErasureScope(RequestKind.DEPLOYMENT)), "confirm": token}
    config = services.deployments.config_of(found.id)
    counted = erasing.plan_erasure(config, asked, offline=True)
    return services.accounts.ask_approval(
        actor,
        workspace_id,
        ERASE_DEPLOYMENT,
        token,
        deployment_id=found.id,
        tenants=counted.tenants,
        sessions=counted.sessions,
    )


@dataclass(frozen=True, slots=True)
class Agreed:
    """A plan to which a second person agreed and that was not used.

    ``token`` confirms the erasure. Where the reach has grown since, ``outgrown`` says how, and the
    erasure would be refused: another plan has to be agreed to.
    """

    token: str = ""
    outgrown: str = ""


def agreed(services: Services, actor: Actor, deployment_id: str) -> Agreed:
    """The plan to erase the deployment that a second person agreed to, the latest that holds."""
    found = services.find(actor, Permission.ERASE_WIDE, deployment_id)
    now, outgrown = services.now(), ""
    for item in services.accounts.list_approvals(actor, found.workspace_id):
        if item.operation != ERASE_DEPLOYMENT or item.deployment_id != found.id:
            continue
        if not item.usable(actor.person, now):
            continue
        asked = {**_asked(ErasureScope(RequestKind.DEPLOYMENT)), "confirm": item.plan}
        config = services.deployments.config_of(found.id)
        try:
            erasing.plan_erasure(config, {**asked, "agreed": "yes"}, offline=True)
        except ConfirmationError as error:
            outgrown = outgrown or error.message
            continue
        return Agreed(item.plan)
    return Agreed(outgrown=outgrown)


def erase(
    services: Services,
    actor: Actor,
    deployment_id: str,
    scope: ErasureScope,
    *,
    confirm: str,
    reasons: Reasons,
) -> ErasureResult:
    """Erase and certify. ``confirm`` is the plan's token; a session needs none.

    Raises ConfirmationError, ApprovalNeededError and what an erasure raises.
    """
    found = services.find(actor, _permission(scope), deployment_id)
    config = services.deployments.config_of(found.id)
    asked = _asked(scope) | {
        "requester": requester(actor),
        "reference": reasons.reference,
        "legal_basis": reasons.legal_basis,
        "confirm": confirm,
    }
    approval = None
    if scope.kind is RequestKind.DEPLOYMENT:
        approval = services.accounts.take_approval(
            actor, found.workspace_id, ERASE_DEPLOYMENT, confirm, deployment_id=found.id
        )
        if approval is not None:
            # Two people have agreed to it; until then the token may have become too old. Its count
            # still has to hold.
            asked["agreed"] = "yes"
            asked["id"] = _erasure_id(approval)
    try:
        done = erasing.erase(config, asked, offline=True)
    except Exception:
        if approval is not None and not _began(config, asked["id"]):
            services.accounts.give_back_approval(approval)
        raise
    if scope.kind is not RequestKind.SESSION:
        whole = scope.kind is RequestKind.DEPLOYMENT
        _forget(services, found.id, None if whole else {item.tenant_ref for item in done.erased})
    return done


def listed(
    services: Services, actor: Actor, deployment_id: str, *, reference: str = ""
) -> list[ErasureRow]:
    """The deployment's erasures, those under way first, then the latest first."""
    found = services.find(actor, Permission.CERTIFICATES, deployment_id)
    config = services.deployments.config_of(found.id)
    jobs = [_job_row(job) for job in _jobs(config) if job.state is not JobState.CERTIFIED]
    certified = [_statement_row(item) for item in _archive(config).statements()]
    rows = [*jobs, *reversed(certified)]
    return [row for row in rows if reference in ("", row.reference)]


def status(services: Services, actor: Actor, deployment_id: str, erasure_id: str) -> ErasureStatus:
    """How far one erasure has come. Raises ErasureNotFoundError."""
    found = services.find(actor, Permission.CERTIFICATES, deployment_id)
    config = services.deployments.config_of(found.id)
    job = next((item for item in _jobs(config) if item.id == erasure_id), None)
    statement = next(
        (item for item in _archive(config).statements() if item.id == erasure_id), None
    )
    if statement is not None:
        row = _statement_row(statement)
    elif job is not None:
        row = _job_row(job)
    else:
        raise ErasureNotFoundError("there is no such erasure")
    made = [erasure_id] * (statement is not None)
    if job is not None:
        made += [f"{erasure_id}-{number + 1}" for number in range(job.addenda)]
    steps: Sequence[tuple[str, str]] = (
        [(step.name, step.at) for step in job.steps] if job is not None else []
    )
    return ErasureStatus(
        row, tuple(steps), tuple(job.unconfirmed) if job is not None else (), tuple(made)
    )


def _permission(scope: ErasureScope) -> Permission:
    wide = scope.kind is RequestKind.DEPLOYMENT
    return Permission.ERASE_WIDE if wide else Permission.ERASE


def _asked(scope: ErasureScope) -> dict[str, str]:
    named = {"kind": scope.kind.value, "tenant": scope.tenant, "session": scope.session}
    return {name: value for name, value in named.items() if value}


def _forget(services: Services, deployment_id: str, refs: set[str] | None) -> None:
    """Forget what was said of tenants. Their keys are gone, so a failure keeps no opening back."""
    try:
        services.deployments.tenants.forget(deployment_id, refs)
    except Exception:
        _log.exception("what was said of erased tenants of %s is still kept", deployment_id)


def _erasure_id(approval: Approval) -> str:
    """One approval is for one erasure, whatever becomes of whoever asked."""
    return sha256(f"erasure of {approval.id}".encode()).hexdigest()[: 2 * ID_BYTES]


def _began(config: KvrunConfig, erasure_id: str) -> bool:
    """Whether the erasure is on its way; yes where nobody can tell."""
    try:
        return any(job.id == erasure_id for job in _jobs(config))
    except KvrunError:
        return True


def _jobs(config: KvrunConfig) -> list[Job]:
    folder = config.layout.erasure / "jobs"
    return list(JobStore(folder).jobs()) if folder.is_dir() else []


def _archive(config: KvrunConfig) -> CertificateArchive:
    return CertificateArchive(certificates_folder(config))


def _statement_row(item: ErasureStatement) -> ErasureRow:
    return ErasureRow(
        id=item.id,
        state=JobState.CERTIFIED.value,
        kind=item.request.kind.value,
        requested_at=item.request.requested_at,
        issued_at=item.issued_at,
        reference=item.request.reference,
        claim_class=item.claim_class.value if item.claim_class else "",
        keys=len(item.keys),
    )


def _job_row(job: Job) -> ErasureRow:
    return ErasureRow(
        id=job.id,
        state=job.state.value,
        kind=job.kind.value,
        requested_at=job.steps[0].at if job.steps else "",
        issued_at="",
        reference=job.reference,
        claim_class="",
        keys=len(job.keys),
    )
