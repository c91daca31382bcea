"""Many users at once: labelled in the console, planned, agreed to by a second person, erased."""

from __future__ import annotations

import pytest
from console_rig import Reader, base, fields_of, followed, stopped_chat
from page_check import check

from api.api_rig import World
from kvrun.accounts import Role
from kvrun.deployments.model import Deployment


@pytest.fixture
def chat(world: World) -> Deployment:
    return stopped_chat(world)


def place(world: World, chat: Deployment) -> str:
    return f"{base(world)}/deployments/{chat.id}"


async def agree(world: World, who: Reader, words: str) -> None:
    """Somebody finds a request by what it asks, and agrees."""
    page = await who.get(f"{base(world)}/approvals")
    assert words in page.said
    action = next(form["action"] for form in page.forms if form["action"].endswith("/approve"))
    assert (await who.post(action)).status_code == 303


async def test_users_are_labelled_found_by_label_and_erased(
    world: World, owner: Reader, chat: Deployment
) -> None:
    users = f"{place(world, chat)}/users"
    found = check((await owner.post(users, q="alice", reveal="a ticket")).text)
    user = next(link for link in found.links if link.startswith(f"{users}/"))
    wrong = await owner.post(f"{user}/labels", labels="customer")
    assert wrong.status_code == 422
    assert "are lines like name=value" in check(wrong.text).said
    said = {"tenant_class": "gold", "region": "eu-west-1", "labels": "customer=acme\n"}
    assert (await owner.post(f"{user}/labels", **said)).status_code == 303
    page = await owner.get(user)
    assert "customer=acme" in page.text
    assert 'value="gold"' in page.text
    assert "customer=acme" in (await owner.get(users)).said

    where = f"{base(world)}/erase"
    nobody = await owner.post(f"{where}/plan", kind="tenants", label="customer=none")
    assert "no end user there has the label" in check(nobody.text).said
    unnamed = await owner.post(f"{where}/plan", kind="tenants", label="acme")
    assert "Such as customer=acme" in check(unnamed.text).said
    planned = check((await owner.post(f"{where}/plan", kind="tenants", label="customer=acme")).text)
    assert "Plan: erase the users labelled customer=acme" in planned.said
    fields = fields_of(planned, "/erase", ticked=False) | {"reference": "END-1"}
    unsure = await owner.post(where, **fields)
    assert "Confirm that it cannot be undone." in check(unsure.text).said
    begun = await owner.post(where, **fields, sure="yes")
    done = await followed(owner, begun.headers["location"])
    assert "Certified over 1 deployment; keys were destroyed in 1." in done.said
    certificate = next(link for link in done.links if "/certificates/" in link)
    assert "END-1" in (await owner.get(certificate)).said
    opening = next(link for link in done.links if "/openings/" in link)
    assert "customer=acme" in (await owner.ask("GET", opening)).text
    assert world.services.views.users(chat.id).total == 1


async def test_a_list_of_users_is_taken_in_whole_or_not_at_all(
    world: World, owner: Reader, chat: Deployment
) -> None:
    form = f"{place(world, chat)}/labels"
    await owner.get(form)
    wrong = await owner.post(form, csv="tenant,region\nalice,eu,x\n")
    assert wrong.status_code == 422
    assert "line 2 has 3 fields" in check(wrong.text).said
    text = "tenant,region,label:customer\nalice,eu,acme\nnobody,eu,acme\nbob,,acme\n"
    taken = check((await owner.post(form, csv=text)).text)
    assert "Taken in: 2 users" in taken.said
    assert "left out, since nobody of that id has a key here: 3" in taken.said
    planned = await owner.post(f"{base(world)}/erase/plan", kind="tenants", label="customer=acme")
    assert "Sessions whose key is destroyed 2" in check(planned.text).said


async def test_a_workspace_is_erased_with_its_name_once_a_second_person_agreed(
    world: World, chat: Deployment
) -> None:
    ann = Reader(world.person("ann@example.com", Role.PRIVACY))
    ben = Reader(world.person("ben@example.com", Role.PRIVACY))
    where = f"{base(world)}/erase"
    planned = check((await ann.post(f"{where}/plan", kind="workspace")).text)
    assert "A second person has to agree" in planned.said
    assert "Erase and certify" not in planned.said
    asked = await ann.post(f"{where}/ask", **fields_of(planned, "/ask", ticked=False))
    assert asked.status_code == 303
    await agree(world, ben, "Erase everything in this workspace: 2 users, 2 sessions when asked")
    planned = check((await ann.post(f"{where}/plan", kind="workspace")).text)
    assert "A second person has agreed" in planned.said
    fields = fields_of(planned, "/erase", ticked=False) | {"sure": "yes"}
    unnamed = await ann.post(where, **fields | {"name": "another"})
    assert "Nothing was erased" in check(unnamed.text).said
    begun = await ann.post(where, **fields | {"name": "acme"})
    assert "keys were destroyed in 1" in (await followed(ann, begun.headers["location"])).said
    assert world.services.views.users(chat.id).total == 0


async def test_where_the_reach_outgrew_what_was_agreed_to_it_is_asked_again(
    world: World, owner: Reader, chat: Deployment
) -> None:
    ann = Reader(world.person("ann@example.com", Role.PRIVACY))
    ben = Reader(world.person("ben@example.com", Role.PRIVACY))
    whole, one = f"{base(world)}/erase", f"{place(world, chat)}/erase"
    for where, kind, words in (
        (whole, "workspace", "Erase everything in this workspace: 2 users"),
        (one, "deployment", "Erase everything in chat: 2 users"),
    ):
        planned = check((await ann.post(f"{where}/plan", kind=kind)).text)
        await ann.post(f"{where}/ask", **fields_of(planned, "/ask", ticked=False))
        await agree(world, ben, words)
        assert "has agreed" in check((await ann.post(f"{where}/plan", kind=kind)).text).said
    world.visit(chat, *(f"guest-{number}" for number in range(12)))
    for where, kind in ((whole, "workspace"), (one, "deployment")):
        planned = check((await ann.post(f"{where}/plan", kind=kind)).text)
        assert "the plan counted 2 tenants and there are 14 now" in planned.said
        assert "A second person has to agree" in planned.said
        assert "has agreed" not in planned.said
        asked = await ann.post(f"{where}/ask", **fields_of(planned, "/ask", ticked=False))
        assert asked.status_code == 303
    page = await ben.get(f"{base(world)}/approvals")
    assert "Erase everything in chat: 14 users, 14 sessions when asked" in page.said
    # Who agrees to an erasure by label is told which.
    csv = "tenant,label:customer\nalice,acme\n"
    assert (await owner.post(f"{place(world, chat)}/labels", csv=csv)).status_code == 200
    planned = check((await ann.post(f"{whole}/plan", kind="tenants", label="customer=acme")).text)
    await ann.post(f"{whole}/ask", **fields_of(planned, "/ask", ticked=False))
    page = await ben.get(f"{base(world)}/approvals")
    assert "Erase the users labelled customer=acme: 1 user" in page.said
