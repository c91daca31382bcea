"""One request of a signed-in person: who asks, what they may do, and how the answer is made."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import UnauthenticatedError
from kvrun.accounts.permissions import Permission, may
from kvrun.accounts.records import Workspace
from kvrun.api import alerts
from kvrun.api.cookies import local_address
from kvrun.api.dependencies import BrowserSession, ServicesNow, check_csrf, read_session
from kvrun.api.problems import request_id_of, status_of
from kvrun.api.services import Services
from kvrun.console.forms import Form
from kvrun.console.pages import MenuItem, Pages
from kvrun.console.runs import Runs
from kvrun.deployments.model import Deployment
from kvrun.errors import KvrunError

SAID: Mapping[str, str] = {
    "created": "The deployment was made. Start it when you are ready.",
    "started": "It was asked to start. Its state is shown below.",
    "stopped": "It was asked to stop. Its state is shown below.",
    "restarted": "It was asked to restart. Its state is shown below.",
    "rebuilt": "A new instance was asked for; it starts warm from what is stored.",
    "drained": "It was asked to drain: no new requests; it stops when the last one is done.",
    "deleted": "Deleted. The log, the certificates and this record stay.",
    "collected": "Collected and verified.",
    "policy-look": "The repository is looked at within seconds, where the deployment runs.",
    "acknowledged": "Acknowledged. The reason is on record.",
    "member": "The member was added.",
    "role": "The role was changed.",
    "removed": "The member was removed; their API keys of this workspace are revoked.",
    "service": "The service account was made. Make an API key for it.",
    "service-deleted": "The service account and its keys are gone.",
    "revoked": "The key is revoked.",
    "login-ended": "That command line is logged out.",
    "workspace": "The workspace was made.",
    "detached": "The deployment is forgotten here. Whoever runs it keeps its keys and data.",
    "signed-out": "You are signed out.",
    "approval-asked": "A second person was asked. You can erase when they have agreed.",
    "approved": "You agreed. Whoever asked can erase now.",
    "finetune-deleted": "The weights are deleted. The evaluation stays on record.",
    "finetune-cancelled": "It stops after its current step.",
    "refused": "Refused. Nothing is erased.",
    "labelled": "It is said of this user from now on.",
}
"""What a page says after a change; the address names one of these, never a text."""

_MAX_FIELDS = 2000
"""The plan of one person's erasure has a field for each deployment."""


class SignInNeededError(UnauthenticatedError):
    """The page is for people who are signed in."""


@dataclass(frozen=True, slots=True)
class Desk:
    """A request of somebody who is signed in. Functions of ``services`` check what they may do."""

    request: Request
    services: Services
    session: BrowserSession
    pages: Pages

    @property
    def actor(self) -> Actor:
        """Who asks."""
        return self.session.actor

    @property
    def runs(self) -> Runs:
        """Erasures and deletions that pages follow."""
        return cast(Runs, self.request.app.state.console_runs)

    def may(
        self, permission: Permission, workspace_id: str, deployment_id: str | None = None
    ) -> bool:
        """Whether to offer something; what is offered is checked again when it is asked for."""
        return may(self.actor, permission, workspace_id, deployment_id)

    def workspace(self, workspace_id: str) -> Workspace:
        """The workspace. Raises NotFoundError or ForbiddenError."""
        return self.services.accounts.get_workspace(self.actor, workspace_id)

    def deployment(
        self, permission: Permission, workspace_id: str, deployment_id: str
    ) -> Deployment:
        """A deployment of this workspace with which the actor may do this.

        Raises NotFoundError or ForbiddenError.
        """
        found = self.services.find(self.actor, permission, deployment_id)
        self.services.same_workspace(found, workspace_id)
        return found

    def values(self, workspace: Workspace | None, nav: str = "") -> dict[str, object]:
        """What every template may use."""
        return {
            "me": self.actor,
            "csrf": self.session.csrf_token,
            "workspace": workspace,
            "workspaces": self.actor.roles,
            "base": base_of(workspace.id) if workspace else "",
            "menu": self._menu(workspace) if workspace else [],
            "nav": nav,
            "said": SAID.get(self.request.query_params.get("said", ""), ""),
        }

    def page(
        self,
        template: str,
        workspace: Workspace | None,
        nav: str,
        more: Mapping[str, object] | None = None,
        *,
        status: int = 200,
        **values: object,
    ) -> Response:
        """A whole page; ``more`` and ``values`` are what its template uses besides."""
        given = {**self.values(workspace, nav), **(more or {}), **values}
        return self.pages.answer(template, given, status=status)

    def _menu(self, workspace: Workspace) -> list[MenuItem]:
        base = base_of(workspace.id)
        items = [MenuItem("deployments", "Deployments", f"{base}/deployments")]
        for permission, name, label in _MENU:
            if self.may(permission, workspace.id):
                count = self._waiting(workspace.id) if name == "alerts" else 0
                items.append(MenuItem(name, label, f"{base}/{name}", count))
        return items

    def _waiting(self, workspace_id: str) -> int:
        """How many alerts wait; counted every few seconds, not for every page."""
        return self.pages.waiting.count(
            (workspace_id, self.may(Permission.ALERTS, workspace_id)),
            self.services.now(),
            lambda: len(alerts.listed(self.services, self.actor, workspace_id).entries),
        )


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes something, from a form of ours."""

    desk: Desk
    form: Form


def desk_of(request: Request, services: ServicesNow) -> Desk:
    """Who is signed in. Raises SignInNeededError."""
    return _desk(request, services, note_use=True)


def watching_desk_of(request: Request, services: ServicesNow) -> Desk:
    """The same for what an open page asks again by itself: that is no use of the sign-in."""
    return _desk(request, services, note_use=False)


def _desk(request: Request, services: Services, *, note_use: bool) -> Desk:
    session = read_session(request, services, note_use=note_use)
    if session is None:
        raise SignInNeededError("nobody is signed in", hint="Sign in.")
    return Desk(request, services, session, pages_of(request))


async def read_form(request: Request) -> Form:
    """The fields that were sent; files are none."""
    async with request.form(max_files=0, max_fields=_MAX_FIELDS) as sent:
        lists: dict[str, list[str]] = {}
        for name, value in sent.multi_items():
            if isinstance(value, str):
                lists.setdefault(name, []).append(value)
    return Form({name: found[-1] for name, found in lists.items()}, lists)


FormNow = Annotated[Form, Depends(read_form)]
DeskNow = Annotated[Desk, Depends(desk_of)]
WatchingDesk = Annotated[Desk, Depends(watching_desk_of)]


def change_of(desk: DeskNow, form: FormNow) -> Change:
    """A change by who is signed in, from a page of ours. Raises ForbiddenError for another's."""
    given = desk.request.headers.get("X-CSRF-Token") or form.values.get("csrf_token", "")
    check_csrf(desk.session, given)
    return Change(desk, form)


ChangeNow = Annotated[Change, Depends(change_of)]


def pages_of(request: Request) -> Pages:
    """The templates."""
    return cast(Pages, request.app.state.console_pages)


def base_of(workspace_id: str) -> str:
    """Where a workspace's pages begin."""
    return f"/workspaces/{quote(workspace_id, safe='')}"


def place_of(deployment: Deployment) -> str:
    """Where a deployment's pages begin."""
    return f"{base_of(deployment.workspace_id)}/deployments/{quote(deployment.id, safe='')}"


def go(address: str, said: str = "") -> Response:
    """Have the browser load a page of ours with GET."""
    return RedirectResponse(f"{address}?said={said}" if said else address, status_code=303)


class PageRoute(APIRoute):
    """A route whose errors are pages. Who is not signed in is sent to sign in and back."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with its errors."""
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except SignInNeededError:
                return _to_sign_in(request)
            except KvrunError as error:
                return _problem(request, status_of(error), error.message, error.hint)
            except RequestValidationError:
                return _problem(request, 404, "there is no such page", None)
            except HTTPException as error:
                return _problem(request, error.status_code, str(error.detail), None)

        return handler


def page_router() -> APIRouter:
    """A router for pages; they are no part of the API's description."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def _to_sign_in(request: Request) -> Response:
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    back = local_address(asked) if request.method == "GET" else "/"
    address = f"/sign-in?next={quote(back, safe='/')}"
    if request.headers.get("HX-Request"):
        return Response(status_code=204, headers={"HX-Redirect": address})
    return RedirectResponse(address, status_code=303)


def _problem(request: Request, status: int, message: str, hint: str | None) -> Response:
    title = _TITLES.get(status, "That did not work")
    answer = pages_of(request).answer(
        "problem.html",
        {
            "title": title,
            "message": message[:1].upper() + message[1:] + ("" if message[-1:] in ".!?" else "."),
            "hint": hint or "",
            "back": "",
            "request_id": request_id_of(request),
        },
        status=status,
    )
    if request.headers.get("HX-Request"):
        answer.headers["HX-Retarget"] = "body"
    return answer


_TITLES = {
    403: "You may not do this",
    404: "Not found",
    409: "Not possible now",
    422: "That cannot be used",
    503: "Not available now",
}
_MENU = (
    (Permission.WHOIS, "where", "Where is this user?"),
    (Permission.ERASE_WIDE, "erase", "Erase many users"),
    (Permission.CERTIFICATES, "certificates", "Certificates"),
    (Permission.EVIDENCE, "evidence", "Evidence"),
    (Permission.VIEW, "policies", "Policies"),
    (Permission.VIEW, "storage", "Storage"),
    (Permission.VIEW, "finetunes", "Fine-tunes"),
    (Permission.VIEW, "alerts", "Alerts"),
    (Permission.ERASE_WIDE, "approvals", "Approvals"),
    (Permission.VIEW, "keys", "API keys"),
    (Permission.VIEW, "members", "Members"),
    (Permission.VIEW, "settings", "Workspace"),
)
