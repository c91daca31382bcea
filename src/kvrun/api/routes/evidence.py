"""Evidence of a period for auditors: the controls as they stand, and bundles to take away."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission
from kvrun.api import evidence
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import ActorNow, DeploymentId, ItemId, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, Page, cut
from kvrun.evidence.controls import ControlEntry
from kvrun.evidence.export import Request
from kvrun.evidence.manifest import MAX_SAMPLE, MAX_SEED
from kvrun.evidence.period import parse_period

router = APIRouter(tags=["evidence"])
_DAY = r"^\d{4}-\d{2}-\d{2}$"
_Since = Annotated[str, Query(alias="from", pattern=_DAY, description="First day, UTC.")]
_Until = Annotated[
    str, Query(alias="to", pattern=_DAY, description="First day after the period, UTC.")
]


class EvidenceRequest(BaseModel):
    """Which bundle is wanted. Days are UTC; `to` is the first that is not part of the period."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    since: str = Field(alias="from", pattern=_DAY)
    until: str = Field(alias="to", pattern=_DAY)
    sample: int = Field(default=25, ge=0, le=MAX_SAMPLE, description="Records to draw.")
    seed: str = Field(
        default="1",
        max_length=MAX_SEED,
        pattern="^[ -~]*$",
        description="What the draw follows from; the auditor chooses it.",
    )
    full: bool = Field(default=False, description="Put the logs' segments themselves in.")

    def request(self) -> Request:
        """As it is carried out. Raises EvidenceError for a period that is none."""
        period = parse_period(self.since, self.until)
        return Request(period, sample=self.sample, seed=self.seed, full=self.full)


class EvidenceView(BaseModel):
    """A bundle and how far it is. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    workspace_id: str
    deployment_id: str = Field(description="Empty: of the whole workspace.")
    since: str
    until: str
    sample: int
    seed: str
    full: bool
    asked_by: str
    asked_at: float
    state: str = Field(description="running, done, failed or interrupted (ask again to go on).")
    what: str = Field(description="What is done now.")
    done: int
    steps: int
    error: str
    size_bytes: int
    ended_at: float | None


class ControlView(BaseModel):
    """One requirement of one framework, and whether the period has evidence for it."""

    model_config = ConfigDict(from_attributes=True)

    framework: str
    requirement: str
    title: str
    evidence: str
    state: str = Field(
        description="present, none_in_period, or not_known_now: Storage cannot be used."
    )
    counted: dict[str, int] = Field(
        description="What the state was judged by, as far as it is known."
    )
    files: list[str] = Field(description="What of a bundle it stands for.")
    command: str = Field(description="What checks it.")

    @classmethod
    def of(cls, entry: ControlEntry) -> "ControlView":
        """As the API shows it."""
        return cls.model_validate(entry)


class ControlsView(BaseModel):
    """The controls as they stand."""

    statement: str
    controls: list[ControlView]


@router.get("/workspaces/{workspace_id}/controls", summary="See what the evidence answers to")
def get_controls(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    since: _Since,
    until: _Until,
) -> ControlsView:
    """Framework, requirement and whether the period has evidence, by what was counted so far."""
    found = evidence.controls(services, actor, workspace_id, parse_period(since, until))
    return ControlsView(
        statement=found.statement, controls=[ControlView.of(item) for item in found.controls]
    )


@router.post(
    "/workspaces/{workspace_id}/evidence", status_code=202, summary="Make a workspace's evidence"
)
def start_evidence(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: EvidenceRequest
) -> EvidenceView:
    """Begins one bundle over all deployments; one is made at a time. It is on record first."""
    job = evidence.start(services, actor, workspace_id, asked.request())
    return EvidenceView.model_validate(job)


@router.post(
    "/deployments/{deployment_id}/evidence", status_code=202, summary="Make a deployment's evidence"
)
def start_deployment_evidence(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: EvidenceRequest
) -> EvidenceView:
    """Begins a bundle of this deployment alone. It is on record first."""
    found = services.find(actor, Permission.EVIDENCE, deployment_id)
    job = evidence.start(services, actor, found.workspace_id, asked.request(), found.id)
    return EvidenceView.model_validate(job)


@router.get("/workspaces/{workspace_id}/evidence", summary="List evidence")
def list_evidence(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[EvidenceView]:
    """Bundles of the last days, the newest first."""
    items, after = cut(evidence.listed(services, actor, workspace_id), limit, cursor)
    return Page(items=[EvidenceView.model_validate(item) for item in items], next=after)


@router.get("/workspaces/{workspace_id}/evidence/{evidence_id}", summary="See how far evidence is")
def get_evidence(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, evidence_id: ItemId
) -> EvidenceView:
    """Its state, and what is done now."""
    found = evidence.get(services, actor, workspace_id, evidence_id)
    return EvidenceView.model_validate(found)


@router.get(
    "/workspaces/{workspace_id}/evidence/{evidence_id}/bundle",
    summary="Download evidence",
    response_class=FileResponse,
    responses={200: {"content": {"application/zip": {}}, "description": "The bundle."}},
)
def get_bundle(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, evidence_id: ItemId
) -> Response:
    """Check it with `kvrun verify`. The reading is on record (`log_read`)."""
    job = evidence.get(services, actor, workspace_id, evidence_id)
    path = evidence.bundle(services, actor, workspace_id, evidence_id)
    name = f"evidence-{job.since}-{job.until}.zip"
    return FileResponse(path, media_type="application/zip", headers=attachment(name))


@router.get(
    "/workspaces/{workspace_id}/trust-anchor",
    summary="Download the trust anchor of evidence",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The anchor."}},
)
def get_evidence_anchor(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId
) -> Response:
    """Public keys of evidence, certificates and logs. Hand it over on another way than evidence."""
    data = evidence.anchor(services, actor, workspace_id)
    headers = attachment("trust-anchor.json")
    return Response(data, media_type="application/json", headers=headers)
