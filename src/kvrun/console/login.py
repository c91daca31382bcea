"""Letting a command line act as whoever is signed in, and ending that."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Response

from kvrun.accounts.errors import InvalidError
from kvrun.accounts.logins import LONGEST_S
from kvrun.api.dependencies import ItemId, WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, base_of, go, page_router

router = page_router()
_Text = Annotated[str, Query(max_length=200)]
_LOOPBACK = re.compile(r"http://(?:127\.0\.0\.1|\[::1\]):([1-9][0-9]{0,4})/")
_STATE = re.compile(r"[A-Za-z0-9_-]{16,128}")
_HOUR_S = 3600
_LONGEST_H = LONGEST_S // _HOUR_S
_HOURS = [(str(number), f"{number} hours") for number in range(2, _LONGEST_H + 1)]


@router.get("/login")
def get_login(
    desk: DeskNow,
    challenge: _Text = "",
    redirect_uri: _Text = "",
    state: _Text = "",
    hours: _Text = "1",
) -> Response:
    """Whether the command line that opened this page may act as the person."""
    _check_way_back(redirect_uri, state)
    return _page(desk, challenge, redirect_uri, state, hours, {})


@router.post("/login")
def post_login(change: ChangeNow) -> Response:
    """It may, or not. The code goes to the listener of the command line, or is shown."""
    desk, form = change.desk, change.form
    challenge, redirect_uri, state = (
        form.values.get(name, "")[:200] for name in ("challenge", "redirect_uri", "state")
    )
    _check_way_back(redirect_uri, state)
    if form.values.get("answer") != "allow":
        return _sent_back(desk, redirect_uri, {"error": "access_denied", "state": state})
    hours = form.number("hours", "The number of hours", 1, _LONGEST_H)
    if hours is None:
        given = form.values.get("hours", "")
        return _page(desk, challenge, redirect_uri, state, given, form.errors, 422)
    code = desk.services.accounts.allow_login(desk.session.token, challenge, hours * _HOUR_S)
    return _sent_back(desk, redirect_uri, {"code": code, "state": state})


@router.post("/workspaces/{workspace_id}/logins/{login_id}/end")
def post_end(change: ChangeNow, workspace_id: WorkspaceId, login_id: ItemId) -> Response:
    """End a login of one's own; it is listed with the workspace's API keys."""
    change.desk.workspace(workspace_id)
    change.desk.services.accounts.end_login(change.desk.actor, login_id)
    return go(f"{base_of(workspace_id)}/keys", "login-ended")


def _check_way_back(redirect_uri: str, state: str) -> None:
    """Refuse every address but a listener on the person's own machine. Raises InvalidError."""
    if not redirect_uri:
        return
    port = _LOOPBACK.fullmatch(redirect_uri)
    if port is None or int(port[1]) > 65535:
        raise InvalidError(
            "redirect_uri must be http://127.0.0.1:PORT/ or http://[::1]:PORT/",
            hint="A code goes back to a command line on your own machine and nowhere else.",
        )
    if not _STATE.fullmatch(state):
        raise InvalidError("state must be 16 to 128 letters, digits, hyphens and underscores")


def _page(
    desk: Desk,
    challenge: str,
    redirect_uri: str,
    state: str,
    hours: str,
    errors: dict[str, str],
    status: int = 200,
) -> Response:
    return desk.page(
        "login.html",
        None,
        "",
        asked={"challenge": challenge, "redirect_uri": redirect_uri, "state": state},
        hour_options=[("1", "1 hour"), *_HOURS],
        hours=hours,
        errors=errors,
        status=status,
    )


def _sent_back(desk: Desk, redirect_uri: str, said: dict[str, str]) -> Response:
    """The answer, and the browser's way on: a form may not lead off the host (``form-action``), so
    a page does."""
    code = said.get("code", "")
    grouped = "-".join(code[start : start + 4] for start in range(0, len(code), 4))
    answer = desk.page(
        "login_done.html", None, "", code="" if redirect_uri else grouped, allowed=bool(code)
    )
    if redirect_uri:
        answer.headers["Refresh"] = f"0; url={redirect_uri}?{urlencode(said)}"
    return answer
