"""Evidence in the console: the controls as they stand, one click, and the file."""

from __future__ import annotations

import io
import zipfile
from datetime import UTC, datetime, timedelta

from console_rig import Reader, base

from api.api_rig import World, storage_away
from kvrun.accounts import Role
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import run_round


async def test_one_click_makes_evidence_and_the_page_leads_to_the_file(world: World) -> None:
    deployment = world.deployment("chat")
    world.visit(deployment, "alice")
    reader = Reader(world.person("auditor@example.com", Role.AUDITOR))
    place = f"{base(world)}/evidence"
    page = await reader.get(place)
    assert "no evidence in the period" in page.said
    assert "evidence present" not in page.said, "nothing was collected yet"
    shown = (await reader.ask("GET", place)).text
    table = shown.partition('id="controls"')[2].partition("</table>")[0]
    assert table.count('class="badge open"') == 6
    assert "badge good" not in table
    assert "kvrun verify evidence.zip" in table, "what checks a control"
    assert "populations/erasure_requests.csv" in table, "where its evidence is"
    assert "remains between you and your auditor" in page.said
    overview = await reader.get(f"{base(world)}/deployments/{deployment.id}")
    assert "Export evidence" in overview.said
    assert "Export evidence" in (await reader.get(f"{base(world)}/deployments")).said

    answer = await reader.post(place, deployment=deployment.id)
    assert answer.status_code == 303, answer.text
    made = answer.headers["location"]
    world.services.evidence.wait(60)
    page = await reader.get(made)
    assert "The evidence is made" in page.said
    got = await reader.ask("GET", f"{made}/bundle")
    assert got.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(got.content)) as archive:
        assert "index.html" in archive.namelist()
    assert "Download" in (await reader.get(place)).said


async def test_where_storage_is_away_controls_are_said_and_none_of_it_is_green(
    world: World,
) -> None:
    deployment = world.deployment("chat")
    world.visit(deployment, "alice")
    config = world.services.deployments.config_of(deployment.id)
    run_round(ControlPlane(config), reason="scheduled")
    reader = Reader(world.owner)
    today = datetime.now(UTC).date()
    period = f"since={today - timedelta(days=1)}&until={today + timedelta(days=2)}"
    place = f"{base(world)}/evidence?{period}"
    page = await reader.get(place)
    assert "not known now" not in page.said
    green = page.said.count("evidence present")
    with storage_away(config):
        page = await reader.get(place)
    assert page.said.count("not known now") == 2
    assert "Storage cannot be used now" in page.said
    # A key was made, but what its control is judged by besides cannot be counted.
    assert page.said.count("evidence present") == green - 1
    assert "Make a bundle" in page.said


async def test_what_is_typed_wrong_is_said_and_nothing_is_made(world: World) -> None:
    reader = Reader(world.owner)
    place = f"{base(world)}/evidence"
    answer = await reader.post(place, since="2026-02-02", until="2026-02-01")
    assert answer.status_code == 422
    assert "has no day" in answer.text
    assert world.services.evidence.of(world.workspace("acme")) == []
    assert (await reader.ask("GET", f"{place}/0123456789abcdef")).status_code == 404


async def test_who_may_not_make_evidence_is_not_offered_it(world: World) -> None:
    world.deployment("chat")
    reader = Reader(world.person("dev@example.com", Role.DEVELOPER))
    assert "Export evidence" not in (await reader.get(f"{base(world)}/deployments")).said
    await reader.get(f"{base(world)}/evidence", status=403)
    assert (await reader.post(f"{base(world)}/evidence")).status_code == 403
