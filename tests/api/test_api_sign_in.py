"""Signing in: what opens a session, what a session is worth, and what ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_rig import Caller, World, browser, is_problem, open_world

from kvrun.accounts import Role, Scope, write_owner_link
from kvrun.api.services import open_services
from kvrun.audit.errors import AuditUnavailableError
from kvrun.config import parse_config
from kvrun.config.secret_file import SecretFileError
from kvrun.control.journal import ControlJournal


async def test_the_owner_link_signs_in_once(world: World) -> None:
    token = write_owner_link(world.services.config.layout.owner_link)
    first = await world.nobody.post("/sign-in/owner-link", {"token": token})
    assert first.status_code == 200
    assert first.json()["kind"] == "local_owner"
    is_problem(await world.nobody.post("/sign-in/owner-link", {"token": token}), 401)


async def test_the_cookie_is_for_this_site_and_for_no_script(world: World) -> None:
    token = write_owner_link(world.services.config.layout.owner_link)
    answer = await world.nobody.post("/sign-in/owner-link", {"token": token})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("kvrun=")
    for part in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=43"):
        assert part in cookie, part
    assert "Secure" not in cookie
    assert "Domain" not in cookie


async def test_over_tls_the_cookie_never_leaves_it(short_folder: Path) -> None:
    with open_world(short_folder, '[control]\npublic_url = "https://kv.example.com"') as world:
        token = write_owner_link(world.services.config.layout.owner_link)
        answer = await world.nobody.post("/sign-in/owner-link", {"token": token})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-kvrun=")
        assert "Secure" in cookie
        # The name without the prefix, which another host could have set, is nobody's session.
        value = cookie.split("=", 1)[1].split(";")[0]
        is_problem(await browser(world.app, value, "").get("/me"), 401)


async def test_a_planted_cookie_does_not_become_the_session(world: World) -> None:
    planted = Caller(world.app, {"Cookie": "kvrun=planted-by-somebody"})
    token = write_owner_link(world.services.config.layout.owner_link)
    answer = await planted.post("/sign-in/owner-link", {"token": token})
    assert answer.status_code == 200
    assert "planted" not in answer.headers["set-cookie"]
    is_problem(await planted.get("/me"), 401)


async def test_signing_in_again_ends_the_session_before(world: World) -> None:
    token = write_owner_link(world.services.config.layout.owner_link)
    assert (await world.owner.get("/me")).status_code == 200
    await world.owner.post("/sign-in/owner-link", {"token": token})
    is_problem(await world.owner.get("/me"), 401)


async def test_signing_out_ends_the_session_and_not_only_the_cookie(world: World) -> None:
    answer = await world.owner.post("/sign-out")
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    is_problem(await world.owner.get("/me"), 401)


async def test_an_idle_session_is_over(world: World) -> None:
    world.clock.ahead_s += world.services.settings.session_idle_s + 1
    is_problem(await world.owner.get("/me"), 401)


async def test_a_change_without_the_csrf_token_is_refused(world: World) -> None:
    caller = Caller(world.app, {"Cookie": world.owner.headers["Cookie"]})
    for given in (None, "", "wrong", "é", "x" * 5000):
        headers = {} if given is None else {"X-CSRF-Token": given.encode()}
        answer = await caller.post("/workspaces", {"name": "other"}, headers=headers)
        is_problem(answer, 403)
    assert (await world.owner.post("/workspaces", {"name": "other"})).status_code == 201


async def test_anothers_csrf_token_is_refused(world: World) -> None:
    other = world.person("eve@example.com", Role.ADMIN)
    mixed = {**world.owner.headers, "X-CSRF-Token": other.headers["X-CSRF-Token"]}
    is_problem(await Caller(world.app, mixed).post("/workspaces", {"name": "other"}), 403)


async def test_an_api_key_needs_no_csrf_token_and_beats_the_cookie(world: World) -> None:
    program = world.key(world.owner_actor, [Scope.ADMIN])
    answer = await program.post(
        f"/workspaces/{world.ids['acme']}/service-accounts", {"name": "ci", "role": "developer"}
    )
    assert answer.status_code == 201
    both = Caller(world.app, {**world.owner.headers, "Authorization": "Bearer kvk_nonsense"})
    is_problem(await both.get("/me"), 401)
    basic = Caller(world.app, {**world.owner.headers, "Authorization": "Basic dTpw"})
    is_problem(await basic.get("/me"), 401)


async def test_me_tells_browsers_their_csrf_token_and_programs_none(world: World) -> None:
    me = (await world.owner.get("/me")).json()
    assert me["csrf_token"] == world.owner.headers["X-CSRF-Token"]
    program = world.key(world.owner_actor, [Scope.AUDIT_READ])
    told = (await program.get("/me")).json()
    assert told["csrf_token"] is None
    assert told["scopes"] == ["audit.read"]


async def test_nobody_is_told_how_to_come_in(world: World) -> None:
    answer = await world.nobody.get("/me")
    is_problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert (await world.nobody.get("/sign-in")).json() == {"oidc": False, "owner_link": True}


async def test_without_a_provider_there_is_no_way_through_one(world: World) -> None:
    is_problem(await world.nobody.get("/sign-in/oidc"), 404)
    is_problem(await world.nobody.get("/sign-in/oidc/callback", params={"code": "x"}), 404)


async def test_a_callback_that_this_browser_did_not_begin_signs_nobody_in(
    short_folder: Path,
) -> None:
    text = '[control]\noidc_issuer = "https://login.example.com"\noidc_client_id = "kvrun"'
    with open_world(short_folder, text) as world:
        answer = await world.nobody.get(
            "/sign-in/oidc/callback", params={"code": "stolen", "state": "made-up"}
        )
        is_problem(answer, 401)
        assert "set-cookie" not in answer.headers


async def test_a_key_for_the_gateway_alone_is_told_of_no_workspace(world: World) -> None:
    gateway = world.key(world.owner_actor, [Scope.INFER])
    other = world.key(world.owner_actor, [Scope.AUDIT_READ])
    for caller, count in ((gateway, 0), (other, 1)):
        assert len((await caller.get("/workspaces")).json()["items"]) == count
        assert len((await caller.get("/me")).json()["roles"]) == count


async def test_using_the_owner_link_raises_an_alert_and_is_on_record(world: World) -> None:
    waiting = await world.owner.get(f"/workspaces/{world.ids['acme']}/alerts")
    found = waiting.json()["items"]
    assert [item["kind"] for item in found] == ["owner_link_used"]
    said = {"log": found[0]["log"], "reason": "it was me"}
    place = f"/workspaces/{world.ids['acme']}/alerts/acknowledge"
    assert (await world.owner.post(place, said)).status_code == 200
    assert (await world.owner.get(f"/workspaces/{world.ids['acme']}/alerts")).json()["items"] == []
    records = b"".join(
        path.read_bytes() for path in world.services.access_log.folder.glob("segment-*.jsonl")
    )
    assert b"owner_link_used" in records
    assert b'"alert_acknowledged"' in records
    assert f"by local_owner {world.owner_actor.id}: it was me".encode() in records


async def test_the_control_planes_own_alerts_are_for_those_of_its_first_workspace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.services.accounts.ensure_workspace(world.services.first_workspace)
    world.ids[first.name] = first.id
    (alert,) = world.services.access_log.alerts.all()
    said = {"log": alert.log, "reason": "nothing to see"}
    known = world.person("anna@example.com", Role.ADMIN, first.name)
    for stranger in (
        world.person("bert@example.com", Role.OWNER),
        world.person("cleo@example.com", Role.DEVELOPER, first.name),
    ):
        me = (await stranger.get("/me")).json()["roles"]
        for place in (f"/workspaces/{name}/alerts" for name in me):
            assert (await stranger.get(place)).json()["items"] == []
            answer = await stranger.post(f"{place}/acknowledge", said)
            assert answer.status_code in (403, 404)
    place = f"/workspaces/{first.id}/alerts"
    found = (await known.get(place)).json()["items"]
    assert [item["id"] for item in found] == [alert.id]

    def full(self: object, entry: object) -> None:
        raise AuditUnavailableError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ControlJournal, "append", full)
        assert (await known.post(f"{place}/acknowledge", said)).status_code >= 500
    assert len((await known.get(place)).json()["items"]) == 1, "not on record, so not settled"
    assert (await known.post(f"{place}/acknowledge", said)).status_code == 200
    assert (await known.get(place)).json()["items"] == []


def test_a_client_secret_that_others_may_read_is_refused(short_folder: Path) -> None:
    secret = short_folder / "oidc.secret"
    secret.write_text("short\n")
    text = (
        '[control]\noidc_issuer = "https://login.example.com"\noidc_client_id = "kvrun"\n'
        f'oidc_client_secret_file = "{secret}"\n'
    )
    config = parse_config(text, {}, source=short_folder / "kvrun.toml")
    config.layout.data_dir.mkdir(mode=0o700)
    for mode in (0o644, 0o640, 0o604):
        secret.chmod(mode)
        with pytest.raises(SecretFileError) as refused:
            open_services(config)
        assert "control.oidc_client_secret_file" in refused.value.message
        assert refused.value.hint == f"Run: chmod 600 {secret}"
    secret.chmod(0o600)
    services = open_services(config)
    assert services.oidc is not None
    services.close()
