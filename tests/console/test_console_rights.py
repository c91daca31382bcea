"""What the console offers to whom, and that what is not offered is refused all the same."""

from __future__ import annotations

import asyncio
import time

import pytest
from console_rig import Reader, base
from page_check import check

from api.api_rig import World
from kvrun.accounts import Role
from kvrun.deployments.model import Deployment

ROLES = (Role.OWNER, Role.ADMIN, Role.DEVELOPER, Role.PRIVACY, Role.AUDITOR)
OWNERS = {Role.OWNER, Role.ADMIN}
PAGES = {
    "deployments": set(ROLES),
    "new-deployment": OWNERS | {Role.DEVELOPER},
    "where": OWNERS | {Role.PRIVACY},
    "certificates": OWNERS | {Role.PRIVACY, Role.AUDITOR},
    "storage": set(ROLES),
    "alerts": set(ROLES),
    "approvals": OWNERS | {Role.PRIVACY},
    "keys": set(ROLES),
    "members": set(ROLES),
    "settings": set(ROLES),
}
SECTIONS = {
    "": set(ROLES),
    "/cache": set(ROLES),
    "/policy": set(ROLES),
    "/users": set(ROLES),
    "/audit": set(ROLES),
    "/storage": set(ROLES),
    "/certificates": OWNERS | {Role.PRIVACY, Role.AUDITOR},
    "/settings": set(ROLES),
    "/erase": OWNERS | {Role.PRIVACY},
}
CHANGES: dict[str, tuple[dict[str, str], set[Role]]] = {
    "/new-deployment": ({"name": "x"}, OWNERS | {Role.DEVELOPER}),
    "/attach-deployment": ({}, OWNERS | {Role.DEVELOPER}),
    "/members": ({}, OWNERS),
    "/service-accounts": ({}, OWNERS),
    "/keys": ({}, OWNERS | {Role.DEVELOPER, Role.PRIVACY}),
    "/alerts/acknowledge": ({"reason": ""}, OWNERS),
    "/where": ({}, OWNERS | {Role.PRIVACY}),
    "/where/plan": ({}, OWNERS | {Role.PRIVACY}),
    "/where/erase": ({}, OWNERS | {Role.PRIVACY}),
    "/delete": ({"name": "not its name"}, {Role.OWNER}),
}
DEPLOYMENT_CHANGES: dict[str, tuple[dict[str, str], set[Role]]] = {
    "/do/start": ({}, OWNERS | {Role.DEVELOPER}),
    "/delete": ({"name": "not its name"}, OWNERS),
    "/users": ({"q": "alice"}, OWNERS | {Role.PRIVACY}),
    "/erase/plan": ({"kind": "tenant"}, OWNERS | {Role.PRIVACY}),
    "/erase": ({"kind": "tenant"}, OWNERS | {Role.PRIVACY}),
    "/erase/ask": ({"confirm": "t"}, OWNERS | {Role.PRIVACY}),
}
DONE = {200, 303, 409, 422}


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    return shared_world


@pytest.fixture(scope="module")
def chat(world: World) -> Deployment:
    made = world.deployment("chat")
    world.visit(made, "alice")
    return made


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_sees_its_pages_and_is_refused_the_others(
    world: World, chat: Deployment, role: Role
) -> None:
    reader = Reader(world.person(f"reads-{role}@example.com", role))
    first = await reader.get(f"{base(world)}/deployments")
    for name, roles in PAGES.items():
        answer = await reader.ask("GET", f"{base(world)}/{name}")
        assert answer.status_code == (200 if role in roles else 403), (name, answer.text[-500:])
        offered = any(link == f"{base(world)}/{name}" for link in first.links)
        assert offered <= (role in roles), f"{name} is offered to {role}"
        check(answer.text)
    page = await reader.get(f"{base(world)}/deployments/{chat.id}")
    for section, roles in SECTIONS.items():
        path = f"{base(world)}/deployments/{chat.id}{section}"
        answer = await reader.ask("GET", path)
        assert answer.status_code == (200 if role in roles else 403), (section, answer.text[-500:])
        if section and section != "/erase":
            assert (path in page.links) == (role in roles), f"{section} and {role}"
        page_text = check(answer.text).said
        if section == "/settings":
            assert ("Delete this deployment" in page_text) == (role in OWNERS), role


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_change_what_it_may_and_nothing_else(
    world: World, chat: Deployment, role: Role
) -> None:
    reader = Reader(world.person(f"changes-{role}@example.com", role))
    tried = [(f"{base(world)}{path}", *rest) for path, rest in CHANGES.items()]
    place = f"{base(world)}/deployments/{chat.id}"
    tried += [(f"{place}{path}", *rest) for path, rest in DEPLOYMENT_CHANGES.items()]
    for path, fields, roles in tried:
        answer = await reader.post(path, **fields)
        if role in roles:
            assert answer.status_code in DONE, (path, answer.status_code, answer.text[-500:])
        else:
            assert answer.status_code == 403, (path, answer.status_code)
            assert "You may not do this" in check(answer.text).said


async def test_no_id_of_another_workspace_opens_anything(world: World, chat: Deployment) -> None:
    stranger = Reader(world.person("eve@example.com", Role.OWNER, "elsewhere"))
    for workspace in ("acme", "elsewhere"):
        place = f"{base(world, workspace)}/deployments/{chat.id}"
        for section in SECTIONS:
            page = await stranger.get(f"{place}{section}", 404)
            assert "chat" not in page.said
        for path in DEPLOYMENT_CHANGES:
            assert (await stranger.post(f"{place}{path}")).status_code == 404
    for name in PAGES:
        await stranger.get(f"{base(world)}/{name}", 404)
    for path in CHANGES:
        assert (await stranger.post(f"{base(world)}{path}")).status_code == 404, path


async def test_a_change_without_this_sign_ins_token_changes_nothing(
    world: World, chat: Deployment, owner: Reader
) -> None:
    other = Reader(world.person("olga@example.com", Role.OWNER))
    paths = [f"{base(world)}{path}" for path in CHANGES]
    paths += [f"{base(world)}/deployments/{chat.id}{path}" for path in DEPLOYMENT_CHANGES]
    paths += ["/workspaces", "/sign-out"]
    for path in paths:
        for token in ("", "x", other.caller.headers["X-CSRF-Token"]):
            answer = await owner.send(path, {"csrf_token": token, "email": "eve@example.com"})
            assert answer.status_code == 403, path
    assert (await owner.get(f"{base(world)}/members")).said


async def test_another_persons_erasure_is_not_followed(world: World, chat: Deployment) -> None:
    ann = Reader(world.person("ann@example.com", Role.PRIVACY))
    ben = Reader(world.person("ben@example.com", Role.PRIVACY))
    place = f"{base(world)}/deployments/{chat.id}"
    fields = {"kind": "session", "tenant": "alice", "session": "one", "sure": "yes"}
    begun = await ann.post(f"{place}/erase", **fields)
    assert begun.status_code == 303, begun.text
    run = begun.headers["location"]
    deadline = time.monotonic() + 30
    while "Certificate" not in (await ann.get(run)).said:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await ben.get(run, 404)
    refused = await ben.ask("GET", f"{run}/openings/{'0' * 24}")
    assert refused.status_code == 404
