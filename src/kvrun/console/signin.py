"""Signing in and out."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.responses import RedirectResponse

from kvrun.accounts.errors import AccountsError, ForbiddenError, UnauthenticatedError
from kvrun.api import cookies
from kvrun.api.cookies import local_address
from kvrun.api.dependencies import ServicesNow, read_session
from kvrun.api.problems import request_id_of, status_of
from kvrun.api.routes.sign_in import end_session, sign_in_with_link
from kvrun.api.services import Services
from kvrun.console.desk import (
    SAID,
    ChangeNow,
    FormNow,
    base_of,
    desk_of,
    page_router,
    pages_of,
)
from kvrun.errors import KvrunError

router = page_router()
_Next = Annotated[str, Query(max_length=1000)]


@router.get("/")
def get_start(request: Request, services: ServicesNow) -> Response:
    """The workspace of whoever is signed in; the choice where there are several."""
    desk = desk_of(request, services)
    found = [item for item in services.accounts.list_workspaces(desk.actor) if not item.deleted_at]
    address = f"{base_of(found[0].id)}/deployments" if len(found) == 1 else "/workspaces"
    return RedirectResponse(address, status_code=303)


@router.get("/sign-in")
def get_sign_in(
    request: Request,
    services: ServicesNow,
    next: _Next = "/",  # noqa: A002
    said: str = "",
    token: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """The ways to sign in. The owner's link brings its ``token``; signing in stays a click, since
    something that only looks at a link must not use it up."""
    if read_session(request, services) is not None:
        return RedirectResponse(local_address(next), status_code=303)
    return _page(request, services, next, said=SAID.get(said, ""), token=token)


@router.post("/sign-in/owner")
def post_owner_link(request: Request, services: ServicesNow, form: FormNow) -> Response:
    """Sign in with the owner's one-time token."""
    back = local_address(form.values.get("next", "/"))
    answer = RedirectResponse(back, status_code=303)
    try:
        sign_in_with_link(request, answer, services, form.values.get("token", "").strip()[:200])
    except UnauthenticatedError as error:
        return _page(request, services, back, error=error)
    return answer


@router.post("/sign-out")
def post_sign_out(change: ChangeNow) -> Response:
    """Sign this browser out."""
    answer = RedirectResponse("/sign-in?said=signed-out", status_code=303)
    end_session(change.desk.request, answer, change.desk.services)
    return answer


def failed(request: Request, error: KvrunError | RequestValidationError) -> Response:
    """What went wrong on the way to the identity provider and back, and what to do next."""
    message, hint, status = "the identity provider's answer cannot be read", "", 422
    if isinstance(error, KvrunError):
        message, hint, status = error.message, error.hint or "", status_of(error)
    values = {
        "message": message[:1].upper() + message[1:],
        "hint": hint,
        "no_role": isinstance(error, ForbiddenError),
        "request_id": request_id_of(request),
    }
    answer = pages_of(request).answer("sign_in_failed.html", values, status=status)
    services: Services = request.app.state.services
    cookies.drop_flow(answer, services.settings)
    return answer


def _page(
    request: Request,
    services: Services,
    back: str,
    *,
    said: str = "",
    token: str = "",
    error: AccountsError | None = None,
) -> Response:
    issuer = services.settings.oidc_issuer if services.oidc is not None else None
    values = {
        "oidc": urlsplit(issuer).hostname if issuer else "",
        "next": local_address(back),
        "said": said,
        "token": token,
        "error": error.message[:1].upper() + error.message[1:] if error else "",
        "hint": (error.hint or "") if error else "",
    }
    return pages_of(request).answer("sign_in.html", values, status=401 if error else 200)
