"""What the console offers to whom, and that what is not offered is refused all the same."""

from __future__ import annotations

import asyncio
import time

import pytest
from console_rig import Reader, base
from fastapi.routing import APIRoute
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
    "erase": OWNERS | {Role.PRIVACY},
    "certificates": OWNERS | {Role.PRIVACY, Role.AUDITOR},
    "evidence": OWNERS | {Role.AUDITOR},
    "policies": set(ROLES),
    "storage": set(ROLES),
    "finetunes": set(ROLES),
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
    "/policy/diff": set(ROLES),
    "/policy/simulate": set(ROLES),
    "/policy/violations": set(ROLES),
    "/users": set(ROLES),
    "/audit": set(ROLES),
    "/storage": set(ROLES),
    "/certificates": OWNERS | {Role.PRIVACY, Role.AUDITOR},
    "/isolation": set(ROLES),
    "/settings": set(ROLES),
    "/erase": OWNERS | {Role.PRIVACY},
    "/labels": OWNERS,
    "/rebuild": OWNERS | {Role.DEVELOPER},
    "/logs": OWNERS | {Role.DEVELOPER},
}
NOT_IN_TABS = ("/erase", "/labels", "/rebuild", "/logs")
NOTHING = "0123456789abcdef"
ITEMS = {
    f"/evidence/{NOTHING}": OWNERS | {Role.AUDITOR},
    f"/evidence/{NOTHING}/bundle": OWNERS | {Role.AUDITOR},
    "/finetunes/none": set(ROLES),
    "/finetunes/none/job": set(ROLES),
    f"/where/runs/{NOTHING}": set(ROLES),
    f"/where/runs/{NOTHING}/openings/{NOTHING}": set(ROLES),
}
"""Pages about what is not there: who may see such a thing is told so, others that they may not."""
DEPLOYMENT_ITEMS = {
    f"/certificates/{NOTHING}": OWNERS | {Role.PRIVACY, Role.AUDITOR},
    f"/runs/{NOTHING}": set(ROLES),
    f"/runs/{NOTHING}/openings/{NOTHING}": set(ROLES),
}
STREAMS = ("/deployments-events", f"/evidence/{NOTHING}/events", "/finetunes/none/job/events",
           f"/where/runs/{NOTHING}/events")  # fmt: skip
DEPLOYMENT_STREAMS = ("/events", f"/runs/{NOTHING}/events")
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
    "/erase/plan": ({}, OWNERS | {Role.PRIVACY}),
    "/erase/ask": ({}, OWNERS | {Role.PRIVACY}),
    "/erase": ({}, OWNERS | {Role.PRIVACY}),
    "/evidence": ({"since": "never"}, OWNERS | {Role.AUDITOR}),
    "/finetunes": ({"name": "x", "model": "none", "data": "{}"}, OWNERS | {Role.DEVELOPER}),
    "/finetunes/none/resume": ({}, OWNERS | {Role.DEVELOPER}),
    "/finetunes/none/cancel": ({}, OWNERS | {Role.DEVELOPER}),
    "/finetunes/none/delete": ({}, OWNERS | {Role.DEVELOPER}),
    "/members/usr-none/role": ({"role": "auditor"}, OWNERS),
    "/members/usr-none/remove": ({}, OWNERS),
    "/service-accounts/sa-none/delete": ({}, OWNERS),
    f"/logins/{NOTHING}/end": ({}, set(ROLES)),
    "/keys/key-none/rotate": ({"overlap": "0"}, OWNERS | {Role.DEVELOPER, Role.PRIVACY}),
    "/keys/key-none/revoke": ({}, OWNERS | {Role.DEVELOPER, Role.PRIVACY}),
    "/approvals/apr-none/approve": ({}, OWNERS | {Role.PRIVACY}),
    "/approvals/apr-none/refuse": ({}, OWNERS | {Role.PRIVACY}),
    "/delete": ({"name": "not its name"}, {Role.OWNER}),
}
DEPLOYMENT_CHANGES: dict[str, tuple[dict[str, str], set[Role]]] = {
    "/do/start": ({}, OWNERS | {Role.DEVELOPER}),
    "/delete": ({"name": "not its name"}, OWNERS),
    "/policy/sync": ({}, OWNERS | {Role.DEVELOPER}),
    "/users": ({"q": "alice"}, OWNERS | {Role.PRIVACY}),
    "/erase/plan": ({"kind": "tenant"}, OWNERS | {Role.PRIVACY}),
    "/erase": ({"kind": "tenant"}, OWNERS | {Role.PRIVACY}),
    "/erase/ask": ({"confirm": "t"}, OWNERS | {Role.PRIVACY}),
    "/labels": ({}, OWNERS),
    "/users/a1b2/labels": ({"labels": "no pair"}, OWNERS),
    "/users/a1b2": ({"reveal": "DSAR-1"}, OWNERS | {Role.PRIVACY}),
    "/rebuild": ({}, OWNERS | {Role.DEVELOPER}),
    "/audit/collect": ({}, set(ROLES)),
    "/isolation": ({}, OWNERS | {Role.DEVELOPER}),
    "/detach": ({}, OWNERS | {Role.DEVELOPER}),
}
DONE = {200, 303, 404, 409, 422}


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    return shared_world


@pytest.fixture(scope="module")
def chat(world: World) -> Deployment:
    made = world.deployment("chat")
    world.visit(made, "alice")
    return made


def test_every_page_and_every_form_is_in_the_tables(world: World, chat: Deployment) -> None:
    place = f"/deployments/{chat.id}"
    read = [f"/{name}" for name in PAGES] + [*ITEMS, *STREAMS]
    read += [place + path for path in (*SECTIONS, *DEPLOYMENT_ITEMS, *DEPLOYMENT_STREAMS)]
    sent = [*CHANGES, *(place + path for path in DEPLOYMENT_CHANGES)]
    known = {"GET": [base(world) + path for path in read], "POST": [base(world) + p for p in sent]}
    routes = [
        (method, route)
        for route in world.app.routes
        if isinstance(route, APIRoute) and route.path.startswith("/workspaces/{workspace_id}")
        for method in route.methods
    ]
    assert len(routes) > 60
    for method, route in routes:
        if route.path.endswith("/users/{tenant_ref}") and method == "GET":
            continue  # as POST
        assert any(route.path_regex.match(path) for path in known[method]), (method, route.path)


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
        if section.count("/") == 1 and section not in NOT_IN_TABS:
            assert (path in page.links) == (role in roles), f"{section} and {role}"
        page_text = check(answer.text).said
        if section == "/settings":
            assert ("Delete this deployment" in page_text) == (role in OWNERS), role
    place = f"/deployments/{chat.id}"
    for path, roles in {**ITEMS, **{place + k: v for k, v in DEPLOYMENT_ITEMS.items()}}.items():
        answer = await reader.ask("GET", base(world) + path)
        if path.endswith("/job") and answer.status_code == 303:  # what is done leads on
            answer = await reader.ask("GET", answer.headers["location"])
        assert answer.status_code == (404 if role in roles else 403), (path, answer.text[-500:])


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
        for section in (*SECTIONS, *DEPLOYMENT_ITEMS, *DEPLOYMENT_STREAMS):
            page = await stranger.get(f"{place}{section}", 404)
            assert "chat" not in page.said
        for path in DEPLOYMENT_CHANGES:
            assert (await stranger.post(f"{place}{path}")).status_code == 404
    for path in (*(f"/{name}" for name in PAGES), *ITEMS, *STREAMS):
        await stranger.get(f"{base(world)}{path}", 404)
    for path in CHANGES:
        assert (await stranger.post(f"{base(world)}{path}")).status_code == 404, path


async def test_a_change_without_this_sign_ins_token_changes_nothing(
    world: World, chat: Deployment, owner: Reader
) -> None:
    other = Reader(world.person("olga@example.com", Role.OWNER))
    paths = [f"{base(world)}{path}" for path in CHANGES]
    paths += [f"{base(world)}/deployments/{chat.id}{path}" for path in DEPLOYMENT_CHANGES]
    paths += ["/workspaces", "/sign-out", "/login"]
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
