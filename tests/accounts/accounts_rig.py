"""A control plane's people with a clock that the test moves, and a log of what was told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from kvrun.accounts import (
    AccessEvent,
    AccessEventKind,
    Accounts,
    Actor,
    OidcClient,
    OidcIdentity,
    OidcSettings,
    Role,
    SignIn,
    SignInLimits,
    Workspace,
    write_owner_link,
)
from kvrun.state import Database

IDLE_S, ABSOLUTE_S = 600, 3600
OWN = "own"
"""The address that belongs to a name."""
_HTTP = httpx.Client()
SETTINGS = OidcSettings("https://id.example", "kvrun", "https://kvrun.example/callback")


class KnownProvider(OidcClient):
    """A provider in which everybody's identity has been checked already."""

    def __init__(self, identity: OidcIdentity) -> None:
        super().__init__(SETTINGS, _HTTP, lambda: 0.0)
        self.identity = identity
        self.state = ""

    def authorization_url(self, *, state: str, nonce: str, verifier: str) -> str:
        self.state = state
        return "https://id.example/authorize"

    def finish(self, code: str, *, nonce: str, verifier: str, issuer: str | None) -> OidcIdentity:
        return self.identity


class Site:
    """One control plane's accounts."""

    def __init__(self, url: str, folder: Path) -> None:
        self.now = 1_000_000.0
        self.events: list[AccessEvent] = []
        self.told_after: list[AccessEvent] = []
        self.log_fails = False
        self.database = Database.open(url)
        self.owner_link = folder / "owner-link.token"
        self.accounts = self.another()

    def another(self) -> Accounts:
        """The same, as another process would see it."""
        return Accounts(
            self.database,
            lambda: self.now,
            os.urandom,
            self._on_event,
            after_event=self.told_after.append,
            limits=SignInLimits(idle_s=IDLE_S, absolute_s=ABSOLUTE_S),
            owner_link=self.owner_link,
        )

    def _on_event(self, event: AccessEvent) -> None:
        if self.log_fails:
            raise OSError("the access log is full")
        self.events.append(event)

    def kinds(self) -> list[AccessEventKind]:
        """What was told, in order."""
        return [event.kind for event in self.events]

    def local_owner(self) -> Actor:
        """Whoever could read the owner link."""
        token = write_owner_link(self.owner_link)
        return self.accounts.actor_of(self.accounts.claim_owner_link(token).token)

    def workspace(self, name: str = "acme") -> Workspace:
        """A workspace of that name."""
        return self.accounts.ensure_workspace(name)

    def sign_in(
        self,
        name: str,
        *,
        groups: frozenset[str] = frozenset(),
        roles: dict[str, str] | None = None,
        email: str | None = OWN,
        previous: str | None = None,
    ) -> SignIn:
        """Somebody signs in at the provider, under ``NAME@example.com``."""
        address = f"{name}@example.com" if email == OWN else email
        provider = KnownProvider(
            OidcIdentity("https://id.example", f"{name}-sub", address, name, groups)
        )
        start = self.accounts.begin_oidc(provider)
        return self.accounts.finish_oidc(
            provider,
            start.browser_token,
            state=provider.state,
            code="code",
            roles=roles or {},
            first_workspace="default",
            previous=previous,
        )

    def member(self, name: str, role: Role, workspace: str = "acme") -> Actor:
        """A person with that role, signed in."""
        owner = self.local_owner()
        place = self.workspace(workspace)
        owner = self.again(owner)
        self.accounts.add_member(owner, place.id, f"{name}@example.com", role)
        return self.accounts.actor_of(self.sign_in(name).token)

    def again(self, actor: Actor) -> Actor:
        """The same person, with the roles of now."""
        return self.accounts.actor_of(self.accounts.open_sign_in(actor.id, method="test").token)

    def close(self) -> None:
        """End it."""
        self.database.close()


@contextmanager
def open_site(url: str, folder: Path) -> Iterator[Site]:
    """A site that is closed afterwards."""
    site = Site(url, folder)
    try:
        yield site
    finally:
        site.close()
