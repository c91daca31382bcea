"""What proves whom a certificate is about is handed out whatever fails, and fits it."""

from __future__ import annotations

import re

import pytest
from api_rig import World, is_problem
from sqlalchemy.exc import OperationalError

from kvrun.api import joint_erasures
from kvrun.api.erasures import Reasons
from kvrun.deployments.model import Deployment
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.commitment import commit
from kvrun.instance.parts import certificates_folder

ALICE = "alice-private"
SCOPE = {"kind": "tenant", "tenant": ALICE}


@pytest.fixture
def chat(world: World) -> Deployment:
    """A deployment that the person uses."""
    made = world.deployment("chat")
    world.visit(made, ALICE)
    return made


async def tokens_of(world: World) -> dict[str, str]:
    """Of the plans to erase the person everywhere, by deployment id."""
    place = f"/workspaces/{world.ids['acme']}/user-erasures/plan"
    parts = (await world.owner.post(place, {"user": ALICE})).json()["deployments"]
    return {part["deployment_id"]: part["plan"]["token"] for part in parts if part["plan"]}


def another(world: World, name: str, setting: str, value: str) -> Deployment:
    """One that the person uses and whose configuration says so, as an attached one's may."""
    made = world.deployment(name)
    text = made.config_file.read_text()
    changed = re.sub(rf'(?m)^{setting} = ".*"$', f'{setting} = "{value}"', text)
    assert changed != text
    made.config_file.write_text(changed)
    world.visit(made, ALICE)
    return made


async def test_every_opening_fits_its_certificate_also_where_workspaces_have_other_names(
    world: World, chat: Deployment
) -> None:
    made = [
        chat,
        another(world, "assist", "workspace", "other"),
        another(world, "search", "workspace", "yet-another"),
    ]
    asked = {"user": ALICE, "confirm": await tokens_of(world)}
    done = await world.owner.post(f"/workspaces/{world.ids['acme']}/user-erasures", asked)
    assert done.status_code == 201, done.text
    children, openings = done.json()["deployments"], done.json()["openings"]
    assert [child["outcome"] for child in children] == ["erased"] * 3
    configs = [world.services.deployments.config_of(item.id) for item in made]
    archives = [CertificateArchive(certificates_folder(config)) for config in configs]
    statements = {item.id: item for archive in archives for item in archive.statements()}
    assert set(openings) == {done.json()["id"]} | {child["certificate_id"] for child in children}
    for certificate_id, opening in openings.items():
        assert commit(opening.encode()) in statements[certificate_id].scope.commitments
    workspaces = {statement.scope.workspace for statement in statements.values()}
    assert workspaces == {world.ids["acme"], "other", "yet-another"}


async def test_deployments_that_one_certificate_cannot_tell_apart_are_not_erased_together(
    world: World, chat: Deployment
) -> None:
    other = another(world, "search", "name", chat.id)
    tokens = await tokens_of(world)
    place = f"/workspaces/{world.ids['acme']}/user-erasures"
    for confirm in (tokens, {chat.id: tokens[chat.id]}):
        answer = await world.owner.post(place, {"user": ALICE, "confirm": confirm})
        assert chat.id in is_problem(answer, 409)["detail"]
    for item in (chat, other):
        planned = await world.owner.post(f"/deployments/{item.id}/erasures/plan", SCOPE)
        assert planned.json()["tenants"] == 1


async def test_openings_that_nobody_has_got_yet_are_made_again(
    world: World, chat: Deployment
) -> None:
    made = []
    for attempt in range(2):
        tokens = await tokens_of(world)
        try:
            with joint_erasures.erasing_person(
                world.services,
                world.owner_actor,
                world.ids["acme"],
                ALICE,
                confirm=tokens,
                reasons=Reasons("DSAR-10"),
                certify_pending=False,
            ) as done:
                made.append(done.openings)
                if not attempt:
                    raise RuntimeError("no memory to write the answer with")
        except RuntimeError:
            pass
    assert made[0] == made[1]
    assert len(made[0]) == 2


async def test_the_opening_is_handed_out_although_the_database_fails_afterwards(
    world: World, chat: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise OperationalError("DELETE", {}, Exception("database is locked"))

    monkeypatch.setattr(world.services.deployments.tenants, "forget", locked)
    place = f"/deployments/{chat.id}/erasures"
    token = (await world.owner.post(f"{place}/plan", SCOPE)).json()["token"]
    done = await world.owner.post(place, {**SCOPE, "confirm": token})
    assert done.status_code == 201, done.text
    assert ALICE in done.json()["opening"]
