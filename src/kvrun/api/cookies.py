"""The cookies of a browser that is signed in, or on its way."""

from starlette.requests import Request
from starlette.responses import Response

from kvrun.accounts.oidc_sign_ins import FLOW_LASTS_S
from kvrun.config.control import ControlSection

_SESSION, _FLOW = "kvrun", "kvrun-flow"


def session_token(request: Request, settings: ControlSection) -> str:
    """The token of the browser's sign-in; empty where it has none."""
    return request.cookies.get(_name(_SESSION, settings), "")


def put_session(response: Response, settings: ControlSection, token: str, lifetime_s: int) -> None:
    """Have the browser send the token from now on."""
    _put(response, settings, _SESSION, token, lifetime_s)


def drop_session(response: Response, settings: ControlSection) -> None:
    """Have the browser forget the token."""
    _put(response, settings, _SESSION, "", 0)


def flow_token(request: Request, settings: ControlSection) -> str:
    """What binds a sign-in at the identity provider to this browser."""
    return request.cookies.get(_name(_FLOW, settings), "")


def put_flow(response: Response, settings: ControlSection, token: str) -> None:
    """Bind a sign-in at the identity provider to this browser."""
    _put(response, settings, _FLOW, token, FLOW_LASTS_S)


def drop_flow(response: Response, settings: ControlSection) -> None:
    """Forget the binding."""
    _put(response, settings, _FLOW, "", 0)


def _put(
    response: Response, settings: ControlSection, name: str, value: str, lifetime_s: int
) -> None:
    response.set_cookie(
        _name(name, settings),
        value,
        max_age=max(0, lifetime_s),
        path="/",
        secure=settings.secure,
        httponly=True,
        # Lax: a link from a mail or from the identity provider finds its reader signed in.
        samesite="lax",
    )


def _name(name: str, settings: ControlSection) -> str:
    # Browsers take the prefix only over TLS; with it no other host or path can set the cookie.
    return f"__Host-{name}" if settings.secure else name
