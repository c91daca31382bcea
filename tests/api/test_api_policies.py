"""Policies by API: compare, simulate, violations as the command line says; pushes only trigger."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from api_rig import World, is_problem
from policy_stage import EVE, NIL, SECRET, ULI, PolicyStage, connect
from typer.testing import CliRunner

from kvrun.api.policy_pushes import PER_MINUTE
from kvrun.cli.main import app
from kvrun.policy.looks import LEAST_BETWEEN_S, NextLook
from kvrun.policy.setup import folder_of


@pytest.fixture
def stage(world: World, short_folder: Path) -> PolicyStage:
    return connect(world.services.deployments, world.deployment(), short_folder)


async def ask(world: World, stage: PolicyStage, what: str) -> dict[str, Any]:
    answer = await world.owner.get(f"/deployments/{stage.deployment.id}/policy/{what}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def command(stage: PolicyStage, *arguments: str) -> dict[str, Any]:
    """What ``kvrun policy`` says of the same deployment."""
    done = CliRunner().invoke(
        app, ["policy", *arguments, "--json", "--config", str(stage.config_file)]
    )
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_compare_simulate_and_violations_say_what_the_commands_say(
    world: World, stage: PolicyStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    diff = await ask(world, stage, "diff?after=stricter")
    assert (diff["before"], diff["after"]) == (stage.first, stage.second)
    lost = [(item["tier"], item["example"]) for item in diff["decisions"]]
    assert sorted(lost) == [("disk", EVE), ("object", EVE)]
    assert [file["path"] for file in diff["files"]] == ["eu.yaml"]
    assert "-  tiers: [gpu, memory, disk, object]" in diff["files"][0]["lines"]
    said = command(stage, "diff", "active", stage.second)
    assert {name: diff[name] for name in said} == said

    simulated = await ask(world, stage, "simulation?revision=stricter")
    said = command(stage, "simulate", stage.second, "--since", "24h")
    # Eve's blocks on disk, Nil's in memory and on disk, the refusals that no revision undoes.
    assert (simulated["placements"], simulated["refused"]) == (7, 5)
    assert {name: simulated[name] for name in ("placements", "refused")} == {
        name: said[name] for name in ("placements", "refused")
    }
    groups = [{name: item[name] for name in said["changes"][0]} for item in simulated["changes"]]
    assert groups == said["changes"]
    assert [EVE] in [item["tenants"] for item in groups]

    seen = await ask(world, stage, "violations")
    said = command(stage, "violations", "--since", "24h")
    assert seen["items"] == said["entries"]
    assert seen["unrecorded"] == said["unrecorded"] == 7
    found = {(item["kind"], item["tenant_ref"], item["tier"]): item for item in seen["items"]}
    assert set(found) == {
        ("misplaced", NIL, "memory"),
        ("misplaced", NIL, "disk"),
        ("warned", NIL, "disk"),
        ("denied", ULI, "gpu"),
        ("taken_away", EVE, "object"),
    }
    refused = found["denied", ULI, "gpu"]
    assert (refused["times"], refused["rule"], refused["why"]) == (3, "us", "region_not_allowed")
    assert refused["where"] == "policies/us.yaml:1"
    taken = found["taken_away", EVE, "object"]
    assert (taken["blocks"], taken["region"]) == (2, "eu-central-1")
    assert taken["reason"] == "contract with EU customers"
    week = await ask(world, stage, "violations?hours=336")
    (refused,) = [item for item in week["items"] if item["kind"] == "denied" and item["revision"]]
    assert len([item for item in week["items"] if item["kind"] == "denied"]) == 2


async def test_revisions_are_listed_and_names_that_are_none_lead_nowhere(
    world: World, stage: PolicyStage
) -> None:
    stage.repository.commit({"eu.yaml": "x"})
    assert stage.sync() == "rejected"
    items = (await ask(world, stage, "revisions"))["items"]
    assert [(item["active"], bool(item["refused"])) for item in items] == [
        (True, False),
        (False, True),
    ]
    assert items[0]["subject"] == "Change eu.yaml, us.yaml"
    place = f"/deployments/{stage.deployment.id}/policy/diff"
    for name in ("nobody", "0" * 40, "--upload-pack=x", "../x", "a b", "refs/heads/main:x"):
        is_problem(await world.owner.get(place, params={"after": name}), 404)
    bad = await world.owner.get(place, params={"after": "main"})
    assert "policies/eu.yaml:1:1" in is_problem(bad, 422)["detail"]
    assert folder_of(stage.config).active().origin.revision == stage.first  # type: ignore[union-attr]


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    made = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={made}"}


async def push(world: World, body: bytes, headers: dict[str, str]) -> int:
    answer = await world.nobody.ask("POST", "/policy-pushes", content=body, headers=headers)
    return answer.status_code


async def test_a_push_that_the_host_signs_makes_the_repository_be_looked_at(
    world: World, stage: PolicyStage
) -> None:
    folder, now = folder_of(stage.config), [1000.0]
    look = NextLook(folder, 60.0, lambda: now[0])
    look.begin()
    now[0] += LEAST_BETWEEN_S
    # Nothing of the body counts, least of all whose repository and which commit it says.
    body = json.dumps({"ref": "refs/heads/evil", "after": "0" * 40}).encode()
    assert await push(world, body, signed(body)) == 204
    assert look.is_due()
    look.begin()
    assert not look.is_due()
    now[0] += LEAST_BETWEEN_S
    assert await push(world, b"{}", {"X-Gitlab-Token": SECRET}) == 204
    assert look.is_due()
    assert folder.active().origin.revision == stage.first  # type: ignore[union-attr]


async def test_a_push_again_and_again_is_one_look(world: World, stage: PolicyStage) -> None:
    now = [1000.0]
    look = NextLook(folder_of(stage.config), 60.0, lambda: now[0])
    look.begin()
    for _ in range(20):
        assert await push(world, b"{}", signed(b"{}")) == 204
        assert not look.is_due(), "one look follows another after some seconds only"
    now[0] += LEAST_BETWEEN_S
    assert look.is_due()
    look.begin()
    now[0] += 2 * LEAST_BETWEEN_S
    assert not look.is_due(), "all twenty were met by it"


async def test_who_does_not_know_the_secret_triggers_nothing(
    world: World, stage: PolicyStage
) -> None:
    before = folder_of(stage.config).look_asked_at()
    wrong: list[dict[str, str]] = [
        {},
        signed(b"{}", "another secret of 16 bytes"),
        signed(b"another body"),
        {"X-Hub-Signature-256": signed(b"{}")["X-Hub-Signature-256"].removeprefix("sha256=")},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature": "sha1=00"},
        {"X-Gitlab-Token": ""},
        {"X-Gitlab-Token": SECRET[:-1]},
        {"X-Gitlab-Token": SECRET, "X-Hub-Signature-256": "sha256=00"},
    ]
    for headers in wrong:
        assert await push(world, b"{}", headers) == 401, headers
    for _ in range(PER_MINUTE):
        status = await push(world, b"{}", {})
    assert status == 429
    assert await push(world, b"{}", signed(b"{}")) == 429, "a sender that asks too often waits"
    assert folder_of(stage.config).look_asked_at() == before
    world.clock.ahead_s += 61
    assert await push(world, b"{}", signed(b"{}")) == 204


async def test_a_secret_that_others_may_read_or_that_is_short_opens_nothing(
    world: World, stage: PolicyStage
) -> None:
    file = stage.config.residency.webhook_secret_file
    assert file is not None
    file.chmod(0o640)
    assert await push(world, b"{}", signed(b"{}")) == 401
    file.chmod(0o600)
    file.write_text("short")
    assert await push(world, b"{}", signed(b"{}", "short")) == 401
    file.write_text("")
    assert await push(world, b"{}", {"X-Gitlab-Token": ""}) == 401
