"""Alerts: logs that are not what is remembered of them, and uses of the owner's link."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from kvrun.api import alerts
from kvrun.api.alerts import AlertEntry
from kvrun.api.dependencies import ActorNow, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, PartialPage, cut, unread

router = APIRouter(tags=["alerts"])
_Reason = Annotated[str, Field(min_length=1, max_length=300, pattern=r"\S")]


class AlertView(BaseModel):
    """An alert. Times are seconds since 1970."""

    id: str
    deployment_id: str = Field(description="Empty: it is about the control plane itself.")
    deployment_name: str
    kind: str
    log: str
    seq: int
    detail: str
    raised_at: float
    stops: bool = Field(description="Collection of the log stopped.")
    count: int
    files: list[str] = Field(description="The evidence that is kept.")
    acknowledged_at: float | None
    acknowledged_because: str

    @classmethod
    def of(cls, entry: AlertEntry) -> "AlertView":
        """As the API shows it."""
        alert = entry.alert
        return cls(
            id=alert.id,
            deployment_id=entry.deployment_id,
            deployment_name=entry.deployment_name,
            kind=alert.kind.value,
            log=alert.log,
            seq=alert.seq,
            detail=alert.detail,
            raised_at=alert.raised_at,
            stops=alert.stops,
            count=alert.count,
            files=alert.files,
            acknowledged_at=alert.acknowledged_at,
            acknowledged_because=alert.acknowledged_because,
        )


class Acknowledgement(BaseModel):
    """That a person has seen the alerts of a log, and why it may go on."""

    model_config = ConfigDict(extra="forbid")

    deployment_id: str = Field(default="", max_length=128, description="Empty: the control plane.")
    log: str = Field(min_length=1, max_length=300, description="As the alert names it.")
    reason: _Reason = Field(description="It is put on record.")
    start_over: bool = Field(
        default=False, description="Collect the log as it is now as another history."
    )


@router.get("/workspaces/{workspace_id}/alerts", summary="List alerts")
def list_alerts(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    acknowledged: Annotated[bool, Query(description="Acknowledged ones too.")] = False,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> PartialPage[AlertView]:
    """Of every deployment of the workspace, the newest first; and of the control plane itself for
    those who may acknowledge them."""
    found = alerts.listed(services, actor, workspace_id, every=acknowledged)
    items, after = cut(found.entries, limit, cursor)
    shown = [AlertView.of(item) for item in items]
    return PartialPage(items=shown, next=after, problems=unread(found.problems))


@router.post("/workspaces/{workspace_id}/alerts/acknowledge", summary="Acknowledge alerts")
def acknowledge_alerts(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: Acknowledgement
) -> list[AlertView]:
    """All that wait about one log, so that its collection goes on. At most a few."""
    done = alerts.acknowledge(
        services,
        actor,
        workspace_id,
        deployment_id=asked.deployment_id,
        log=asked.log,
        reason=asked.reason,
        start_over=asked.start_over,
    )
    return [AlertView.of(item) for item in done[:200]]
