"""The Residency pages: compare revisions, simulate one, see what was refused or is misplaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console_rig import Reader, base
from msgspec.structs import replace

from api.api_rig import World
from api.policy_stage import EVE, NIL, ULI, PolicyStage, connect
from kvrun.accounts import Role
from kvrun.deployments import policy_view
from kvrun.policy.observed import Observed
from kvrun.policy.setup import asked_of, folder_of


@pytest.fixture
def stage(world: World, short_folder: Path) -> PolicyStage:
    return connect(world.services.deployments, world.deployment("chat"), short_folder)


def place(world: World, stage: PolicyStage) -> str:
    return f"{base(world)}/deployments/{stage.deployment.id}/policy"


async def test_what_differs_is_shown_as_decisions_policies_and_lines(
    world: World, owner: Reader, stage: PolicyStage
) -> None:
    page = await owner.get(f"{place(world, stage)}/diff?before=active&after=stricter")
    for said in (
        "Decisions that change",
        "disk allowed",
        "It does not allow this tier",
        EVE[:16],
        "allow.tiers: [gpu, memory, disk, object] -> [gpu, memory]",
        "policies/eu.yaml:1",
        "-  tiers: [gpu, memory, disk, object]".replace("-  ", "- "),
        "+ tiers: [gpu, memory]",
    ):
        assert said in page.said, said
    same = await owner.get(f"{place(world, stage)}/diff?after=active")
    assert "No decision of this deployment changes" in same.said
    assert "No file differs" in same.said
    page = await owner.get(f"{place(world, stage)}/diff?after=nobody", 422)
    assert "no branch or tag 'nobody'" in page.said
    page = await owner.get(f"{place(world, stage)}/diff?after=%3Cscript%3Ealert(1)", 422)
    assert "<script>alert" not in page.text
    refused = stage.repository.commit({"eu.yaml": "x"})
    assert stage.sync() == "rejected"
    page = await owner.get(place(world, stage))
    assert any(f"after={refused}" in link for link in page.links), "history leads to comparing"


async def test_a_simulation_says_what_would_be_refused_and_is_on_record(
    world: World, owner: Reader, stage: PolicyStage
) -> None:
    page = await owner.get(f"{place(world, stage)}/simulate?revision=stricter&hours=24")
    assert "Placements looked at 7" in page.said
    assert "Refused by the revision 5" in page.said
    assert "disk refused 1 4.0 KiB 1 eu policies/eu.yaml:1 It does not allow this tier" in page.said
    page = await owner.get(f"{place(world, stage)}/simulate?revision=stricter&hours=x", 422)
    assert "The time is a whole number" in page.said
    log = "\n".join(
        path.read_text() for path in stage.config.layout.data_dir.rglob("segment-*.jsonl")
    )
    assert "policy simulate by " in log


async def test_the_page_shows_revision_author_signature_mode_drift_and_history(
    world: World, owner: Reader, stage: PolicyStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(stage.config)
    active = folder.active()
    assert active is not None
    page = await owner.get(place(world, stage))
    assert f"Revision {stage.first}" in page.said
    assert "Signed by Nobody that is known" in page.said
    assert "another policy" not in page.said
    signed = replace(active.origin, signed_by="ada@example.com")
    folder.activate(replace(active, origin=signed))
    stage.repository.commit({"eu.yaml": "x"})
    assert stage.sync() == "rejected"
    running = {"revision": "c" * 40, "standing": "active", "refused": 4}
    monkeypatch.setattr(
        policy_view, "ask_daemon", lambda _, name, **__: json.dumps(running).encode()
    )
    page = await owner.get(place(world, stage))
    for said in (
        "Mode warn",
        f"Revision {stage.first}",
        "Change Change eu.yaml, us.yaml",
        "Author Ada",
        "Signed by ada@example.com",
        f"The instance runs another policy The instance runs {'c' * 40}; {stage.first} should be",
        f"The instance runs {'c' * 40} (active)",
        "Refused 4 placements",
        "The last look at the repository was rejected policies/eu.yaml:1:1",
        f"activated {stage.first[:12]}",
    ):
        assert said in page.said, said
    for tab in ("violations", "diff", "simulate"):
        assert any(link.endswith(f"/policy/{tab}") for link in page.links), tab


async def test_the_page_shows_what_was_seen_and_what_had_to_leave(
    world: World, owner: Reader, stage: PolicyStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(stage.config).put_seen(asked_of(stage.config), Observed("eu-west-1", "us-east-1"))
    left = {"disk": 1200, "memory": 3}
    answers = {
        "residency": {"revision": stage.first, "standing": "active", "refused": 0},
        "residency_sweep": {
            "revision": stage.first, "passes": 1, "done": False, "sessions": 2,
            "blocks": left, "size_bytes": left,
        },
    }  # fmt: skip
    monkeypatch.setattr(
        policy_view, "ask_daemon", lambda _, name, **__: json.dumps(answers[name]).encode()
    )
    page = await owner.get(place(world, stage))
    assert "Instance eu-west-1 verified" in page.said
    assert "Storage eu-central-1, seen in us-east-1 mismatch" in page.said
    assert "1,200 blocks from disk, 3 blocks from memory, of 2 sessions; it goes on" in page.said


async def test_a_workspaces_policies_lead_to_each_deployments(
    world: World, owner: Reader, stage: PolicyStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deployment("free")
    broken = world.deployment("broken")
    world.deployment("elsewhere", workspace="other")
    broken.config_file.write_text("this is [ no TOML")
    page = await owner.get(f"{base(world)}/policies")
    first = stage.first[:12]
    assert f"{stage.repository.folder}, main warn {first} – eu-west-1 activated" in page.said
    assert "None enforce builtin-1 – – –" in page.said
    assert "broken cannot be read" in page.said
    assert "elsewhere" not in page.said
    assert place(world, stage) in page.links
    answer = {"revision": stage.second, "standing": "active", "refused": 0}
    monkeypatch.setattr(policy_view, "ask_daemon", lambda *_, **__: json.dumps(answer).encode())
    page = await owner.get(f"{base(world)}/policies")
    assert "chat runs another policy" in page.said
    assert f"{first} {stage.second[:12]} eu-west-1" in page.said


async def test_violations_name_user_tier_policy_and_reason(
    world: World, owner: Reader, stage: PolicyStage
) -> None:
    page = await owner.get(f"{place(world, stage)}/violations")
    for said in (
        f"Misplaced now {NIL[:10]} disk eu-west-1 1 session, 1 block, 1.0 KiB",
        f"Done, with a warning {NIL[:10]} disk eu-west-1 2 times",
        f"Refused {ULI[:10]} gpu eu-west-1 3 times us policies/us.yaml:1",
        f"Taken away {EVE[:10]} object eu-central-1 1 time, 2 blocks, 2.0 KiB",
        "contract with EU customers",
        "7 more refusals of this time have no record of their own",
    ):
        assert said in page.said, said


async def test_the_repository_is_looked_at_when_somebody_asks(
    world: World, owner: Reader, stage: PolicyStage
) -> None:
    before = folder_of(stage.config).look_asked_at()
    answer = await owner.post(f"{place(world, stage)}/sync")
    assert answer.status_code == 303
    page = await owner.get(answer.headers["location"])
    assert "looked at within seconds" in page.said
    assert folder_of(stage.config).look_asked_at() > before
    auditor = Reader(world.person("ann@example.com", Role.AUDITOR))
    assert "Look at the repository now" in page.said
    assert "Look at the repository now" not in (await auditor.get(place(world, stage))).said
