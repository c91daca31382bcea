"""Logins on command lines: a code for a token, which there are, and ending one.

The page on which a person lets a command line in is the console's ``/login``.
"""

from fastapi import APIRouter, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.api.dependencies import ActorNow, ItemId, ServicesNow
from kvrun.api.paging import Cursor, Limit, Page, cut

router = APIRouter(prefix="/logins", tags=["sign-in"])


class LoginCode(BaseModel):
    """What a command line has of a person who let it in."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(min_length=1, max_length=64, description="From the console's page.")
    verifier: str = Field(
        min_length=43,
        max_length=128,
        description="The PKCE verifier whose S256 challenge the page was opened with.",
    )


class NewLogin(BaseModel):
    """A login. Times are seconds since 1970."""

    token: str = Field(description="For `Authorization: Bearer`; it is in this answer only.")
    user_id: str
    name: str
    expires_at: int


class LoginView(BaseModel):
    """A command line on which one is logged in. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    created_at: int
    seen_at: int
    expires_at: int


@router.post("", summary="Log a command line in", status_code=status.HTTP_201_CREATED)
def finish_login(services: ServicesNow, asked: LoginCode) -> NewLogin:
    """With the code that the console's page `/login` gave; it works once, for five minutes."""
    opened = services.accounts.finish_login(asked.code, asked.verifier)
    actor = services.accounts.actor_of_login(opened.token)
    return NewLogin(
        token=opened.token, user_id=actor.id, name=actor.name, expires_at=opened.expires_at
    )


@router.get("", summary="List one's logins on command lines")
def list_logins(
    services: ServicesNow, actor: ActorNow, limit: Limit = 50, cursor: Cursor = ""
) -> Page[LoginView]:
    """For people; the latest first."""
    items, after = cut(services.accounts.list_logins(actor), limit, cursor)
    return Page(items=[LoginView.model_validate(item) for item in items], next=after)


@router.delete(
    "/{login_id}", summary="End a login on a command line", status_code=status.HTTP_204_NO_CONTENT
)
def end_login(services: ServicesNow, actor: ActorNow, login_id: ItemId) -> None:
    """One of one's own, at once."""
    services.accounts.end_login(actor, login_id)
