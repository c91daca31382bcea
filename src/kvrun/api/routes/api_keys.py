"""API keys: for programs that serve requests, erase, read the log or administer."""

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query, status
from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvrun.accounts.actor import Scope
from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import ActorNow, ItemId, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, Page, cut

router = APIRouter(tags=["API keys"])
_KEYS = "/workspaces/{workspace_id}/api-keys"
_DEFAULT_OVERLAP_S = 7 * 86_400


class KeyView(BaseModel):
    """An API key without its secret. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    workspace_id: str
    deployment_id: str | None = Field(description="It is good for this deployment only.")
    name: str
    scopes: list[Scope]
    user_id: str | None = Field(description="The person that holds it.")
    service_account_id: str | None = Field(description="The service account that holds it.")
    person_id: str = Field(description="Who made it.")
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    active: bool

    @field_validator("scopes", mode="before")
    @classmethod
    def _in_order(cls, value: Iterable[Scope]) -> list[Scope]:
        return sorted(value)


class NewKey(BaseModel):
    """An API key and its secret."""

    key: KeyView
    secret: str = Field(description="Shown this once; only its hash is kept.")


class KeyAsked(BaseModel):
    """An API key to make."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    scopes: list[Scope] = Field(min_length=1, max_length=8)
    deployment_id: str | None = Field(default=None, max_length=128)
    expires_at: int | None = Field(
        default=None, ge=0, le=2**40, description="Seconds since 1970; unset: it does not expire."
    )
    service_account_id: str | None = Field(
        default=None, max_length=64, description="Unset: it is the caller's own."
    )


class RotationAsked(BaseModel):
    """How a key is replaced."""

    model_config = ConfigDict(extra="forbid")

    overlap_s: int = Field(
        default=_DEFAULT_OVERLAP_S,
        ge=0,
        le=90 * 86_400,
        description="For so long the old key is valid beside the new one.",
    )


@router.get(_KEYS, summary="List API keys")
def list_api_keys(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    inactive: Annotated[bool, Query(description="Revoked and expired ones too.")] = True,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[KeyView]:
    """By name, newest first, without their secrets."""
    found = services.accounts.list_keys(actor, workspace_id)
    items, after = cut([key for key in found if inactive or key.active], limit, cursor)
    return Page(items=[KeyView.model_validate(item) for item in items], next=after)


@router.post(_KEYS, summary="Make an API key", status_code=status.HTTP_201_CREATED)
def create_api_key(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: KeyAsked
) -> NewKey:
    """The secret is in this answer and nowhere else. Gateways know the key within a second."""
    if asked.deployment_id is not None:
        found = services.find(actor, Permission.KEYS, asked.deployment_id)
        services.same_workspace(found, workspace_id)
    record, secret = services.accounts.create_key(
        actor,
        workspace_id,
        asked.name,
        asked.scopes,
        deployment_id=asked.deployment_id,
        expires_at=asked.expires_at,
        service_account_id=asked.service_account_id,
    )
    return NewKey(key=KeyView.model_validate(record), secret=secret)


@router.post(_KEYS + "/{key_id}/rotate", summary="Replace an API key", status_code=201)
def rotate_api_key(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    key_id: ItemId,
    asked: RotationAsked,
) -> NewKey:
    """A successor with the same name and scopes; the old one ends after the overlap."""
    record, secret = services.accounts.rotate_key(
        actor, workspace_id, key_id, overlap_s=asked.overlap_s
    )
    return NewKey(key=KeyView.model_validate(record), secret=secret)


@router.delete(_KEYS + "/{key_id}", summary="Revoke an API key")
def revoke_api_key(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, key_id: ItemId
) -> KeyView:
    """It ends now: here at once, at gateways within a second or two."""
    return KeyView.model_validate(services.accounts.revoke_key(actor, workspace_id, key_id))
