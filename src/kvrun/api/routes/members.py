"""People in a workspace, and service accounts."""

from fastapi import APIRouter, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.actor import Role
from kvrun.api.dependencies import ActorNow, ItemId, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, Page, cut

router = APIRouter(tags=["members"])
_MEMBERS = "/workspaces/{workspace_id}/members"
_SERVICES = "/workspaces/{workspace_id}/service-accounts"


class MemberView(BaseModel):
    """A person in a workspace. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    user_id: str
    email: str
    name: str
    role: Role
    from_group: bool = Field(description="The role comes from a group of the identity provider.")
    added_at: int
    last_sign_in_at: int | None
    signed_in: bool = Field(description="False for who was invited and never came.")


class MemberAsked(BaseModel):
    """Somebody to let in."""

    model_config = ConfigDict(extra="forbid")

    email: str = Field(min_length=3, max_length=254)
    role: Role


class RoleAsked(BaseModel):
    """Another role."""

    model_config = ConfigDict(extra="forbid")

    role: Role


class ServiceAccountView(BaseModel):
    """A program's identity. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    workspace_id: str
    name: str
    role: Role
    created_at: int
    deleted_at: int | None


class ServiceAccountAsked(BaseModel):
    """A service account to make."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    role: Role = Field(description="Any but owner.")


@router.get(_MEMBERS, summary="List members")
def list_members(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[MemberView]:
    """Everybody with a role in the workspace, by e-mail address."""
    items, after = cut(services.accounts.list_members(actor, workspace_id), limit, cursor)
    return Page(items=[MemberView.model_validate(item) for item in items], next=after)


@router.post(_MEMBERS, summary="Add a member", status_code=status.HTTP_201_CREATED)
def add_member(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: MemberAsked
) -> MemberView:
    """Somebody new is let in at the first sign-in with that address."""
    added = services.accounts.add_member(actor, workspace_id, asked.email, asked.role)
    return MemberView.model_validate(added)


@router.patch(_MEMBERS + "/{user_id}", summary="Change a member's role")
def set_member_role(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    user_id: ItemId,
    asked: RoleAsked,
) -> MemberView:
    """It counts from the member's next request on. Only owners give or take the role owner."""
    changed = services.accounts.set_role(actor, workspace_id, user_id, asked.role)
    return MemberView.model_validate(changed)


@router.delete(
    _MEMBERS + "/{user_id}", summary="Remove a member", status_code=status.HTTP_204_NO_CONTENT
)
def remove_member(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, user_id: ItemId
) -> None:
    """Their API keys of the workspace are revoked. The last owner stays."""
    services.accounts.remove_member(actor, workspace_id, user_id)


@router.get(_SERVICES, summary="List service accounts")
def list_service_accounts(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[ServiceAccountView]:
    """Deleted ones included, by name."""
    found = services.accounts.list_service_accounts(actor, workspace_id)
    items, after = cut(found, limit, cursor)
    return Page(items=[ServiceAccountView.model_validate(item) for item in items], next=after)


@router.post(_SERVICES, summary="Make a service account", status_code=status.HTTP_201_CREATED)
def create_service_account(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: ServiceAccountAsked
) -> ServiceAccountView:
    """It acts through API keys that are made for it."""
    made = services.accounts.create_service_account(actor, workspace_id, asked.name, asked.role)
    return ServiceAccountView.model_validate(made)


@router.delete(
    _SERVICES + "/{account_id}",
    summary="Delete a service account",
    status_code=status.HTTP_204_NO_CONTENT,
)
def delete_service_account(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, account_id: ItemId
) -> None:
    """Its API keys end at once."""
    services.accounts.delete_service_account(actor, workspace_id, account_id)
