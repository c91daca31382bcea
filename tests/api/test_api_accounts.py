"""Workspaces, members, service accounts and API keys through the API."""

from __future__ import annotations

from api_rig import World, is_problem

from kvrun.accounts import Role, Scope


async def test_a_workspace_is_made_listed_and_shown(world: World) -> None:
    made = await world.owner.post("/workspaces", {"name": "research"})
    assert made.status_code == 201
    found = made.json()
    assert found["role"] == "owner"
    assert "delete_workspace" in found["permissions"]
    listed = (await world.owner.get("/workspaces")).json()["items"]
    assert [item["name"] for item in listed] == ["acme", "default", "research"]
    assert (await world.owner.get(f"/workspaces/{found['id']}")).json()["name"] == "research"
    is_problem(await world.owner.post("/workspaces", {"name": "research"}), 409)


async def test_a_name_that_cannot_be_one_is_refused(world: World) -> None:
    for name in ("", "a b", "../x", "x" * 64, "ä", 7, None):
        is_problem(await world.owner.post("/workspaces", {"name": name}), 422)


async def test_what_somebody_may_not_see_is_answered_as_what_is_not_there(world: World) -> None:
    other = world.person("eve@example.com", Role.OWNER, "elsewhere")
    foreign = await other.get(f"/workspaces/{world.ids['acme']}")
    missing = await other.get("/workspaces/ws-aaaaaaaaaaaaaaaa")
    said = [is_problem(answer, 404) for answer in (foreign, missing)]
    assert said[0]["detail"] == said[1]["detail"]


async def test_lists_come_in_pages_that_meet(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}/service-accounts"
    for number in range(5):
        body = {"name": f"bot-{number}", "role": "developer"}
        assert (await world.owner.post(place, body)).status_code == 201
    names: list[str] = []
    cursor = ""
    while True:
        page = (await world.owner.get(place, params={"limit": 2, "cursor": cursor})).json()
        assert len(page["items"]) <= 2
        names += [item["name"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = page["next"]
    assert names == [f"bot-{number}" for number in range(5)]


async def test_a_page_cannot_be_made_larger(world: World) -> None:
    for limit, cursor, status in (
        ("0", "", 422),
        ("201", "", 422),
        ("x", "", 422),
        ("5", "-1", 400),
        ("5", "9" * 400, 400),
        ("5", "٣", 400),
    ):
        asked = {"limit": limit, "cursor": cursor}
        is_problem(await world.owner.get("/workspaces", params=asked), status)


async def test_members_are_added_changed_and_removed(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}/members"
    added = await world.owner.post(place, {"email": "Ann@Example.com", "role": "developer"})
    assert added.status_code == 201
    person = added.json()
    assert person["email"] == "ann@example.com"
    assert person["signed_in"] is False
    changed = await world.owner.ask("PATCH", f"{place}/{person['user_id']}", json={"role": "admin"})
    assert changed.json()["role"] == "admin"
    assert len((await world.owner.get(place)).json()["items"]) == 1
    gone = await world.owner.ask("DELETE", f"{place}/{person['user_id']}")
    assert gone.status_code == 204
    assert gone.content == b""
    is_problem(await world.owner.ask("DELETE", f"{place}/{person['user_id']}"), 404)


async def test_an_auditor_changes_nothing(world: World) -> None:
    auditor = world.person("ann@example.com", Role.AUDITOR)
    place = f"/workspaces/{world.ids['acme']}"
    for answer in (
        await auditor.post(f"{place}/members", {"email": "b@example.com", "role": "auditor"}),
        await auditor.post(f"{place}/service-accounts", {"name": "x", "role": "auditor"}),
        await auditor.post(
            f"{place}/deployments", {"name": "x", "model": "tiny", "multi_tenant": True}
        ),
        await auditor.ask("DELETE", place),
    ):
        is_problem(answer, 403)


async def test_an_api_key_is_shown_once_and_works_until_it_is_revoked(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}/api-keys"
    made = (await world.owner.post(place, {"name": "ci", "scopes": ["audit.read"]})).json()
    listed = await world.owner.get(place)
    assert made["secret"] not in listed.text
    assert listed.json()["items"][0]["scopes"] == ["audit.read"]
    program = world.nobody
    program.headers["Authorization"] = f"Bearer {made['secret']}"
    assert (await program.get("/workspaces")).status_code == 200
    again = await world.owner.post(f"{place}/{made['key']['id']}/rotate", {"overlap_s": 60})
    assert again.status_code == 201
    revoked = await world.owner.ask("DELETE", f"{place}/{made['key']['id']}")
    assert revoked.json()["active"] is False
    is_problem(await program.get("/workspaces"), 401)
    program.headers["Authorization"] = f"Bearer {again.json()['secret']}"
    assert (await program.get("/workspaces")).status_code == 200


async def test_a_key_does_no_more_than_its_scope(world: World) -> None:
    program = world.key(world.owner_actor, [Scope.AUDIT_READ])
    place = f"/workspaces/{world.ids['acme']}"
    assert (await program.get(f"{place}/members")).status_code == 200
    is_problem(
        await program.post(f"{place}/members", {"email": "b@example.com", "role": "admin"}), 403
    )


async def test_a_key_of_one_deployment_sees_that_one_alone(world: World) -> None:
    one, other = world.deployment("one"), world.deployment("two")
    program = world.key(world.owner_actor, [Scope.ADMIN], deployment_id=one.id)
    assert (await program.get(f"/deployments/{one.id}")).status_code == 200
    is_problem(await program.get(f"/deployments/{other.id}"), 404)
    is_problem(await program.get(f"/workspaces/{world.ids['acme']}/members"), 403)
    listed = (await program.get(f"/workspaces/{world.ids['acme']}/deployments")).json()["items"]
    assert [item["id"] for item in listed] == [one.id]


async def test_a_key_for_another_workspaces_deployment_is_not_made(world: World) -> None:
    foreign = world.deployment("theirs", "elsewhere")
    asked = {"name": "x", "scopes": ["infer"], "deployment_id": foreign.id}
    place = f"/workspaces/{world.ids['acme']}/api-keys"
    is_problem(await world.owner.post(place, asked), 404)


async def test_a_refused_value_is_not_repeated(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}/api-keys"
    answer = await world.owner.post(place, {"name": "x", "scopes": ["infer"], "secret": "s3cr3t"})
    found = is_problem(answer, 422)
    assert found["errors"][0]["where"] == "body.secret"
    assert "s3cr3t" not in answer.text


async def test_a_body_that_is_none_is_a_problem_and_no_fault(world: World) -> None:
    kind = {"Content-Type": "application/json"}
    for body in (b"", b"{", b"[]", b"null", b'{"name": 1}', b"\xff\xfe", b"[" * 100_000):
        answer = await world.owner.ask("POST", "/workspaces", content=body, headers=kind)
        assert answer.status_code in (400, 422), answer.text
        is_problem(answer, answer.status_code)


async def test_a_form_of_another_site_is_no_json(world: World) -> None:
    answer = await world.owner.ask(
        "POST", "/workspaces", content=b'{"name":"x"}', headers={"Content-Type": "text/plain"}
    )
    is_problem(answer, 422)


async def test_a_workspace_with_deployments_is_closed_and_not_gone(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}"
    made = world.deployment("chat")
    found = is_problem(await world.owner.ask("DELETE", place), 409)
    assert "chat" in found["detail"]
    body = {"name": "late", "model": "tiny", "multi_tenant": True}
    is_problem(await world.owner.post(f"{place}/deployments", body), 409)
    deleted = await world.owner.post(f"/deployments/{made.id}/delete", {"name": "chat"})
    assert deleted.status_code == 200, deleted.text
    assert (await world.owner.ask("DELETE", place)).json()["deleted_at"] is not None
    assert (await world.owner.get(place)).status_code == 200


async def test_an_unknown_place_is_a_problem_too(world: World) -> None:
    is_problem(await world.owner.get("/no-such-thing"), 404)
    is_problem(await world.owner.ask("PUT", "/workspaces"), 405)
