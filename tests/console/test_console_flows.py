"""Whole ways through the console without a browser: erase, a second person, delete, follow."""

from __future__ import annotations

import time
from typing import cast

import pytest
from console_rig import Reader, base, fields_of, followed, stopped_chat
from fastapi import Request
from page_check import check

from api.api_rig import World
from kvrun.accounts import Role
from kvrun.accounts.errors import ConflictError, NotFoundError
from kvrun.api.dependencies import BrowserSession
from kvrun.console import live, runs
from kvrun.console.desk import Desk
from kvrun.console.pages import Pages
from kvrun.console.runs import Result, Runs
from kvrun.deployments.model import Deployment

SECTIONS = ("", "/cache", "/policy", "/users", "/audit", "/storage", "/certificates", "/settings")


@pytest.fixture
def chat(world: World) -> Deployment:
    return stopped_chat(world)


async def test_a_user_is_planned_erased_and_certified(world: World, chat: Deployment) -> None:
    officer = Reader(world.person("ann@example.com", Role.PRIVACY))
    place = f"{base(world)}/deployments/{chat.id}"
    planned = check((await officer.post(f"{place}/erase/plan", kind="tenant", tenant="alice")).text)
    assert "Plan: erase user alice" in planned.said
    fields = fields_of(planned, "/erase") | {"reference": "DSAR-9"}
    del fields["sure"]
    unsure = check((await officer.post(f"{place}/erase", **fields)).text)
    assert "Confirm that it cannot be undone." in unsure.said
    begun = await officer.post(f"{place}/erase", **fields, sure="yes")
    done = await followed(officer, begun.headers["location"])
    assert "Erased and certified: 1 session key destroyed." in done.said
    opening = next(link for link in done.links if "/openings/" in link)
    assert "alice" in (await officer.ask("GET", opening)).text
    page = await officer.get(next(link for link in done.links if link.startswith(f"{place}/cert")))
    assert "DSAR-9" in page.said
    assert "alice" not in page.said
    listed = await officer.get(f"{base(world)}/certificates")
    assert "DSAR-9" in listed.said
    left = await officer.post(f"{place}/users", q="alice", reveal="DSAR-9")
    assert "Nobody found" in check(left.text).said


async def test_a_plan_that_is_not_its_own_erases_nothing(world: World, chat: Deployment) -> None:
    officer = Reader(world.person("ann@example.com", Role.PRIVACY))
    place = f"{base(world)}/deployments/{chat.id}"
    begun = await officer.post(
        f"{place}/erase", kind="tenant", tenant="alice", confirm="x", sure="1"
    )
    done = await followed(officer, begun.headers["location"])
    assert "not one of this deployment" in done.said
    assert world.services.views.users(chat.id).total == 2


async def test_everything_is_erased_once_a_second_person_agreed(
    world: World, chat: Deployment
) -> None:
    ann = Reader(world.person("ann@example.com", Role.PRIVACY))
    ben = Reader(world.person("ben@example.com", Role.PRIVACY))
    place = f"{base(world)}/deployments/{chat.id}"
    planned = check((await ann.post(f"{place}/erase/plan", kind="deployment")).text)
    assert "A second person has to agree" in planned.said
    assert "Erase and certify" not in planned.said
    asked = await ann.post(f"{place}/erase/ask", **fields_of(planned, "/ask"))
    own = await ann.get(asked.headers["location"])
    assert "Take back" in own.said
    assert "Agree" not in own.said.replace("agree", "")
    waiting = await ben.get(f"{base(world)}/approvals")
    assert "Erase everything in chat: 2 users, 2 sessions when asked" in waiting.said
    action = next(form["action"] for form in waiting.forms if form["action"].endswith("/approve"))
    assert (await ann.post(action)).status_code == 403
    assert (await ben.post(action)).status_code == 303
    planned = check((await ann.post(f"{place}/erase/plan", kind="deployment")).text)
    assert "A second person has agreed" in planned.said
    fields = fields_of(planned, "/erase") | {"sure": "yes"}
    begun = await ann.post(f"{place}/erase", **fields)
    assert "Erased and certified" in (await followed(ann, begun.headers["location"])).said
    assert world.services.views.users(chat.id).total == 0


async def test_a_person_is_found_and_erased_everywhere(world: World, chat: Deployment) -> None:
    other = world.deployment("search")
    world.visit(other, "alice")
    world.launcher.alive.discard(other.id)
    officer = Reader(world.person("ann@example.com", Role.PRIVACY))
    where = f"{base(world)}/where"
    found = check((await officer.post(where, user="alice")).text)
    assert "chat" in found.said
    assert "search" in found.said
    planned = check((await officer.post(f"{where}/plan", user="alice")).text)
    fields = fields_of(planned, "/erase") | {"sure": "yes", "reference": "DSAR-10"}
    assert {f"token.{chat.id}", f"token.{other.id}"} <= set(fields)
    begun = await officer.post(f"{where}/erase", **fields)
    done = await followed(officer, begun.headers["location"])
    assert "Certified over 2 deployments; keys were destroyed in 2." in done.said
    certificate = next(link for link in done.links if "/certificates/" in link)
    assert "DSAR-10" in (await officer.get(certificate)).said
    gone = check((await officer.post(where, user="alice")).text)
    assert gone.said.count("nothing held") == 2
    listed = await officer.get(f"{base(world)}/certificates")
    assert "each deployment's own" in listed.said, "the one over both proves what theirs do"
    assert "nothing held" not in listed.said


async def test_after_deletion_every_page_stays_and_offers_no_change(
    world: World, owner: Reader, chat: Deployment
) -> None:
    place = f"{base(world)}/deployments/{chat.id}"
    refused = await owner.post(f"{place}/delete", name="another")
    assert "Nothing was deleted" in check(refused.text).said
    begun = await owner.post(f"{place}/delete", name="chat")
    done = await followed(owner, begun.headers["location"])
    assert "chat is deleted" in done.said
    for section in SECTIONS:
        page = await owner.get(f"{place}{section}")
        assert "This deployment was deleted" in page.said
        changes = [form["action"] for form in page.forms if form["method"] == "post"]
        assert set(changes) <= {"/sign-out", f"{place}/users", f"{base(world)}/evidence"}, section
    audit = await owner.get(f"{place}/audit")
    assert "log opened" in audit.said
    assert "Verified up to record" in audit.said
    files = [link for link in audit.links if "/audit/segments/segment-" in link]
    assert files
    answers = [await owner.ask("GET", file) for file in files]
    assert {answer.status_code for answer in answers} == {200}
    assert any('"event":"log_opened"' in answer.text for answer in answers)
    assert all("attachment" in answer.headers["content-disposition"] for answer in answers)
    assert (await owner.post(f"{place}/do/start")).status_code == 409


async def test_a_page_that_is_followed_ends_with_its_sign_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.001)
    token = world.owner.headers["Cookie"].partition("=")[2]
    session = BrowserSession(token, world.owner_actor, world.owner.headers["X-CSRF-Token"])
    desk = Desk(cast(Request, None), world.services, session, Pages())
    texts = iter(["a", "a", "b"])
    sent: list[str] = []
    async for event in live._events(desk, lambda: {"state": next(texts, "b")}, lambda: False):
        sent.append(event)
        if "data: b" in event:
            world.services.accounts.close_sign_in(token)
    assert [event for event in sent if event.startswith("event")] == [
        "event: state\ndata: a\n\n",
        "event: state\ndata: b\n\n",
    ]


async def test_looking_on_does_not_keep_a_sign_in_alive(world: World) -> None:
    token = world.owner.headers["Cookie"].partition("=")[2]
    session = BrowserSession(token, world.owner_actor, world.owner.headers["X-CSRF-Token"])
    desk = Desk(cast(Request, None), world.services, session, Pages())
    for _ in range(3):
        world.clock.ahead_s += world.services.settings.session_idle_s / 2.5
        looking = live._signed_in(desk)
    assert not looking


async def test_an_open_page_that_asks_again_does_not_keep_a_sign_in_alive(
    world: World, owner: Reader, chat: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.001)
    monkeypatch.setattr(live, "LONGEST_S", 0.001)
    workspace, kept = world.ids["acme"], Runs(world.clock)
    monkeypatch.setattr(world.app.state, "console_runs", kept)
    of_one = kept.start(world.owner_actor, chat.id, "Erase", lambda: Result("done"))
    of_all = kept.start(world.owner_actor, workspace, "Erase", lambda: Result("done"))
    followed = (
        f"{base(world)}/deployments-events",
        f"{base(world)}/deployments/{chat.id}/events",
        f"{base(world)}/deployments/{chat.id}/runs/{of_one.id}/events",
        f"{base(world)}/where/runs/{of_all.id}/events",
    )
    for _ in range(2):
        world.clock.ahead_s += world.services.settings.session_idle_s / 2.5
        for path in followed:
            assert (await owner.ask("GET", path)).status_code == 200, path
    world.clock.ahead_s += world.services.settings.session_idle_s / 2.5
    for path in (*followed, f"{base(world)}/deployments"):
        assert (await owner.ask("GET", path)).status_code in (303, 401), path


def test_what_ended_is_kept_for_a_while_and_for_whom_it_is(world: World) -> None:
    now = [1000.0]
    kept = Runs(lambda: now[0])

    def long() -> Result:
        now[0] += 2 * runs.KEPT_S
        return Result("done")

    ended = kept.start(world.owner_actor, "d-1", "Erase", long)
    deadline = time.monotonic() + 30
    while not ended.done:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert kept.find(world.owner_actor, "d-1", ended.id).said == "done"
    with pytest.raises(NotFoundError):
        kept.find(world.owner_actor, "d-2", ended.id)
    kept.start(world.owner_actor, "d-3", "Erase", lambda: Result("done"))
    assert kept.find(world.owner_actor, "d-1", ended.id).said == "done"
    now[0] += runs.KEPT_S + 1
    kept.start(world.owner_actor, "d-1", "Erase", lambda: Result("done"))
    with pytest.raises(NotFoundError):
        kept.find(world.owner_actor, "d-1", ended.id)


def test_too_much_at_a_time_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_do", lambda *_: None)
    kept = Runs(lambda: 0.0)
    for _ in range(runs.MAX_UNDER_WAY):
        kept.start(world.owner_actor, "d-1", "Erase", lambda: Result("done"))
    with pytest.raises(ConflictError, match="under way"):
        kept.start(world.owner_actor, "d-1", "Erase", lambda: Result("done"))
