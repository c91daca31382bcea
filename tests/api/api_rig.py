"""A control plane in a folder, people in it, and deployments that a simulator runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from kvrun.accounts import Actor, Role, write_owner_link
from kvrun.accounts.tables import UserRow
from kvrun.api.app import create_app
from kvrun.api.services import Services, open_services
from kvrun.config import KvrunConfig, parse_config
from kvrun.deployments.launcher import Site
from kvrun.deployments.machine import Seen
from kvrun.deployments.model import Deployment, DeploymentSpec, LauncherKind
from kvrun.instance.parts import open_parts

URL = "http://127.0.0.1:8090"
API = "/api/v1"


class Clock:
    """The time, which a test can move on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class SimulatedLauncher:
    """Runs nothing and says so as a launcher would."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}
        self.alive: set[str] = set()

    def launch(self, site: Site, attempt: int) -> None:
        self.attempts[site.deployment_id] = attempt
        self.alive.add(site.deployment_id)

    def observe(self, site: Site) -> Seen:
        alive = site.deployment_id in self.alive
        attempt = self.attempts.get(site.deployment_id, 0)
        return Seen(alive=alive, ready=alive, attempt=attempt, idle=True)

    def terminate(self, site: Site) -> None:
        self.alive.discard(site.deployment_id)

    def kill(self, site: Site) -> None:
        self.alive.discard(site.deployment_id)


@dataclass
class Caller:
    """Somebody with a credential, or nobody."""

    app: FastAPI
    headers: dict[str, str] = field(default_factory=dict)
    user_id: str = ""

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request; a path that does not begin with /api is below it."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        headers = {**self.headers, **more.pop("headers", {})}
        async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
            where = path if path.startswith(("/api", "/healthz", "/readyz")) else API + path
            return await http.request(method, where, headers=headers, **more)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: object = None, **more: Any) -> httpx.Response:
        return await self.ask("POST", path, json=body, **more)


@dataclass
class World:
    """A control plane. ``ids`` are its workspaces by name."""

    services: Services
    app: FastAPI
    clock: Clock
    launcher: SimulatedLauncher
    owner: Caller
    owner_actor: Actor
    ids: dict[str, str]

    @property
    def nobody(self) -> Caller:
        return Caller(self.app)

    def workspace(self, name: str) -> str:
        """A workspace's id; it is made when it is missing."""
        if name not in self.ids:
            self.ids[name] = self.services.accounts.create_workspace(self.owner_actor, name).id
            token = self.owner.headers["Cookie"].partition("=")[2]
            self.owner_actor = self.services.accounts.actor_of(token)
        return self.ids[name]

    def person(self, email: str, role: Role, workspace: str = "acme") -> Caller:
        """A member who has signed in at the identity provider."""
        place = self.workspace(workspace)
        member = self.services.accounts.add_member(self.owner_actor, place, email, role)
        with self.services.database.transaction() as session:
            row = session.get_one(UserRow, member.user_id)
            row.issuer, row.subject = "https://login.example.com", email
        opened = self.services.accounts.open_sign_in(member.user_id, method="oidc")
        return browser(self.app, opened.token, opened.csrf_token, member.user_id)

    def key(self, actor: Actor, scopes: list[Any], workspace: str = "acme", **more: Any) -> Caller:
        """A program with an API key of the actor's."""
        place = self.workspace(workspace)
        _, secret = self.services.accounts.create_key(
            actor, place, f"key {scopes} {more}"[:100], scopes, **more
        )
        return Caller(self.app, {"Authorization": f"Bearer {secret}"})

    def actor(self, caller: Caller) -> Actor:
        """Who a browser is."""
        return self.services.accounts.actor_of(caller.headers["Cookie"].partition("=")[2])

    def deployment(self, name: str = "chat", workspace: str = "acme") -> Deployment:
        """A deployment that runs, as far as its launcher says."""
        spec = DeploymentSpec(name=name, model="tiny", multi_tenant=True, disk_bytes=2**20)
        place = self.workspace(workspace)
        made = self.services.create_deployment(self.owner_actor, place, spec)
        self.services.deployments.start(made.id)
        self.services.deployments.supervise()
        return self.services.deployments.get(made.id)

    def visit(self, deployment: Deployment, *tenants: str) -> None:
        """End users have a session there."""
        config = self.services.deployments.config_of(deployment.id)
        with open_parts(config, memory_bytes=1 << 20) as parts:
            for tenant in tenants:
                parts.instance.open_session(tenant, "one")


@contextmanager
def storage_away(config: KvrunConfig) -> Iterator[None]:
    """Until the end, the folder of a deployment's Storage cannot be used."""
    there = config.layout.storage_root
    aside = there.with_name("aside")
    there.rename(aside)
    there.write_bytes(b"")
    try:
        yield
    finally:
        there.unlink()
        aside.rename(there)


def browser(app: FastAPI, token: str, csrf_token: str, user_id: str = "") -> Caller:
    """A signed-in browser."""
    return Caller(app, {"Cookie": f"kvrun={token}", "X-CSRF-Token": csrf_token}, user_id)


@contextmanager
def open_world(folder: Path, text: str = "") -> Iterator[World]:
    """A new control plane in ``folder``, with the local owner signed in."""
    config = parse_config(text, {}, source=folder / "kvrun.toml")
    config.layout.data_dir.mkdir(mode=0o700, parents=True)
    clock, launcher = Clock(), SimulatedLauncher()
    kinds = dict.fromkeys(LauncherKind, launcher)
    services = open_services(config, now=clock, launchers=kinds)
    app = _application(services, text)
    link = write_owner_link(config.layout.owner_link)
    opened = services.accounts.claim_owner_link(link)
    owner = browser(app, opened.token, opened.csrf_token, opened.user_id)
    actor = services.accounts.actor_of(opened.token)
    try:
        yield World(services, app, clock, launcher, owner, actor, {})
    finally:
        services.close()


def _application(services: Services, text: str) -> FastAPI:
    """Building one takes long, and nothing but the settings differs."""
    if text not in _APPLICATIONS:
        _APPLICATIONS[text] = create_app(services, background=False)
    app = _APPLICATIONS[text]
    app.state.services = services
    return app


_APPLICATIONS: dict[str, FastAPI] = {}


def is_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer, which says nothing of the program's inside."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    assert ".py" not in answer.text
    return found
