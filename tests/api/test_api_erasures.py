"""Erasing through the API: planned, confirmed, agreed to by a second person, certified."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from api_rig import Caller, World, is_problem

from kvrun.accounts import Role, Scope
from kvrun.accounts.tables import UserRow
from kvrun.api.services import DATABASE_FILE
from kvrun.deployments.model import Deployment
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.errors import ErasureError
from kvrun.instance.parts import folder_lock


@pytest.fixture
def chat(world: World) -> Deployment:
    """A deployment in which two end users have a session."""
    made = world.deployment("chat")
    world.visit(made, "alice-private", "bob-private")
    return made


def no_space(*_args: object) -> None:
    raise ErasureError("there is no space left")


async def plan(caller: Caller, place: str, scope: dict[str, str]) -> dict[str, Any]:
    answer = await caller.post(f"{place}/erasures/plan", scope)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_tenant_is_planned_erased_listed_and_certified(
    world: World, chat: Deployment
) -> None:
    officer = world.person("ann@example.com", Role.PRIVACY)
    place, scope = f"/deployments/{chat.id}", {"kind": "tenant", "tenant": "alice-private"}
    counted = await plan(officer, place, scope)
    assert counted["tenants"] == 1
    assert counted["sessions"] == 1
    assert counted["needs_approval"] is False
    asked = {**scope, "confirm": counted["token"], "reference": "DSAR-7"}
    done = await officer.post(f"{place}/erasures", asked)
    assert done.status_code == 201, done.text
    assert done.json()["sessions"] == 1
    assert "alice-private" in done.json()["opening"]
    erasure_id = done.json()["id"]

    assert (await plan(officer, place, scope))["tenants"] == 0
    listed = (await officer.get(f"{place}/erasures", params={"reference": "DSAR-7"})).json()
    assert [(row["id"], row["state"]) for row in listed["items"]] == [(erasure_id, "certified")]
    progress = (await officer.get(f"{place}/erasures/{erasure_id}")).json()
    assert [step["name"] for step in progress["steps"]][-1] in ("certified", "proven")
    assert erasure_id in progress["certificates"]

    found = await officer.get(f"{place}/certificates/{erasure_id}")
    assert found.headers["content-disposition"].startswith("attachment")
    assert json.loads(found.content)
    assert "alice-private" not in found.text
    page = await officer.get(f"{place}/certificates/{erasure_id}/page")
    assert page.headers["content-type"].startswith("text/html")
    assert "unsafe-inline" not in page.headers["content-security-policy"]
    assert "sha256-" in page.headers["content-security-policy"]
    assert erasure_id in page.text
    pdf = await officer.get(f"{place}/certificates/{erasure_id}/pdf")
    assert pdf.content.startswith(b"%PDF") or pdf.status_code == 501
    rows = (await officer.get(f"/workspaces/{world.ids['acme']}/certificates")).json()["items"]
    assert [row["id"] for row in rows] == [erasure_id]
    assert officer.user_id in rows[0]["requester"]


@pytest.mark.parametrize("reference", ["deletion of {id}", "\x7fdeletion\x00 of {id}"])
async def test_no_erasure_passes_for_the_deployments_deletion(
    world: World, chat: Deployment, reference: str
) -> None:
    place, scope = f"/deployments/{chat.id}", {"kind": "deployment"}
    counted = await plan(world.owner, place, scope)
    asked = {**scope, "confirm": counted["token"], "reference": reference.format(id=chat.id)}
    is_problem(await world.owner.post(f"{place}/erasures", asked), 422)
    assert (await plan(world.owner, place, scope))["tenants"] == 2


async def test_a_long_name_hides_nobody_in_the_certificate(world: World, chat: Deployment) -> None:
    officer = world.person("ann@example.com", Role.PRIVACY)
    with world.services.database.transaction() as session:
        session.get_one(UserRow, officer.user_id).name = "bob (user u-somebody-else) " * 7
    asked = {"kind": "session", "tenant": "bob-private", "session": "one"}
    done = await officer.post(f"/deployments/{chat.id}/erasures", asked)
    assert done.status_code == 201, done.text
    (row,) = (await officer.get(f"/workspaces/{world.ids['acme']}/certificates")).json()["items"]
    assert row["requester"].startswith(f"user {officer.user_id} (bob ")
    assert len(row["requester"]) < 150


async def test_an_older_database_put_back_revives_nobody(
    world: World, chat: Deployment, tmp_path: Path
) -> None:
    live, older = world.services.home / DATABASE_FILE, tmp_path / "last-night.db"
    copy_database(live, older)
    asked = {"kind": "session", "tenant": "bob-private", "session": "one"}
    done = await world.owner.post(f"/deployments/{chat.id}/erasures", asked)
    assert done.status_code == 201, done.text
    copy_database(older, live)
    place = f"/deployments/{chat.id}"
    counted = [
        (await plan(world.owner, place, {"kind": "tenant", "tenant": tenant}))["sessions"]
        for tenant in ("bob-private", "alice-private")
    ]
    assert counted == [0, 1]


def copy_database(source: Path, target: Path) -> None:
    """As a backup tool does, the journal included."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


async def test_a_session_is_erased_at_once(world: World, chat: Deployment) -> None:
    asked = {"kind": "session", "tenant": "bob-private", "session": "one"}
    done = await world.owner.post(f"/deployments/{chat.id}/erasures", asked)
    assert done.status_code == 201, done.text
    assert done.json()["sessions"] == 1


async def test_without_its_plans_token_nothing_is_erased(world: World, chat: Deployment) -> None:
    place, scope = f"/deployments/{chat.id}", {"kind": "tenant", "tenant": "alice-private"}
    for confirm, status in (("", 409), ("made-up", 409), ("x" * 513, 422)):
        answer = await world.owner.post(f"{place}/erasures", {**scope, "confirm": confirm})
        is_problem(answer, status)
    assert (await plan(world.owner, place, scope))["tenants"] == 1


async def test_the_token_of_another_scope_does_not_do(world: World, chat: Deployment) -> None:
    place = f"/deployments/{chat.id}"
    token = (await plan(world.owner, place, {"kind": "tenant", "tenant": "bob-private"}))["token"]
    asked = {"kind": "tenant", "tenant": "alice-private", "confirm": token}
    is_problem(await world.owner.post(f"{place}/erasures", asked), 409)


async def test_who_may_not_erase_may_not_plan_either(world: World, chat: Deployment) -> None:
    scope, where = {"kind": "tenant", "tenant": "alice-private"}, {"user": "alice-private"}
    for role in (Role.DEVELOPER, Role.AUDITOR):
        caller = world.person(f"{role}@example.com", role)
        is_problem(await caller.post(f"/deployments/{chat.id}/erasures/plan", scope), 403)
        is_problem(await caller.post(f"/deployments/{chat.id}/erasures", scope), 403)
        is_problem(await caller.post(f"/workspaces/{world.ids['acme']}/where-is", where), 403)


async def test_a_key_for_erasing_erases_a_tenant_and_no_deployment(
    world: World, chat: Deployment
) -> None:
    program = world.key(world.owner_actor, [Scope.ERASE])
    place = f"/deployments/{chat.id}"
    counted = await plan(program, place, {"kind": "tenant", "tenant": "alice-private"})
    assert counted["tenants"] == 1
    is_problem(await program.post(f"{place}/erasures/plan", {"kind": "deployment"}), 403)


async def test_a_whole_deployment_needs_a_second_person_where_there_is_one(
    world: World, chat: Deployment
) -> None:
    ann = world.person("ann@example.com", Role.PRIVACY)
    ben = world.person("ben@example.com", Role.PRIVACY)
    place, workspace = f"/deployments/{chat.id}", f"/workspaces/{world.ids['acme']}"
    counted = await plan(ann, place, {"kind": "deployment"})
    assert counted["tenants"] == 2
    assert counted["needs_approval"] is True
    asked = {"kind": "deployment", "confirm": counted["token"]}
    is_problem(await ann.post(f"{place}/erasures", asked), 403)

    wish = {"deployment_id": chat.id, "token": counted["token"]}
    request = (await ann.post(f"{workspace}/approvals", wish)).json()
    approval = f"{workspace}/approvals/{request['id']}"
    is_problem(await ann.post(f"{approval}/approve"), 403)
    is_problem(await world.owner.post(f"{approval}/approve"), 403)
    is_problem(await ann.post(f"{place}/erasures", asked), 403)
    assert (await ben.post(f"{approval}/approve")).json()["agreed"] is True

    done = await ann.post(f"{place}/erasures", asked)
    assert done.status_code == 201, done.text
    assert done.json()["sessions"] == 2
    # It was for this one time.
    is_problem(await ann.post(f"{place}/erasures", asked), 403)
    listed = (await ben.get(f"{workspace}/approvals")).json()["items"]
    assert listed[0]["taken_at"] is not None


async def test_a_second_person_is_asked_about_a_plan_and_sees_what_it_counted(
    world: World, chat: Deployment
) -> None:
    ann = world.person("ann@example.com", Role.PRIVACY)
    ben = world.person("ben@example.com", Role.PRIVACY)
    place, workspace = f"/deployments/{chat.id}", f"/workspaces/{world.ids['acme']}"
    other = world.deployment("search")
    world.visit(other, "alice")
    of_one = (await plan(ann, place, {"kind": "tenant", "tenant": "alice-private"}))["token"]
    elsewhere = (await plan(ann, f"/deployments/{other.id}", {"kind": "deployment"}))["token"]
    for token in ("plan", of_one, elsewhere):
        wish = {"deployment_id": chat.id, "token": token}
        is_problem(await ann.post(f"{workspace}/approvals", wish), 409)
    token = (await plan(ann, place, {"kind": "deployment"}))["token"]
    assert (await ben.get(f"{workspace}/approvals")).json()["items"] == []
    wish = {"deployment_id": chat.id, "token": token}
    assert (await ann.post(f"{workspace}/approvals", wish)).status_code == 201
    listed = (await ben.get(f"{workspace}/approvals")).json()["items"]
    assert [(item["tenants"], item["sessions"]) for item in listed] == [(2, 2)]


async def test_an_approval_is_not_spent_by_an_erasure_that_did_not_begin(
    world: World, chat: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = world.person("ann@example.com", Role.PRIVACY)
    ben = world.person("ben@example.com", Role.PRIVACY)
    place, workspace = f"/deployments/{chat.id}", f"/workspaces/{world.ids['acme']}"
    token = (await plan(ann, place, {"kind": "deployment"}))["token"]
    wish = {"deployment_id": chat.id, "token": token}
    request = (await ann.post(f"{workspace}/approvals", wish)).json()
    assert (await ben.post(f"{workspace}/approvals/{request['id']}/approve")).status_code == 200
    asked = {"kind": "deployment", "confirm": token}
    config = world.services.deployments.config_of(chat.id)
    with folder_lock(config.layout.data_dir):  # a daemon that starts and does not answer yet
        is_problem(await ann.post(f"{place}/erasures", asked), 409)
    assert (await ann.post(f"{place}/erasures", asked)).status_code == 201

    world.visit(chat, "carol")
    token = (await plan(ann, place, {"kind": "deployment"}))["token"]
    wish = {"deployment_id": chat.id, "token": token}
    request = (await ann.post(f"{workspace}/approvals", wish)).json()
    assert (await ben.post(f"{workspace}/approvals/{request['id']}/approve")).status_code == 200
    asked = {"kind": "deployment", "confirm": token}
    with monkeypatch.context() as patch:
        patch.setattr(CertificateArchive, "put", no_space)
        assert (await ann.post(f"{place}/erasures", asked)).is_error
    # The keys are gone, so this one has been used.
    is_problem(await ann.post(f"{place}/erasures", asked), 403)


async def test_what_was_refused_is_not_erased(world: World, chat: Deployment) -> None:
    ann = world.person("ann@example.com", Role.PRIVACY)
    ben = world.person("ben@example.com", Role.ADMIN)
    place, workspace = f"/deployments/{chat.id}", f"/workspaces/{world.ids['acme']}"
    token = (await plan(ann, place, {"kind": "deployment"}))["token"]
    wish = {"deployment_id": chat.id, "token": token}
    request = (await ann.post(f"{workspace}/approvals", wish)).json()
    refused = await ben.post(f"{workspace}/approvals/{request['id']}/refuse")
    assert refused.json()["agreed"] is False
    asked = {"kind": "deployment", "confirm": token}
    is_problem(await ann.post(f"{place}/erasures", asked), 403)
    assert (await plan(ann, place, {"kind": "deployment"}))["tenants"] == 2


async def test_alone_one_person_erases_a_deployment(world: World, chat: Deployment) -> None:
    place = f"/deployments/{chat.id}"
    counted = await plan(world.owner, place, {"kind": "deployment"})
    assert counted["needs_approval"] is False
    asked = {"kind": "deployment", "confirm": counted["token"]}
    assert (await world.owner.post(f"{place}/erasures", asked)).status_code == 201


async def test_a_person_is_erased_everywhere_with_one_certificate_over_all(
    world: World, chat: Deployment
) -> None:
    other = world.deployment("search")
    world.visit(other, "alice-private")
    workspace = f"/workspaces/{world.ids['acme']}"
    planned = await world.owner.post(f"{workspace}/user-erasures/plan", {"user": "alice-private"})
    parts = planned.json()["deployments"]
    assert sorted(part["name"] for part in parts) == ["chat", "search"]
    assert all(part["plan"]["tenants"] == 1 for part in parts)
    asked = {
        "user": "alice-private",
        "confirm": {part["deployment_id"]: part["plan"]["token"] for part in parts},
        "reference": "DSAR-8",
    }
    done = await world.owner.post(f"{workspace}/user-erasures", asked)
    assert done.status_code == 201, done.text
    children = done.json()["deployments"]
    assert {child["outcome"] for child in children} == {"erased"}
    assert done.json()["id"] in done.json()["openings"]
    listed = await world.owner.get(f"{workspace}/certificates", params={"reference": "DSAR-8"})
    assert len(listed.json()["items"]) == 3


async def test_a_deployment_that_cannot_be_read_is_pending_and_hides_no_other(
    world: World, chat: Deployment
) -> None:
    broken = world.deployment("search")
    workspace = f"/workspaces/{world.ids['acme']}"
    broken.config_file.write_text("this is [ no TOML")
    place, scope = f"/deployments/{chat.id}", {"kind": "tenant", "tenant": "bob-private"}
    counted = await plan(world.owner, place, scope)
    await world.owner.post(f"{place}/erasures", {**scope, "confirm": counted["token"]})
    for path, items in (("certificates", 1), ("alerts", 1)):
        answer = await world.owner.get(f"{workspace}/{path}")
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["items"]) == items
        (problem,) = answer.json()["problems"]
        assert (problem["deployment_id"], problem["deployment_name"]) == (broken.id, "search")
        assert "TOML" in problem["why"]

    planned = await world.owner.post(f"{workspace}/user-erasures/plan", {"user": "alice-private"})
    tokens = {
        part["deployment_id"]: part["plan"]["token"]
        for part in planned.json()["deployments"]
        if part["plan"]
    }
    assert list(tokens) == [chat.id]
    asked = {"user": "alice-private", "reference": "DSAR-9"}
    both = {**asked, "confirm": {**tokens, broken.id: "made-up"}}
    is_problem(await world.owner.post(f"{workspace}/user-erasures", both), 400)
    done = await world.owner.post(f"{workspace}/user-erasures", {**asked, "confirm": tokens})
    assert done.status_code == 201, done.text
    outcomes = {item["deployment"]: item["outcome"] for item in done.json()["deployments"]}
    assert outcomes == {chat.id: "erased", broken.id: "pending"}


async def test_another_workspaces_deployment_is_not_erased_by_its_id(
    world: World, chat: Deployment
) -> None:
    stranger = world.person("eve@example.com", Role.OWNER, "elsewhere")
    scope = {"kind": "session", "tenant": "alice-private", "session": "one"}
    is_problem(await stranger.post(f"/deployments/{chat.id}/erasures", scope), 404)
    is_problem(await stranger.get(f"/deployments/{chat.id}/erasures"), 404)
    is_problem(await stranger.get(f"/deployments/{chat.id}/certificates/x"), 404)
    wish = {"deployment_id": chat.id, "token": "t"}
    place = f"/workspaces/{world.ids['elsewhere']}/approvals"
    is_problem(await stranger.post(place, wish), 404)


async def test_a_scope_that_is_none_is_refused(world: World, chat: Deployment) -> None:
    cases: list[dict[str, Any]] = [
        {"kind": "workspace"},
        {"kind": "tenant"},
        {"kind": "session", "tenant": "alice"},
        {"kind": "tenant", "tenant": "a b"},
        {"kind": "tenant", "tenant": "x" * 129},
        {"kind": "tenant", "tenant": "alice", "extra": 1},
    ]
    for scope in cases:
        answer = await world.owner.post(f"/deployments/{chat.id}/erasures/plan", scope)
        assert answer.status_code in (400, 422), scope
        is_problem(answer, answer.status_code)


async def test_an_unknown_erasure_and_certificate_are_not_found(
    world: World, chat: Deployment
) -> None:
    place = f"/deployments/{chat.id}"
    is_problem(await world.owner.get(f"{place}/erasures/{'0' * 24}"), 404)
    is_problem(await world.owner.get(f"{place}/certificates/{'0' * 24}"), 404)
    is_problem(await world.owner.get(f"{place}/certificates/..%2f..%2fkeys"), 404)
