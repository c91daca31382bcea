"""From a finished job to what its certificate states. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvrun import __version__
from kvrun.audit.record import format_time
from kvrun.erasure.certificate import (
    DestroyedKeyEntry,
    ErasureStatement,
    GpuEntry,
    Request,
    RequestKind,
    Scope,
    SnapshotRetention,
    Software,
    complete_after,
)
from kvrun.erasure.job import Job
from kvrun.keys.filesystem import ClaimClass


@dataclass(frozen=True, slots=True)
class StatementFacts:
    """What a deployment says of itself in every certificate.

    ``declared``: the operator said how long snapshots of the key root are kept.
    """

    claim: ClaimClass
    retention: SnapshotRetention
    declared: bool
    policy_revision: str
    log_id: str


def statement_of(
    job: Job, facts: StatementFacts, *, certificate_id: str, issued_at: float
) -> ErasureStatement:
    """The statement of a job that was proven. ``issued_at`` in seconds since 1970."""
    if job.children:
        return _parent_statement(job, facts, issued_at)
    held = bool(job.keys) or any(tier.blocks for tier in job.tiers)
    claim = facts.claim if job.keys else None
    destroyed_at = job.destroyed_at or issued_at
    retention = facts.retention if job.keys else SnapshotRetention()
    return ErasureStatement(
        id=certificate_id,
        issued_at=format_time(issued_at),
        request=Request(
            id=job.id,
            kind=job.kind,
            requester=job.requester,
            reference=job.reference,
            legal_basis=job.legal_basis,
            requested_at=format_time(job.requested_at),
        ),
        scope=Scope(
            workspace=job.workspace, deployment=job.deployment, commitments=sorted(job.commitments)
        ),
        keys=[
            DestroyedKeyEntry(
                key_id=key.key_id,
                generation=key.generation,
                session_ref=key.session_ref,
                tenant_ref=key.tenant_ref,
            )
            for key in job.keys
        ],
        root=job.root if job.keys else None,
        tiers=job.tiers,
        gpu=job.pages,
        verification=job.checks,
        claim_class=claim,
        complete_after=complete_after(destroyed_at, retention),
        snapshot_retention_days=retention,
        exclusions=exclusions(claim, job.remarks, declared=facts.declared) if held else job.remarks,
        unacknowledged=job.unconfirmed,
        steps=job.steps,
        software=Software(version=__version__),
        policy_revision=facts.policy_revision,
        log=facts.log_id,
    )


def exclusions(claim: ClaimClass | None, notes: Sequence[str] = (), *, declared: bool) -> list[str]:
    """What an erasure of this class does not cover, in plain words."""
    found = [
        "Prompts and answers that applications, gateways' clients or the model's operator keep"
        " themselves: they are no KV cache.",
        "Text of the same person in other sessions, tenants or deployments than those named here.",
        *notes,
    ]
    if claim is ClaimClass.DEVICE:
        found.append(
            "Copies of the key root itself: a snapshot or image of the machine taken before the"
            " erasure opens what it holds until it is deleted (see complete_after), and a drive"
            " may keep overwritten sectors below the filesystem."
        )
        if not declared:
            found.append(
                "Snapshots and backups of the key root of which the operator said nothing:"
                " complete_after takes it that there are none."
            )
    elif claim is ClaimClass.LOGICAL:
        found.append(
            "The medium under the key root: its filesystem, or snapshots of the system that holds"
            " it, may keep the destroyed keys, so they may be recoverable from there."
        )
    elif claim is ClaimClass.CRYPTOGRAPHIC:
        found.append(
            "Images of the running machine's memory taken before the erasure (see complete_after)."
        )
    return found


_GOES_ON = (RequestKind.WORKSPACE, RequestKind.ACCOUNT, RequestKind.TENANTS)


def _parent_statement(job: Job, facts: StatementFacts, issued_at: float) -> ErasureStatement:
    """The statement over several deployments' own certificates."""
    return ErasureStatement(
        id=job.id,
        issued_at=format_time(issued_at),
        request=Request(
            id=job.id,
            kind=job.kind,
            requester=job.requester,
            reference=job.reference,
            legal_basis=job.legal_basis,
            requested_at=format_time(job.requested_at),
        ),
        scope=Scope(
            # An account is in no workspace.
            workspace="" if job.kind is RequestKind.ACCOUNT else job.workspace,
            commitments=sorted(job.commitments),
        ),
        keys=[],
        tiers=[],
        gpu=GpuEntry(),
        verification=[],
        claim_class=None,
        complete_after=format_time(issued_at),
        snapshot_retention_days=SnapshotRetention(),
        exclusions=[
            "What each deployment's own certificate excludes.",
            *(
                ["Keys that were made after a deployment was erased, where it goes on serving."]
                if job.kind in _GOES_ON
                else []
            ),
        ],
        steps=[],
        children=sorted(job.children, key=lambda child: (child.deployment, child.certificate_id)),
        software=Software(version=__version__),
        policy_revision=facts.policy_revision,
        log=facts.log_id,
    )
