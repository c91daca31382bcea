"""Who is asking, through which credential, and what the routes work with."""

import hmac
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Path, Request, Security
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import ForbiddenError, UnauthenticatedError
from kvrun.accounts.logins import LOGIN_PREFIX
from kvrun.api.cookies import session_token
from kvrun.api.guard import SAFE_METHODS
from kvrun.api.services import Services

CSRF_HEADER = "X-CSRF-Token"
_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="apiKey",
    description="An API key of the control plane, or a person's login on a command line.",
)
_cookie = APIKeyCookie(
    name="kvrun",
    auto_error=False,
    scheme_name="session",
    description=f"A browser's sign-in (`__Host-kvrun` over TLS); changes need {CSRF_HEADER} too.",
)


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A signed-in browser. ``csrf_token`` goes into every form and request that changes things."""

    token: str
    actor: Actor
    csrf_token: str


def services_of(request: Request) -> Services:
    """The application's services."""
    return cast(Services, request.app.state.services)


ServicesNow = Annotated[Services, Depends(services_of)]


def read_session(
    request: Request, services: Services, *, note_use: bool = True
) -> BrowserSession | None:
    """The browser's sign-in; None where it has none, or one that is over.

    ``note_use`` off: what a page asks by itself does not prolong it.
    """
    token = session_token(request, services.settings)
    if not token:
        return None
    try:
        actor = services.accounts.actor_of(token, note_use=note_use)
    except UnauthenticatedError:
        return None
    return BrowserSession(token, actor, services.accounts.csrf_token(token))


def check_csrf(session: BrowserSession, given: str) -> None:
    """Refuse a change that did not come from one of our own pages. Raises ForbiddenError."""
    expected = session.csrf_token.encode()
    if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected):
        raise ForbiddenError(
            "the CSRF token is missing or is not this sign-in's",
            hint=f"Send csrf_token of GET /api/v1/me as {CSRF_HEADER}; reload the page.",
        )


def current_actor(
    request: Request,
    services: ServicesNow,
    key: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    _: Annotated[str | None, Security(_cookie)],
) -> Actor:
    """Who asks: the holder of the API key, the person who logged a command line in, else whoever
    signed in with this browser.

    A request with an ``Authorization`` header is judged by that alone. Raises
    UnauthenticatedError and ForbiddenError.
    """
    if "authorization" in request.headers:
        if key is None:
            raise UnauthenticatedError("the Authorization header holds no API key")
        if key.credentials.startswith(LOGIN_PREFIX):
            return services.accounts.actor_of_login(key.credentials)
        return services.accounts.authenticate_key(key.credentials)
    session = read_session(request, services)
    if session is None:
        raise UnauthenticatedError(
            "nobody is signed in", hint="Send Authorization: Bearer API_KEY, or sign in."
        )
    if request.method not in SAFE_METHODS:
        check_csrf(session, request.headers.get(CSRF_HEADER, ""))
    return session.actor


def bearer_of(request: Request) -> str:
    """The credential of the ``Authorization`` header that was taken; empty where there is none."""
    return request.headers.get("authorization", "").partition(" ")[2].strip()


ActorNow = Annotated[Actor, Depends(current_actor)]
_ID = r"^[A-Za-z0-9._~@:+-]+$"
WorkspaceId = Annotated[str, Path(max_length=128, pattern=_ID, description="The workspace's id.")]
DeploymentId = Annotated[str, Path(max_length=128, pattern=_ID, description="The deployment's id.")]
ItemId = Annotated[str, Path(max_length=128, pattern=_ID, description="Its id.")]
