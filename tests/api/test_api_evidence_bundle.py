"""Evidence through the API: made in the background, fetched whole, and always on record."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from api_rig import World, is_problem, storage_away

from kvrun.accounts import Role
from kvrun.audit.cursor import read_records
from kvrun.audit.record import Event
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import run_round
from kvrun.deployments.model import Deployment
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import ErasureScope
from kvrun.erasure.targets import NoEngines
from kvrun.erasure.trust import parse_anchor
from kvrun.evidence.check import check_bundle
from kvrun.evidence.period import Period
from kvrun.instance.erasures import ErasureRequest
from kvrun.instance.parts import open_erasures, open_parts
from support.spellings import seen_in


def erased(world: World, deployment: Deployment) -> None:
    """A session of a person is opened and erased, and the log collected."""
    config = world.services.deployments.config_of(deployment.id)
    with (
        open_parts(config, memory_bytes=1 << 20) as parts,
        open_erasures(config, parts, None, NoEngines()) as erasures,
    ):
        parts.instance.open_session("canary-alice", "one")
        scope = ErasureScope(RequestKind.SESSION, "canary-alice", "one")
        erasures.erase(ErasureRequest(scope, "tests", "DSAR-1"))
    run_round(ControlPlane(config), reason="scheduled")


async def test_a_workspaces_evidence_is_made_fetched_checked_and_on_record(
    world: World, tmp_path: Path
) -> None:
    deployment, other = world.deployment("chat"), world.deployment("second")
    erased(world, deployment)
    today = datetime.now(UTC).date()
    period = Period(today - timedelta(days=1), today + timedelta(days=2))
    auditor = world.person("auditor@example.com", Role.AUDITOR)
    program = world.key(world.owner_actor, ["evidence"])
    place = f"/workspaces/{world.workspace('acme')}"
    body = {"from": period.since, "to": period.until, "sample": 3, "full": True}
    before = await auditor.get(f"{place}/controls?from={period.since}&to={period.until}")
    states = {item["requirement"]: item["state"] for item in before.json()["controls"]}
    assert states["Art. 17"] == "present"
    assert states["Evaluation records"] == "none_in_period"

    begun = await auditor.post(f"{place}/evidence", body)
    assert begun.status_code == 202, begun.text
    world.services.evidence.wait(60)
    job = (await auditor.get(f"{place}/evidence/{begun.json()['id']}")).json()
    assert (job["state"], job["error"]) == ("done", "")
    listed = (await auditor.get(f"{place}/evidence")).json()["items"]
    assert [item["id"] for item in listed] == [job["id"]]
    got = await auditor.get(f"{place}/evidence/{job['id']}/bundle")
    assert got.headers["content-type"] == "application/zip"
    assert "attachment" in got.headers["content-disposition"]
    path = tmp_path / "evidence.zip"
    path.write_bytes(got.content)
    anchor = parse_anchor((await auditor.get(f"{place}/trust-anchor")).content)
    report = check_bundle(path, anchor=anchor, now=world.clock())
    assert report.exit_code == 0, report.failed
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("summary.json"))
    secrets = {
        "user": b"canary-alice",
        "API key": program.headers["Authorization"].removeprefix("Bearer ").encode(),
        "cookie": world.owner.headers["Cookie"].partition("=")[2].encode(),
        "CSRF token": world.owner.headers["X-CSRF-Token"].encode(),
    }
    assert seen_in(path, secrets) == []
    assert seen_in(path, {"deployment": deployment.id.encode()})
    assert sorted(name for _, name in manifest["deployments"]) == ["chat", "second"]

    config = world.services.deployments.config_of(other.id)
    for folder in (world.services.access_log.folder, config.layout.control_audit):
        reads = [item.reason for item in read_records(folder) if item.event is Event.LOG_READ]
        assert len([reason for reason in reads if reason.startswith("evidence ")]) == 2, folder


async def test_controls_are_said_where_storage_is_away(world: World) -> None:
    deployment = world.deployment("chat")
    erased(world, deployment)
    today = datetime.now(UTC).date()
    place = f"/workspaces/{deployment.workspace_id}/controls"
    asked = {"from": str(today - timedelta(days=1)), "to": str(today + timedelta(days=2))}
    before = (await world.owner.get(place, params=asked)).json()["controls"]
    usual = {item["requirement"]: item["state"] for item in before}
    with storage_away(world.services.deployments.config_of(deployment.id)):
        answer = await world.owner.get(place, params=asked)
    assert answer.status_code == 200, answer.text
    found = {item["requirement"]: item["state"] for item in answer.json()["controls"]}
    assert usual["Art. 17"] == usual["CC6.1"] == "present"
    assert found == {**usual, "Art. 17": "not_known_now", "CC6.1": "not_known_now"}


async def test_a_deployments_evidence_is_of_it_alone(world: World) -> None:
    chat, second = world.deployment("chat"), world.deployment("second")
    erased(world, chat)
    body = {"from": "2020-01-01", "to": "2020-02-01"}
    begun = await world.owner.post(f"/deployments/{second.id}/evidence", body)
    assert begun.status_code == 202, begun.text
    world.services.evidence.wait(60)
    found = world.services.evidence.get(begun.json()["id"])
    assert (found.state, found.deployment_id) == ("done", second.id)
    with zipfile.ZipFile(world.services.evidence.bundle(found.id)) as archive:
        summary = json.loads(archive.read("summary.json"))
    assert summary["deployments"] == [[second.id, "second"]]


async def test_what_makes_no_sense_or_is_not_there_is_said(world: World) -> None:
    deployment = world.deployment("chat")
    place = f"/workspaces/{deployment.workspace_id}/evidence"
    for body in (
        {"from": "2026-02-01", "to": "2026-02-01"},
        {"from": "2026-02-30", "to": "2026-03-01"},
        {"from": "2026-02-01", "to": "2026-03-01", "sample": -1},
        {"from": "2026-02-01", "to": "2026-03-01", "seed": "two\nlines"},
    ):
        is_problem(await world.owner.post(place, body), 422)
    is_problem(await world.owner.get(f"{place}/0123456789abcdef"), 404)
    is_problem(await world.owner.get(f"{place}/0123456789abcdef/bundle"), 404)
    is_problem(await world.owner.get(f"{place}/..%2f..%2fx"), 404)


async def test_what_cannot_be_put_on_record_is_not_made(world: World) -> None:
    deployment = world.deployment("chat")
    folder = world.services.access_log.folder
    world.services.access_log.created(deployment, "tests")
    newest = max(folder.glob("segment-*.jsonl"))
    newest.write_bytes(newest.read_bytes()[:10])
    body = {"from": "2026-02-01", "to": "2026-03-01"}
    answer = await world.owner.post(f"/deployments/{deployment.id}/evidence", body)
    assert answer.status_code >= 400
    assert world.services.evidence.of(deployment.workspace_id) == []
