"""A deployment's audit log: verdict, records, segments. Who reads it is on record first."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow
from kvrun.api.paging import Limit
from kvrun.deployments.audit_view import RecordFilter

router = APIRouter(tags=["audit log"])
_AUDIT = "/deployments/{deployment_id}/audit"
_Text = Annotated[str, Query(max_length=200)]
_Log = Annotated[
    str, Query(max_length=200, description="One of the logs listed; the latest, unless named.")
]


class BannerView(BaseModel):
    """The verdict on one log."""

    model_config = ConfigDict(from_attributes=True)

    log: str
    text: str = Field(description="The verdict as a sentence.")
    verified_up_to: int
    at: float | None
    newer_records: int | None = Field(description="Null where the instance cannot be asked.")
    key_id: str
    witnesses: dict[str, int]
    alert: str
    retired: str


class SegmentView(BaseModel):
    """A file of the collected log."""

    model_config = ConfigDict(from_attributes=True)

    log: str = Field(description="Which log it is of; several may have a file of its name.")
    name: str
    first: int | None = Field(description="A segment's first record; null for other files.")
    size_bytes: int


class LogView(BaseModel):
    """A deployment's log."""

    banners: list[BannerView]
    segments: list[SegmentView]
    more_segments: bool = Field(description="There are more; see Storage.")
    produces: str = Field(description="What the engine can and cannot produce.")
    collectable: bool


class RecordView(BaseModel):
    """A record, without what it leaves out."""

    model_config = ConfigDict(from_attributes=True)

    v: int
    log: str
    epoch: int
    seq: int
    ts: str
    event: str
    outcome: str
    prev: str
    workspace: str
    deployment: str
    request_id: str
    tenant_ref: str
    session_ref: str
    tier: str
    tier_to: str
    blocks: int
    blocks_root: str
    bytes: int
    tokens: int
    lost: int
    key_id: str
    digest: str
    policy_revision: str
    reason: str


class RecordsView(BaseModel):
    """Records, newest first. A page may be short, or empty, and still have a next one."""

    items: list[RecordView]
    next: str | None = None


class CollectedLogView(BaseModel):
    """What came of one log."""

    source: str
    outcome: str
    log: str
    size: int = Field(description="Records that are verified now.")
    new_records: int
    stored_size: int
    alert: str
    message: str


class CollectionView(BaseModel):
    """What a collection did."""

    logs: list[CollectedLogView]
    findings: list[str]


@router.get(_AUDIT, summary="See the verdict on a deployment's log")
def get_audit(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, limit: Limit = 200
) -> LogView:
    """Up to which record it is verified, who witnessed that, and its files."""
    found = services.find(actor, Permission.AUDIT_READ, deployment_id)
    seen = services.audit.audit(found.id)
    return LogView(
        banners=[BannerView.model_validate(item) for item in seen.banners],
        segments=[SegmentView.model_validate(item) for item in seen.segments[:limit]],
        more_segments=len(seen.segments) > limit,
        produces=seen.produces,
        collectable=seen.collectable,
    )


@router.get(_AUDIT + "/records", summary="Read a deployment's log")
def list_records(
    services: ServicesNow,
    actor: ActorNow,
    deployment_id: DeploymentId,
    log: _Log = "",
    event: _Text = "",
    outcome: _Text = "",
    tenant_ref: _Text = "",
    session_ref: _Text = "",
    request_id: _Text = "",
    since: Annotated[float | None, Query(ge=0, le=2**40)] = None,
    until: Annotated[float | None, Query(ge=0, le=2**40)] = None,
    limit: Limit = 100,
    cursor: Annotated[str, Query(max_length=500)] = "",
) -> RecordsView:
    """Collected records, newest first. The reading is itself on record (`log_read`)."""
    found = services.read_log(actor, deployment_id, "records")
    wanted = RecordFilter(
        event=event,
        outcome=outcome,
        tenant_ref=tenant_ref,
        session_ref=session_ref,
        request_id=request_id,
        since=since,
        until=until,
    )
    page = services.audit.records(found.id, wanted, cursor, log=log, limit=limit)
    return RecordsView(
        items=[RecordView.model_validate(item) for item in page.records], next=page.cursor or None
    )


@router.post(_AUDIT + "/collect", summary="Collect a deployment's log now")
def collect_now(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> CollectionView:
    """Verifies and stores what is new. A log that is not what is remembered raises an alert."""
    found = services.find(actor, Permission.AUDIT_READ, deployment_id)
    report = services.audit.collect_now(found.id)
    return CollectionView(
        logs=[
            CollectedLogView(
                source=item.source,
                outcome=item.outcome.value,
                log=item.log,
                size=item.size,
                new_records=item.new_records,
                stored_size=item.stored_size,
                alert=item.alert,
                message=item.message,
            )
            for item in report.logs
        ],
        findings=[item.message for item in report.findings],
    )


@router.get(
    _AUDIT + "/segments/{name:path}",
    summary="Download a file of a deployment's log",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The file."}},
)
def get_segment(
    services: ServicesNow,
    actor: ActorNow,
    deployment_id: DeploymentId,
    name: str,
    log: _Log = "",
) -> Response:
    """As the instance wrote and signed it. The reading is on record (`log_read`)."""
    found = services.read_log(actor, deployment_id, "a segment")
    data = services.audit.segment(found.id, name, log=log)
    last = name.rpartition("/")[2]
    return Response(data, media_type="application/octet-stream", headers=attachment(last))
