"""The cookies of a browser that is signed in, or on its way."""

import re
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from kvrun.accounts.oidc_sign_ins import FLOW_LASTS_S
from kvrun.config.control import ControlSection

_SESSION, _FLOW, _BACK = "kvrun", "kvrun-flow", "kvrun-back"
_LOCAL = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")


def local_address(given: str) -> str:
    """An address of ours, from what anybody may have written."""
    return given if len(given) <= 1000 and _LOCAL.fullmatch(given) else "/"


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


def put_flow(response: Response, settings: ControlSection, token: str, back: str) -> None:
    """Bind a sign-in at the identity provider to this browser, which then goes on to ``back``."""
    _put(response, settings, _FLOW, token, FLOW_LASTS_S)
    _put(response, settings, _BACK, quote(local_address(back), safe="/"), FLOW_LASTS_S)


def flow_back(request: Request, settings: ControlSection) -> str:
    """Where the browser was when it began; an address of ours."""
    return local_address(unquote(request.cookies.get(_name(_BACK, settings), "/")))


def drop_flow(response: Response, settings: ControlSection) -> None:
    """Forget the binding."""
    for name in (_FLOW, _BACK):
        _put(response, settings, name, "", 0)


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
