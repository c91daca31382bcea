"""Signing in and out, and who one is."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.actor import Actor, ActorKind, Role, Scope
from kvrun.accounts.errors import NotFoundError, SignInError
from kvrun.accounts.permissions import sees
from kvrun.accounts.records import SignIn
from kvrun.api import cookies
from kvrun.api.dependencies import ActorNow, ServicesNow, bearer_of, read_session
from kvrun.api.services import Services
from kvrun.errors import KvrunError


class _BrowserRoute(APIRoute):
    """A route that browsers are sent to. Where ``app.state.sign_in_failed`` makes pages, what goes
    wrong is said on one: a person waits there."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with its errors."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except (KvrunError, RequestValidationError) as error:
                page = getattr(request.app.state, "sign_in_failed", None)
                if page is None or "text/html" not in request.headers.get("accept", ""):
                    raise
                answer: Response = page(request, error)
                return answer

        return handler


router = APIRouter(tags=["sign-in"])
_browsers = APIRouter(route_class=_BrowserRoute)


class SignInMethods(BaseModel):
    """How people sign in here."""

    oidc: bool = Field(description="Through the identity provider.")
    owner_link: Literal[True] = Field(default=True, description="Once, with the owner's link.")


class OwnerLink(BaseModel):
    """The one-time token of the owner."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(min_length=1, max_length=200)


class Me(BaseModel):
    """Who the caller is."""

    id: str
    name: str
    kind: ActorKind
    roles: dict[str, Role] = Field(description="By workspace id.")
    scopes: list[Scope] | None = Field(description="Of the API key; null for people.")
    deployment_id: str | None = Field(description="The API key is good for this one only.")
    csrf_token: str | None = Field(
        default=None, description="For X-CSRF-Token; null for API keys, which need none."
    )


@router.get("/sign-in", summary="How to sign in")
def sign_in_methods(services: ServicesNow) -> SignInMethods:
    """For everybody."""
    return SignInMethods(oidc=services.oidc is not None)


@router.post("/sign-in/owner-link", summary="Sign in as the local owner")
def claim_owner_link(
    request: Request, response: Response, services: ServicesNow, asked: OwnerLink
) -> Me:
    """With the one-time token of `kvrun init` or `kvrun control owner-link`. It raises an alert."""
    return _me(services, sign_in_with_link(request, response, services, asked.token))


@_browsers.get(
    "/sign-in/oidc",
    summary="Sign in at the identity provider",
    status_code=status.HTTP_303_SEE_OTHER,
    response_class=RedirectResponse,
)
def start_oidc(
    services: ServicesNow,
    next: Annotated[  # noqa: A002
        str, Query(max_length=1000, description="The console's page to end at.")
    ] = "/",
) -> Response:
    """Sends the browser there. 404 where none is configured."""
    if services.oidc is None:
        raise NotFoundError(
            "no identity provider is configured", hint="control.oidc_issuer names one"
        )
    begun = services.accounts.begin_oidc(services.oidc)
    answer = RedirectResponse(begun.url, status_code=status.HTTP_303_SEE_OTHER)
    cookies.put_flow(answer, services.settings, begun.browser_token, next)
    return answer


@_browsers.get(
    "/sign-in/oidc/callback",
    summary="Come back from the identity provider",
    status_code=status.HTTP_303_SEE_OTHER,
    response_class=RedirectResponse,
)
def finish_oidc(
    request: Request,
    services: ServicesNow,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4096)] = "",
    iss: Annotated[str | None, Query(max_length=1000)] = None,
    error: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Only for the browser that was sent there. Ends at the page where it began."""
    if services.oidc is None:
        raise NotFoundError("no identity provider is configured")
    if error:
        raise SignInError("the identity provider did not sign anybody in", hint="Begin again.")
    opened = services.accounts.finish_oidc(
        services.oidc,
        cookies.flow_token(request, services.settings),
        state=state,
        code=code,
        issuer=iss,
        roles=services.settings.oidc_roles,
        first_workspace=services.first_workspace,
        previous=cookies.session_token(request, services.settings) or None,
    )
    back = cookies.flow_back(request, services.settings)
    answer = RedirectResponse(back, status_code=status.HTTP_303_SEE_OTHER)
    cookies.drop_flow(answer, services.settings)
    _put(answer, services, opened)
    return answer


router.include_router(_browsers)


@router.post("/sign-out", summary="Sign out", status_code=status.HTTP_204_NO_CONTENT)
def sign_out(
    request: Request,
    response: Response,
    services: ServicesNow,
    actor: ActorNow,
    everywhere: Annotated[
        bool, Query(description="In every browser and on every command line of the person.")
    ] = False,
) -> None:
    """Ends the browser's sign-in, or the command line's login."""
    if everywhere and actor.kind in (ActorKind.USER, ActorKind.LOCAL_OWNER):
        services.accounts.close_all_sign_ins(actor)
    if actor.login_expires_at is not None:
        services.accounts.close_sign_in(bearer_of(request))
    else:
        end_session(request, response, services)


@router.get("/me", summary="Who the caller is")
def get_me(request: Request, services: ServicesNow, actor: ActorNow) -> Me:
    """With the CSRF token that a signed-in browser sends along."""
    session = None if "authorization" in request.headers else read_session(request, services)
    return _view(actor, session.csrf_token if session is not None else None)


def sign_in_with_link(
    request: Request, response: Response, services: Services, token: str
) -> SignIn:
    """Sign a browser in with the owner's link. Raises UnauthenticatedError."""
    previous = cookies.session_token(request, services.settings) or None
    opened = services.accounts.claim_owner_link(token, previous=previous)
    _put(response, services, opened)
    return opened


def end_session(request: Request, response: Response, services: Services) -> None:
    """Sign a browser out."""
    token = cookies.session_token(request, services.settings)
    if token:
        services.accounts.close_sign_in(token)
    cookies.drop_session(response, services.settings)


def _put(response: Response, services: Services, opened: SignIn) -> None:
    lifetime_s = opened.expires_at - int(services.now())
    cookies.put_session(response, services.settings, opened.token, lifetime_s)


def _me(services: Services, opened: SignIn) -> Me:
    return _view(services.accounts.actor_of(opened.token), opened.csrf_token)


def _view(actor: Actor, csrf_token: str | None) -> Me:
    return Me(
        id=actor.id,
        name=actor.name,
        kind=actor.kind,
        roles={place: role for place, role in actor.roles.items() if sees(actor, place)},
        scopes=sorted(actor.scopes) if actor.scopes is not None else None,
        deployment_id=actor.deployment,
        csrf_token=csrf_token,
    )
