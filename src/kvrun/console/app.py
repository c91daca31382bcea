"""Putting the console on the API's application."""

from typing import Annotated

from fastapi import APIRouter, FastAPI, Path, Request, Response

from kvrun.accounts.errors import NotFoundError
from kvrun.api.services import Services
from kvrun.console import (
    audit,
    commands,
    deployment,
    erasing,
    evidence,
    finetunes,
    isolation,
    joint_runs,
    keys,
    labels,
    listing,
    login,
    members,
    policy,
    signin,
    storage,
    users,
    where,
    wide,
    workspace,
)
from kvrun.console.desk import PageRoute, pages_of
from kvrun.console.pages import Pages
from kvrun.console.runs import Runs

_ROUTERS = (
    signin.router,
    listing.router,
    commands.router,
    users.router,
    labels.router,
    erasing.router,
    audit.router,
    storage.router,
    evidence.router,
    deployment.router,
    isolation.router,
    finetunes.router,
    policy.router,
    where.router,
    wide.router,
    joint_runs.router,
    members.router,
    keys.router,
    login.router,
    workspace.router,
)
_Name = Annotated[str, Path(max_length=100, pattern=r"^[a-z0-9.-]+$")]
_last = APIRouter(route_class=PageRoute, include_in_schema=False)


def mount(app: FastAPI, services: Services) -> None:
    """Serve the console's pages from the API's application, at its root.

    Pages call the functions that the API's routes call, as the person who is signed in.
    """
    app.state.console_pages = Pages()
    app.state.console_runs = Runs(services.now)
    app.state.sign_in_failed = signin.failed
    for router in _ROUTERS:
        app.include_router(router)
    app.include_router(_last)


@_last.get("/static/{version}/{name}")
def get_asset(request: Request, version: _Name, name: _Name) -> Response:
    """A file of the console, for everybody."""
    found = pages_of(request).assets.answer(version, name)
    if found is None:
        raise NotFoundError("there is no such file", hint="Load the page again.")
    return found


@_last.get("/workspaces/{rest:path}")
@_last.get("/sign-in/{rest:path}")
def get_nothing(rest: str) -> Response:
    """What is no page, as a page that says so."""
    raise NotFoundError("there is no such page")
