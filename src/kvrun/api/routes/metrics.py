"""The control plane's metrics in Prometheus's text format."""

from fastapi import APIRouter, Response

from kvrun.accounts.permissions import Permission, may
from kvrun.api.dependencies import ActorNow, ServicesNow
from kvrun.deployments.metrics import DeploymentMetrics
from kvrun.telemetry.exposition import CONTENT_TYPE_LATEST, render

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
def metrics(actor: ActorNow, services: ServicesNow) -> Response:
    """Of the deployments that whoever asks may see."""
    shown = [
        item
        for item in services.deployments.list(deleted=False)
        if may(actor, Permission.VIEW, item.workspace_id, item.id)
    ]
    text = render(DeploymentMetrics(services.deployments, shown))
    return Response(text, media_type=CONTENT_TYPE_LATEST)
