"""The audit log and Storage through the API, and who is on record as their reader."""

from __future__ import annotations

import shutil
import socket

import msgspec
import pytest
from api_rig import World, is_problem

from kvrun.accounts import Role, Scope
from kvrun.audit.segment import segment_name
from kvrun.control.closing import store_rest
from kvrun.control.plane import ControlPlane
from kvrun.deployments.model import Deployment


@pytest.fixture
def chat(world: World) -> Deployment:
    """A deployment with a log that was collected."""
    made = world.deployment("chat")
    world.visit(made, "alice-private")
    return made


def reads(world: World, deployment: Deployment) -> str:
    """What the control plane's log of that deployment says of who read it."""
    folder = world.services.deployments.config_of(deployment.id).layout.control_audit
    lines = [line for path in folder.glob("segment-*.jsonl") for line in path.open()]
    return "".join(line for line in lines if '"log_read"' in line)


async def test_a_log_is_collected_read_and_downloaded_and_every_reader_is_on_record(
    world: World, chat: Deployment
) -> None:
    auditor = world.person("ann@example.com", Role.AUDITOR)
    place = f"/deployments/{chat.id}/audit"
    collected = await auditor.post(f"{place}/collect")
    assert collected.status_code == 200, collected.text
    assert collected.json()["logs"][0]["outcome"] in ("collected", "unchanged")
    seen = await auditor.get(place)
    assert seen.status_code == 200, seen.text
    banner = seen.json()["banners"][0]
    assert f"{banner['verified_up_to']}" in banner["text"].replace(",", "")
    assert reads(world, chat) == ""

    records = await auditor.get(f"{place}/records", params={"limit": 5})
    assert records.status_code == 200, records.text
    assert records.json()["items"]
    assert "alice-private" not in records.text
    assert auditor.user_id in reads(world, chat)


async def test_stored_files_of_every_log_are_listed_and_downloaded_by_name_and_log(
    world: World, chat: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor = world.person("ann@example.com", Role.AUDITOR)
    place = f"/deployments/{chat.id}/audit"
    plane = ControlPlane(world.services.deployments.config_of(chat.id))
    await auditor.post(f"{place}/collect")
    store_rest(plane)
    # It was another machine's log; this one writes a log of its own.
    known, name = plane.memory.all()[0], segment_name(0)
    first = known.log
    plane.memory.save(msgspec.structs.replace(known, source="the other machine"))
    shutil.rmtree(plane.config.layout.audit)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    world.visit(chat, "bob-private", "carol-private")
    collected = await auditor.post(f"{place}/collect")
    assert [item["alert"] for item in collected.json()["logs"]] == [""], collected.text
    store_rest(plane)

    seen = await auditor.get(place)
    assert seen.status_code == 200, seen.text
    segments = seen.json()["segments"]
    logs = {item["log"] for item in segments}
    assert logs == {item["log"] for item in seen.json()["banners"]}
    assert len(logs) == 2
    assert {(item["log"], item["first"]) for item in segments if item["name"] == name} == {
        (log, 0) for log in logs
    }
    assert any(item["first"] is None for item in segments), "checkpoints are files too"
    files = set()
    for item in segments:
        answer = await auditor.get(f"{place}/segments/{item['name']}", params={"log": item["log"]})
        assert answer.status_code == 200, answer.text
        assert len(answer.content) == item["size_bytes"]
        assert answer.headers["content-disposition"].startswith("attachment")
        if item["name"] == name:
            assert f'"log":"{item["log"]}"' in answer.text
        files.add(answer.content)
    assert len(files) == len(segments)
    assert "a segment" in reads(world, chat)

    for log in logs:
        records = await auditor.get(f"{place}/records", params={"log": log})
        assert {item["log"] for item in records.json()["items"]} == {log}
    latest = await auditor.get(f"{place}/records")
    assert {item["log"] for item in latest.json()["items"]} == logs - {first}
    for path in ("/records", f"/segments/{name}"):
        for log in ("another", f"{first}/../another", f"{chat.workspace_id}/{chat.id}"):
            is_problem(await auditor.get(f"{place}{path}", params={"log": log}), 404)


async def test_an_altered_segment_is_not_served(world: World, chat: Deployment) -> None:
    auditor = world.person("ann@example.com", Role.AUDITOR)
    place = f"/deployments/{chat.id}/audit"
    plane = ControlPlane(world.services.deployments.config_of(chat.id))
    await auditor.post(f"{place}/collect")
    store_rest(plane)
    (path,) = plane.config.layout.storage_root.rglob(segment_name(0))
    before = path.read_bytes()
    assert (await auditor.get(f"{place}/segments/{path.name}")).content == before
    path.chmod(0o600)
    path.write_bytes(before.replace(b'"ok"', b'"no"', 1))
    answer = await auditor.get(f"{place}/segments/{path.name}")
    assert "not what was collected" in is_problem(answer, 409)["detail"]
    (item,) = plane.memory.all()
    plane.memory.save(msgspec.structs.replace(item, stored=item.seen, tail_bytes=0))
    is_problem(await auditor.get(f"{place}/records"), 409)


async def test_who_may_not_read_the_log_does_not(world: World, chat: Deployment) -> None:
    program = world.key(world.owner_actor, [Scope.ERASE])
    for path in ("", "/records", "/segments/x"):
        is_problem(await program.get(f"/deployments/{chat.id}/audit{path}"), 403)
    is_problem(await program.post(f"/deployments/{chat.id}/audit/collect"), 403)
    assert reads(world, chat) == ""


async def test_what_cannot_be_put_on_record_is_not_shown(
    world: World, chat: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvrun.audit.errors import AuditUnavailableError
    from kvrun.control.journal import ControlJournal

    def full(*_: object, **__: object) -> None:
        raise AuditUnavailableError("the disk is full")

    monkeypatch.setattr(ControlJournal, "record_read", full)
    answer = await world.owner.get(f"/deployments/{chat.id}/audit/records")
    is_problem(answer, 503)


async def test_storage_is_browsed_and_read_by_those_who_may(world: World, chat: Deployment) -> None:
    await world.owner.post(f"/deployments/{chat.id}/audit/collect")
    place = f"/workspaces/{world.ids['acme']}/storage"
    top = await world.owner.get(place)
    assert top.status_code == 200, top.text
    below = await world.owner.get(place, params={"prefix": f"deployments/{chat.id}"})
    assert below.status_code == 200, below.text
    stranger = world.person("eve@example.com", Role.OWNER, "elsewhere")
    is_problem(await stranger.get(place), 404)
    own = f"/workspaces/{world.ids['elsewhere']}/storage"
    is_problem(await stranger.get(own, params={"prefix": f"deployments/{chat.id}"}), 404)
    key = f"deployments/{chat.id}/audit/x/segment-0000000000000000.jsonl"
    is_problem(await stranger.get(f"{own}/object", params={"key": key}), 404)


async def test_a_key_leads_nowhere_else(world: World, chat: Deployment) -> None:
    place = f"/workspaces/{world.ids['acme']}/storage/object"
    for key in (
        "",
        "deployments",
        "../../etc/passwd",
        "deployments/../../x/y",
        "other/place/kv/x",
        f"deployments/{chat.id}/kv/../../../x",
        f"deployments/{chat.id}/kv/%2e%2e/x",
        f"deployments/{chat.id}/kv/\x00",
        f"deployments/{chat.id}//kv/nothing/there",
    ):
        answer = await world.owner.get(place, params={"key": key})
        assert answer.status_code in (404, 422), (key, answer.text)
        is_problem(answer, answer.status_code)


async def test_end_users_are_pseudonyms_unless_somebody_says_why(
    world: World, chat: Deployment
) -> None:
    place = f"/deployments/{chat.id}/users/search"
    found = await world.owner.post(place, {})
    assert found.status_code == 200, found.text
    assert [row["tenant"] for row in found.json()["items"]] == [None]
    assert "alice-private" not in found.text
    sessions = f"/deployments/{chat.id}/sessions/search"
    listed = await world.owner.post(sessions, {"tenant": "alice-private"})
    assert listed.status_code == 200, listed.text
    assert len(listed.json()["items"]) == 1
    developer = world.person("dev@example.com", Role.DEVELOPER)
    assert (await developer.post(place, {})).status_code == 200
    # An id leads to a pseudonym, so who may not know whom one stands for may not search either.
    is_problem(await developer.post(place, {"query": "alice-private"}), 403)
    is_problem(await developer.post(place, {"reason": "curious"}), 403)
    is_problem(await developer.post(sessions, {"tenant": "alice-private"}), 403)


async def test_where_a_person_is_says_what_it_cannot_tell(world: World, chat: Deployment) -> None:
    asked = {"user": "alice-private"}
    found = await world.owner.post(f"/workspaces/{world.ids['acme']}/where-is", asked)
    assert found.status_code == 200, found.text
    assert [item["deployment"]["id"] for item in found.json()["items"]] == [chat.id]


async def test_looking_for_a_person_writes_nothing_into_a_stopped_deployments_log(
    world: World, chat: Deployment
) -> None:
    log = world.services.deployments.config_of(chat.id).layout.audit

    def written() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in log.iterdir()}

    before = written()
    asked = {"user": "alice-private"}
    found = await world.owner.post(f"/workspaces/{world.ids['acme']}/where-is", asked)
    assert [item["sessions"] for item in found.json()["items"]] == [1]
    assert written() == before
    named = {"tenant": "alice-private", "reason": "ticket 1"}
    await world.owner.post(f"/deployments/{chat.id}/sessions/search", named)
    assert written() != before, "an id that is told is a record first"


async def test_the_trust_anchor_is_for_everybody_who_sees_the_deployment(
    world: World, chat: Deployment
) -> None:
    auditor = world.person("ann@example.com", Role.AUDITOR)
    place = f"/deployments/{chat.id}"
    is_problem(await auditor.get(f"{place}/trust-anchor"), 409)
    scope = {"kind": "session", "tenant": "alice-private", "session": "one"}
    assert (await world.owner.post(f"{place}/erasures", scope)).status_code == 201
    answer = await auditor.get(f"{place}/trust-anchor")
    assert answer.status_code == 200
    assert answer.json()["keys"]
    assert "private" not in answer.text.lower()
