"""Deployments through the API, run by a simulated launcher."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from api_rig import Caller, World, is_problem

from kvrun.accounts import Accounts, Role, Scope
from kvrun.accounts.errors import UnauthenticatedError
from kvrun.deployments import deleting
from kvrun.deployments.model import DeploymentState
from kvrun.deployments.service import Deployments
from kvrun.gateway.apikeys import ApiKeyRecord, load_api_keys
from kvrun.keys.filesystem import ClaimClass
from support.filesystems import pretend_filesystem

SPEC: dict[str, Any] = {
    "name": "chat",
    "model": "tiny",
    "multi_tenant": True,
    "disk_bytes": 2**20,
    "labels": {"team": "search"},
}


def records(world: World, deployment_id: str) -> list[dict[str, Any]]:
    """What the control plane's own log says of a deployment."""
    log = world.services.access_log.folder
    lines = [json.loads(line) for path in sorted(log.glob("segment-*.jsonl"))
             for line in path.read_text().splitlines()]  # fmt: skip
    return [found for found in lines if found.get("deployment") == deployment_id]


def refuse(*_args: object, **_more: object) -> None:
    raise OSError("the disk is gone")


def alive(world: World, key: Caller) -> bool:
    """Whether an API key is one still."""
    try:
        world.services.accounts.authenticate_key(key.headers["Authorization"].split()[1])
    except UnauthenticatedError:
        return False
    return True


def finish(world: World, deployment_id: str) -> None:
    """Supervision finishes a deletion."""
    world.clock.ahead_s += 3600
    world.services.deployments.supervise()
    assert world.services.deployments.get(deployment_id).state is DeploymentState.DELETED


async def create(world: World, **changed: Any) -> dict[str, Any]:
    place = f"/workspaces/{world.workspace('acme')}/deployments"
    answer = await world.owner.post(place, {**SPEC, **changed})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_deployment_is_made_started_stopped_and_deleted(world: World) -> None:
    made = await create(world)
    assert made["state"] == "created"
    assert made["spec"]["labels"] == {"team": "search"}
    assert "start" in made["commands"]
    place = f"/deployments/{made['id']}"
    started = await world.owner.post(f"{place}/start")
    assert started.status_code == 202
    world.services.deployments.supervise()
    assert (await world.owner.get(place)).json()["state"] == "running"
    assert (await world.owner.post(f"{place}/stop")).status_code == 202
    world.services.deployments.supervise()
    assert (await world.owner.get(place)).json()["state"] == "stopped"
    deleted = await world.owner.post(f"{place}/delete", {"name": "chat"})
    assert deleted.status_code == 200, deleted.text
    after = (await world.owner.get(place)).json()
    assert after["state"] == "deleted"
    assert after["commands"] == []
    listing = f"/workspaces/{world.ids['acme']}/deployments"
    assert (await world.owner.get(listing)).json()["items"] == []
    kept = await world.owner.get(listing, params={"deleted": True})
    assert [item["id"] for item in kept.json()["items"]] == [made["id"]]


@pytest.mark.parametrize("claim", list(ClaimClass))
async def test_who_makes_a_deployment_is_told_when_its_root_proves_no_erasure(
    world: World, monkeypatch: pytest.MonkeyPatch, claim: ClaimClass
) -> None:
    pretend_filesystem(monkeypatch, claim)
    made = await create(world)
    said = [text for text in made["warnings"] if "cannot prove that keys are gone" in text]
    assert len(said) == (claim is ClaimClass.LOGICAL)
    assert all("a key deletion record, not in a certificate (testfs" in text for text in said)
    view = await world.owner.get(f"/deployments/{made['id']}/overview")
    assert view.json()["warnings"] == made["warnings"]
    await world.owner.post(f"/deployments/{made['id']}/delete", {"name": "chat"})
    view = await world.owner.get(f"/deployments/{made['id']}/overview")
    assert view.json()["warnings"] == [], "of what is deleted nothing will be erased"


async def test_what_was_asked_and_by_whom_is_on_record_before_it_is_done(world: World) -> None:
    made = await create(world)
    await world.owner.post(f"/deployments/{made['id']}/start")
    assert [found["event"] for found in records(world, made["id"])] == [
        "deployment_created", "deployment_asked"]  # fmt: skip
    reason = f"requested: start by local_owner {world.owner.user_id}"
    assert records(world, made["id"])[-1]["reason"] == reason


async def test_a_record_of_what_was_asked_claims_no_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world.deployment()
    place, before = f"/deployments/{made.id}", len(records(world, made.id))
    for verb in ("restart", "rebuild", "stop", "drain", "detach"):
        await world.owner.post(f"{place}/{verb}")
    monkeypatch.setattr(deleting, "remove_data", refuse)
    is_problem(await world.owner.post(f"{place}/delete", {"name": "chat"}), 409)
    asked = [
        found for found in records(world, made.id)[before:] if found["event"] == "deployment_asked"
    ]
    assert [found["reason"].split(" by ")[0] for found in asked] == [
        f"requested: {verb}" for verb in ("restart", "rebuild", "stop", "drain", "detach", "delete")
    ]
    assert "deployment_deleted" not in {found["event"] for found in records(world, made.id)}
    monkeypatch.undo()
    finish(world, made.id)
    assert records(world, made.id)[-1]["event"] == "deployment_deleted"


async def test_keys_of_a_deployment_end_with_it_also_when_supervision_finishes_the_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = world.deployment(), world.deployment("kept")
    key = world.key(world.owner_actor, ["infer"], deployment_id=made.id)
    other = world.key(world.owner_actor, ["infer"], deployment_id=kept.id)
    monkeypatch.setattr(deleting, "remove_data", refuse)
    is_problem(await world.owner.post(f"/deployments/{made.id}/delete", {"name": "chat"}), 409)
    assert alive(world, key)
    monkeypatch.undo()
    finish(world, made.id)
    assert not alive(world, key)
    assert alive(world, other)


async def test_keys_that_a_crash_left_behind_their_deployment_are_ended_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world.deployment()
    key = world.key(world.owner_actor, ["infer"], deployment_id=made.id)
    with monkeypatch.context() as patch:
        patch.setattr(Accounts, "revoke_deployment_keys", refuse)
        deleted = await world.owner.post(f"/deployments/{made.id}/delete", {"name": "chat"})
    assert deleted.status_code == 200
    assert alive(world, key)
    world.services.keys.keep_up()
    assert not alive(world, key)


async def test_a_detached_deployment_takes_its_keys_along_and_is_not_called_deleted(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "theirs" / "kvrun.toml"
    file.parent.mkdir()
    file.write_text(f'[instance]\ndata_dir = "{file.parent}/data"\n[gateway]\nport = 1\n')
    file.chmod(0o600)
    token = world.services.deployments.attach_token(world.workspace("acme"), "theirs")
    made = world.services.deployments.attach(token, file)
    key = world.key(world.owner_actor, ["erase"], deployment_id=made.id)
    assert (await world.owner.post(f"/deployments/{made.id}/detach")).status_code == 200
    assert not alive(world, key)
    last = records(world, made.id)[-1]
    assert last["event"] == "deployment_asked"
    assert "detached: its keys and data stay" in last["reason"]


def test_a_slower_thread_does_not_put_a_revoked_key_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, place = world.deployment(), world.workspace("acme")
    record, _ = world.services.accounts.create_key(
        world.owner_actor, place, "app", [Scope.INFER], deployment_id=made.id
    )
    write, first = Deployments.set_api_keys, threading.Event()
    revoking = threading.Thread(
        target=world.services.accounts.revoke_key, args=(world.owner_actor, place, record.id)
    )

    def slowly(deployments: Deployments, deployment_id: str, keys: Sequence[ApiKeyRecord]) -> None:
        if not first.is_set():
            first.set()
            revoking.start()
            # It comes to its end only where it need not wait for this one.
            revoking.join(timeout=0.5)
        write(deployments, deployment_id, keys)

    monkeypatch.setattr(Deployments, "set_api_keys", slowly)
    world.services.keys.give(made)
    revoking.join()
    assert record.id not in {key.id for key in load_api_keys(made.folder / "api_keys.json")}


async def test_deleting_wants_the_name(world: World) -> None:
    made = await create(world)
    answer = await world.owner.post(f"/deployments/{made['id']}/delete", {"name": "other"})
    is_problem(answer, 422)
    assert (await world.owner.get(f"/deployments/{made['id']}")).json()["state"] == "created"


async def test_a_command_that_does_not_fit_says_which_would(world: World) -> None:
    made = await create(world)
    found = is_problem(await world.owner.post(f"/deployments/{made['id']}/drain"), 409)
    assert "start" in found["hint"]


async def test_a_spec_that_cannot_be_one_is_refused(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}/deployments"
    cases: list[dict[str, Any]] = [
        {"name": "../x"},
        {"engine": "other"},
        {"memory_bytes": 1},
        {"context_window": 0},
        {"labels": {"a b": "c"}},
        {"gpu_ids": [0, 0]},
        {"settings": {"keys.root": "memory"}},
        {"settings": {"control.enabled": True}},
        {"folder": "/etc"},
        {"multi_tenant": "perhaps"},
    ]
    for changed in cases:
        is_problem(await world.owner.post(place, {**SPEC, **changed}), 422)
    assert (await world.owner.get(place)).json()["items"] == []


async def test_two_of_one_name_are_refused(world: World) -> None:
    await create(world)
    place = f"/workspaces/{world.ids['acme']}/deployments"
    is_problem(await world.owner.post(place, SPEC), 409)


async def test_who_only_looks_changes_no_deployment(world: World) -> None:
    made = await create(world)
    auditor = world.person("ann@example.com", Role.AUDITOR)
    stranger = world.person("eve@example.com", Role.OWNER, "elsewhere")
    place = f"/deployments/{made['id']}"
    assert (await auditor.get(place)).status_code == 200
    for verb in ("start", "stop", "restart", "rebuild", "drain", "delete", "detach"):
        body = {"name": "chat"} if verb == "delete" else None
        is_problem(await auditor.post(f"{place}/{verb}", body), 403)
        foreign = is_problem(await stranger.post(f"{place}/{verb}", body), 404)
        missing = is_problem(await stranger.post(f"/deployments/d-000000000000/{verb}", body), 404)
        assert foreign["detail"] == missing["detail"]


async def test_an_inference_key_reaches_the_gateway_and_leaves_it(world: World) -> None:
    made = await create(world)
    keys = world.services.deployments.get(made["id"]).folder / "api_keys.json"
    place = f"/workspaces/{world.ids['acme']}/api-keys"
    key = (await world.owner.post(place, {"name": "app", "scopes": ["infer"]})).json()["key"]
    known = {record.id: record.scopes for record in load_api_keys(keys)}
    assert known[key["id"]] == ("inference",)
    await world.owner.ask("DELETE", f"{place}/{key['id']}")
    assert key["id"] not in {record.id for record in load_api_keys(keys)}


async def test_a_new_deployment_knows_the_workspaces_keys(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}/api-keys"
    key = (await world.owner.post(place, {"name": "app", "scopes": ["infer"]})).json()["key"]
    made = await create(world)
    keys = world.services.deployments.get(made["id"]).folder / "api_keys.json"
    assert key["id"] in {record.id for record in load_api_keys(keys)}


async def test_an_attach_token_works_once_and_is_for_deployers(world: World) -> None:
    place = f"/workspaces/{world.ids['acme']}/attach-tokens"
    auditor = world.person("ann@example.com", Role.AUDITOR)
    is_problem(await auditor.post(place, {"name": "theirs"}), 403)
    made = await world.owner.post(place, {"name": "theirs"})
    assert made.status_code == 201
    said = set()
    for path in ("/nowhere/kvrun.toml", "/etc/passwd", "kvrun.toml"):
        asked = {"token": "kva_nonsense", "config_file": path}
        said.add(is_problem(await world.nobody.post("/attached-deployments", asked), 403)["detail"])
    # Who has no token learns nothing of this machine's files.
    assert len(said) == 1
    asked = {"token": made.json()["token"], "config_file": "/nowhere/kvrun.toml"}
    is_problem(await world.nobody.post("/attached-deployments", asked), 400)
    # The attempt has used it up.
    is_problem(await world.nobody.post("/attached-deployments", asked), 403)


async def test_the_process_log_is_for_deployers(world: World) -> None:
    made = world.deployment()
    logs = world.services.deployments.config_of(made.id).layout.logs
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "engine.log").write_text("loading weights\n")
    place = f"/deployments/{made.id}/logs"
    read = await world.owner.get(f"{place}/engine")
    assert read.text == "loading weights\n"
    assert read.headers["content-type"].startswith("text/plain")
    is_problem(await world.owner.get(f"{place}/..%2Fengine"), 404)
    is_problem(await world.owner.get(f"{place}/passwd"), 422)
    auditor = world.person("ann@example.com", Role.AUDITOR)
    is_problem(await auditor.get(f"{place}/engine"), 403)


async def test_an_overview_and_the_cache_are_shown_though_nobody_answers(world: World) -> None:
    made = world.deployment()
    program = world.key(world.owner_actor, [Scope.AUDIT_READ])
    overview = await program.get(f"/deployments/{made.id}/overview")
    assert overview.status_code == 200, overview.text
    assert "curl" in overview.json()["curl"]
    assert overview.json()["requests"] is None
    cache = await program.get(f"/deployments/{made.id}/cache")
    assert cache.status_code == 200, cache.text
    assert {tier["tier"] for tier in cache.json()["tiers"]} >= {"gpu", "memory"}


async def test_labels_of_end_users_are_kept_by_reference(world: World) -> None:
    made = world.deployment()
    note = {"tenant_ref": "ab12" * 8, "tenant_class": "gold", "region": "eu", "labels": {"a": "b"}}
    put = await world.owner.ask("PUT", f"/deployments/{made.id}/tenants", json={"tenants": [note]})
    assert put.json() == {"count": 1}
    asked = {"tenant_refs": [note["tenant_ref"], "cd34" * 8]}
    found = await world.owner.post(f"/deployments/{made.id}/tenants/search", asked)
    assert found.json() == [note]
    bad = {"tenants": [note, {"tenant_ref": "alice@example.com"}]}
    is_problem(await world.owner.ask("PUT", f"/deployments/{made.id}/tenants", json=bad), 422)


async def test_a_list_of_end_users_is_taken_in_whole_or_refused_by_line(world: World) -> None:
    made = world.deployment()
    place = f"/deployments/{made.id}/tenants/import"
    reference = "ab12" * 8
    text = f"tenant_ref,class,region,label:team\n{reference},gold,eu,blue\n"
    done = await world.owner.post(place, {"csv": text})
    assert done.json() == {"count": 1, "unknown_lines": []}
    asked = {"tenant_refs": [reference]}
    (note,) = (await world.owner.post(f"/deployments/{made.id}/tenants/search", asked)).json()
    assert (note["tenant_class"], note["labels"]) == ("gold", {"team": "blue"})
    wrong = await world.owner.post(place, {"csv": f"{text}{reference},silver\n"})
    assert "line 3" in is_problem(wrong, 422)["detail"]
