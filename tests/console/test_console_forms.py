"""A key's successor, another specification, and sign-ins that fail."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlencode

import httpx
import pytest
from console_rig import Reader, base, console_world
from page_check import check

from api.api_rig import World
from kvrun.accounts import Accounts, OidcStart, Role, Scope
from kvrun.accounts.errors import ForbiddenError
from kvrun.deployments.model import DeploymentSpec

CALLBACK = "/api/v1/sign-in/oidc/callback?code=c&state=s"
OIDC = '[control]\noidc_issuer = "https://login.example.com"\noidc_client_id = "kvrun"\n'
BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    return shared_world


async def test_a_key_gets_a_successor_and_both_hold_for_a_while(
    world: World, owner: Reader
) -> None:
    accounts, acme = world.services.accounts, world.workspace("acme")
    _, old = accounts.create_key(world.owner_actor, acme, "web", [Scope.INFER, Scope.ERASE])
    page = await owner.get(f"{base(world)}/keys")
    action = next(form["action"] for form in page.forms if form["action"].endswith("/rotate"))
    assert (await owner.post(action, overlap="5")).status_code == 422
    made = await owner.post(action, overlap="3600")
    assert "has a successor, with the same scopes. The old key goes on for an hour." in (
        check(made.text).said
    )
    secret = re.search(r"kvk_[A-Za-z0-9_-]+", made.text)
    assert secret is not None
    assert accounts.authenticate_key(secret[0]).scopes == {Scope.INFER, Scope.ERASE}
    assert accounts.authenticate_key(old).scopes == {Scope.INFER, Scope.ERASE}
    again = await owner.post(action, overlap="3600")
    assert again.status_code == 422, "two of a name at a time"
    assert "active API keys named web" in check(again.text).said
    assert secret[0] not in (await owner.get(f"{base(world)}/keys")).text
    world.clock.ahead_s += 3601
    try:
        with pytest.raises(Exception, match="not valid"):
            accounts.authenticate_key(old)
        assert accounts.authenticate_key(secret[0])
    finally:
        world.clock.ahead_s -= 3601


async def test_only_whose_key_it_is_is_offered_its_successor(world: World, owner: Reader) -> None:
    ann = Reader(world.person("ann@example.com", Role.DEVELOPER))
    accounts, acme = world.services.accounts, world.workspace("acme")
    ours, _ = accounts.create_key(world.actor(ann.caller), acme, "hers", [Scope.INFER])
    action = f"{base(world)}/keys/{ours.id}/rotate"
    for reader, offered in ((ann, True), (owner, False)):
        page = await reader.get(f"{base(world)}/keys")
        assert any(form["action"] == action for form in page.forms) == offered
    assert (await owner.post(action, overlap="0")).status_code == 403


async def test_a_deployment_is_rebuilt_with_another_specification(
    world: World, owner: Reader
) -> None:
    spec = DeploymentSpec(
        name="chat",
        model="tiny",
        multi_tenant=True,
        memory_bytes=2**26,
        labels={"team": "search"},
        settings={"engine.max_num_seqs": 8, "engine.enforce_eager": True},
    )
    made = world.services.create_deployment(world.owner_actor, world.workspace("acme"), spec)
    place = f"{base(world)}/deployments/{made.id}"
    assert "cannot be rebuilt now" in (await owner.get(f"{place}/rebuild")).said
    world.services.deployments.start(made.id)
    world.services.deployments.supervise()
    assert any(link.endswith("/rebuild") for link in (await owner.get(f"{place}/settings")).links)
    page = await owner.get(f"{place}/rebuild")
    fields = {
        name: value for control in page.controls for name, value in [
            (control["name"], control.get("value", ""))
        ] if control.get("type") not in ("radio", "checkbox")
    }  # fmt: skip
    assert fields["memory"] == "64MiB"
    assert "team=search" in page.text
    assert "engine.max_num_seqs=8" in page.text
    sent = {
        **fields, "engine": "vllm", "audience": "product", "stateless": "no", "memory": "128MiB",
        "labels": "team=sales", "settings": "engine.max_num_seqs=16\nengine.enforce_eager=true",
    }  # fmt: skip
    wrong = await owner.post(f"{place}/rebuild", **sent | {"settings": "audit.mode=off"})
    assert wrong.status_code == 422
    assert "cannot be set here; allowed:" in check(wrong.text).said
    done = await owner.post(f"{place}/rebuild", **sent)
    assert done.status_code == 303, done.text
    found = world.services.deployments.get(made.id)
    assert found.instance == 2
    assert found.spec.memory_bytes == 2**27
    assert found.spec.labels == {"team": "sales"}
    assert found.spec.settings == {"engine.max_num_seqs": 16, "engine.enforce_eager": True}
    assert found.spec.multi_tenant


async def test_who_signs_in_at_the_provider_comes_back_to_the_page_that_was_asked_for(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with console_world(short_folder, OIDC) as world:
        person = world.person("ada@example.com", Role.ADMIN).user_id
        opened = world.services.accounts.open_sign_in(person, method="oidc")
        start = OidcStart("https://login.example.com/authorize", "browser")
        monkeypatch.setattr(Accounts, "begin_oidc", lambda *_: start)
        monkeypatch.setattr(Accounts, "finish_oidc", lambda *_, **__: opened)
        nobody = Reader(world.nobody)
        asked = '/login?challenge=c&redirect_uri=http://127.0.0.1:1/&x=";,'
        for wanted, found in ((asked, asked), ("//evil.example", "/"), ("https://evil", "/")):
            page = await nobody.get(f"/sign-in?{urlencode({'next': wanted})}")
            (link,) = (link for link in page.links if "/oidc" in link)
            begun = await nobody.ask("GET", link)
            assert begun.headers["location"] == start.url
            given = "; ".join(cookie.split(";")[0] for cookie in cookies_of(begun))
            back = await nobody.ask("GET", CALLBACK, headers={"Cookie": given})
            assert unquote(back.headers["location"]) == found
            assert any("kvrun-back=" in c and "Max-Age=0" in c for c in cookies_of(back))
        planted = {"Cookie": "kvrun-back=//evil.example"}
        assert (await nobody.ask("GET", CALLBACK, headers=planted)).headers["location"] == "/"


def cookies_of(answer: httpx.Response) -> list[str]:
    return answer.headers.get_list("set-cookie")


async def test_a_sign_in_that_fails_is_said_on_a_page_with_what_to_do_next(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with console_world(short_folder, OIDC) as world:
        nobody = Reader(world.nobody)
        answer = await nobody.ask("GET", CALLBACK, headers=BROWSER)
        assert answer.status_code == 401
        page = check(answer.text)
        assert "You are not signed in" in page.said
        assert "Begin again" in page.said
        assert "/sign-in" in page.links
        refused = await nobody.ask("GET", f"{CALLBACK}&error=access_denied", headers=BROWSER)
        assert "did not sign anybody in" in check(refused.text).said
        too_long = await nobody.ask("GET", f"{CALLBACK}&iss={'x' * 2000}", headers=BROWSER)
        assert "cannot be read" in check(too_long.text).said
        program = await nobody.ask("GET", CALLBACK)
        assert program.headers["content-type"] == "application/problem+json"

        def no_role(*_: object, **__: object) -> None:
            raise ForbiddenError("nobody has given you a role here", hint="Ask an owner.")

        monkeypatch.setattr(Accounts, "finish_oidc", no_role)
        stranger = await nobody.ask("GET", CALLBACK, headers=BROWSER)
        assert stranger.status_code == 403
        assert "add you under Members" in check(stranger.text).said
