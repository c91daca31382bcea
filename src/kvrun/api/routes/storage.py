"""A workspace's Storage: browsed and downloaded. Sealed blocks are ciphertext here too."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from kvrun.api import storage
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import ActorNow, ServicesNow, WorkspaceId
from kvrun.api.paging import Limit

router = APIRouter(tags=["storage"])
_Key = Annotated[str, Query(max_length=1000, description="Such as `deployments/ID/audit`.")]


class EntryView(BaseModel):
    """A folder or an object."""

    model_config = ConfigDict(from_attributes=True)

    key: str
    name: str
    folder: bool
    size_bytes: int
    note: str = Field(description="What it is, and who could read it.")


class StorageView(BaseModel):
    """Some entries of a folder."""

    prefix: str
    items: list[EntryView]
    next: str | None = None


@router.get("/workspaces/{workspace_id}/storage", summary="Browse a workspace's Storage")
def browse_storage(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    prefix: _Key = "",
    limit: Limit = 200,
    cursor: Annotated[str, Query(max_length=1000)] = "",
) -> StorageView:
    """The entries directly below a folder, by name."""
    page = storage.browse(services, actor, workspace_id, prefix, cursor, limit=limit)
    return StorageView(
        prefix=page.prefix,
        items=[EntryView.model_validate(item) for item in page.entries],
        next=page.cursor or None,
    )


@router.get(
    "/workspaces/{workspace_id}/storage/object",
    summary="Download an object from a workspace's Storage",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The object."}},
)
def get_object(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, key: _Key
) -> Response:
    """A log's file needs the permission `audit_read` and is on record; a certificate needs
    `certificates`; a sealed block, which is ciphertext, `view`."""
    data = storage.read(services, actor, workspace_id, key)
    headers = attachment(key.rpartition("/")[2])
    return Response(data, media_type="application/octet-stream", headers=headers)
