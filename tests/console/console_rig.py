"""The console over a control plane whose deployments a simulator runs, and who browses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import httpx
from page_check import Page, check

from api.api_rig import URL, Caller, World, open_world
from kvrun import console
from kvrun.deployments.model import Deployment


@dataclass
class Reader:
    """Somebody with a browser that runs no script."""

    caller: Caller

    async def get(self, path: str, status: int = 200) -> Page:
        """A page, which keeps the rules of pages."""
        answer = await self.ask("GET", path)
        assert answer.status_code == status, (path, answer.status_code, answer.text[-1500:])
        return check(answer.text)

    async def post(self, path: str, **fields: str | list[str]) -> httpx.Response:
        """Send a form of ours."""
        token = self.caller.headers.get("X-CSRF-Token", "")
        return await self.send(path, {"csrf_token": token, **fields})

    async def send(self, path: str, fields: dict[str, str | list[str]]) -> httpx.Response:
        """Send fields as they are."""
        return await self.ask(
            "POST",
            path,
            content=urlencode(fields, doseq=True),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )

    async def ask(
        self,
        method: str,
        path: str,
        *,
        content: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """One request, without following where it leads."""
        cookie = self.caller.headers.get("Cookie", "")
        sent = {**({"Cookie": cookie} if cookie else {}), **(headers or {})}
        transport = httpx.ASGITransport(self.caller.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=URL, trust_env=False) as http:
            return await http.request(method, path, content=content, headers=sent)


async def followed(reader: Reader, run: str) -> Page:
    """The page of an erasure or deletion once it ended."""
    deadline = time.monotonic() + 60
    while "Under way" in (page := await reader.get(run)).said:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return page


def fields_of(page: Page, action: str, *, ticked: bool = True) -> dict[str, str]:
    """The fields of a form without its token, with or without the box that says "sure"."""
    without = ("field:csrf_token",) if ticked else ("field:csrf_token", "field:sure")
    form = next(form for form in page.forms if form["action"].endswith(action))
    return {
        name.removeprefix("field:"): value
        for name, value in form.items()
        if name.startswith("field:") and name not in without
    }


def stopped_chat(world: World) -> Deployment:
    """A stopped deployment with two users: its keys are opened in its place."""
    made = world.deployment("chat")
    world.visit(made, "alice", "bob")
    world.launcher.alive.discard(made.id)
    return made


@contextmanager
def console_world(folder: Path, text: str = "") -> Iterator[World]:
    """A control plane with the console on it."""
    with open_world(folder, text) as world:
        console.mount(world.app, world.services)
        world.workspace("acme")
        yield world


def base(world: World, workspace: str = "acme") -> str:
    """Where a workspace's pages begin."""
    return f"/workspaces/{world.workspace(workspace)}"
