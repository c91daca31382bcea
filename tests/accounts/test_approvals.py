"""Erasing more than one tenant: a second person's word, where there is a second person."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from accounts_rig import Site

from kvrun.accounts import AccessEventKind, Actor, Role, Scope
from kvrun.accounts.approvals import APPROVAL_LASTS_S
from kvrun.accounts.errors import (
    ApprovalNeededError,
    ConflictError,
    ForbiddenError,
    InvalidError,
)

PLAN = "plan-token"


def take(site: Site, actor: Actor, plan: str = PLAN, **changed: str) -> object:
    asked = {"operation": "erase_deployment", "deployment_id": "d-1", **changed}
    return site.accounts.take_approval(
        actor,
        site.workspace().id,
        asked["operation"],
        plan,
        deployment_id=asked["deployment_id"],
    )


def ask(site: Site, actor: Actor, plan: str = PLAN) -> str:
    return site.accounts.ask_approval(
        actor, site.workspace().id, "erase_deployment", plan, deployment_id="d-1"
    ).id


def test_alone_one_erases_alone_and_that_is_told(site: Site) -> None:
    owner = site.member("olga", Role.OWNER)
    site.member("dev", Role.DEVELOPER)
    site.accounts.add_member(owner, site.workspace().id, "never@example.com", Role.OWNER)
    assert not site.accounts.approval_needed(owner, site.workspace().id)
    assert take(site, owner) is None
    assert site.events[-1].detail == "no second person"


def test_with_two_both_have_to_agree(site: Site) -> None:
    olga, petra = site.member("olga", Role.OWNER), site.member("petra", Role.PRIVACY)
    place = site.workspace()
    assert site.accounts.approval_needed(olga, place.id)
    with pytest.raises(ApprovalNeededError):
        take(site, olga)
    asked = ask(site, olga)
    with pytest.raises(ApprovalNeededError):
        take(site, olga)
    site.accounts.approve(petra, place.id, asked)
    assert take(site, olga) is not None
    with pytest.raises(ApprovalNeededError):  # for one use
        take(site, olga)
    assert site.kinds()[-3:] == [
        AccessEventKind.APPROVAL_ASKED,
        AccessEventKind.APPROVAL_GIVEN,
        AccessEventKind.APPROVAL_TAKEN,
    ]


def test_it_is_good_for_the_plan_that_was_seen_and_for_no_other(site: Site) -> None:
    olga, petra = site.member("olga", Role.OWNER), site.member("petra", Role.PRIVACY)
    site.accounts.approve(petra, site.workspace().id, ask(site, olga))
    for other in ({"plan": "another"}, {"operation": "erase_workspace"}, {"deployment_id": "d-2"}):
        with pytest.raises(ApprovalNeededError):
            take(site, olga, **other)
    assert take(site, olga) is not None


def test_nobody_is_ones_own_second_person(site: Site) -> None:
    olga, place = site.member("olga", Role.OWNER), site.workspace()
    site.member("petra", Role.PRIVACY)
    _, secret = site.accounts.create_key(olga, place.id, "k", [Scope.ADMIN])
    service = site.accounts.create_service_account(olga, place.id, "ci", Role.ADMIN)
    _, second = site.accounts.create_key(
        olga, place.id, "k", [Scope.ADMIN], service_account_id=service.id
    )
    key, program = (site.accounts.authenticate_key(text) for text in (secret, second))
    local = site.local_owner()
    by_hand, by_key = ask(site, olga), ask(site, key)
    by_program = ask(site, program)
    refused: list[Callable[[], object]] = [
        lambda: site.accounts.approve(olga, place.id, by_hand),
        lambda: site.accounts.approve(key, place.id, by_hand),
        lambda: site.accounts.approve(program, place.id, by_hand),
        lambda: site.accounts.approve(local, place.id, by_hand),
        lambda: site.accounts.approve(olga, place.id, by_key),
        lambda: site.accounts.approve(olga, place.id, by_program),
    ]
    for attempt in refused:
        with pytest.raises(ForbiddenError):
            attempt()
    with pytest.raises(ApprovalNeededError):
        take(site, key)


def test_who_lost_the_role_has_not_agreed_any_more(site: Site) -> None:
    olga, petra = site.member("olga", Role.OWNER), site.member("petra", Role.PRIVACY)
    site.member("paul", Role.PRIVACY)
    place = site.workspace()
    site.accounts.approve(petra, place.id, ask(site, olga))
    site.accounts.set_role(olga, place.id, petra.id, Role.AUDITOR)
    with pytest.raises(ApprovalNeededError):
        take(site, olga)


def test_a_decision_stands_and_an_old_question_is_none(site: Site) -> None:
    olga, petra = site.member("olga", Role.OWNER), site.member("petra", Role.PRIVACY)
    place = site.workspace()
    refused = ask(site, olga)
    site.accounts.refuse_approval(petra, place.id, refused)
    with pytest.raises(ConflictError):
        site.accounts.approve(petra, place.id, refused)
    with pytest.raises(ApprovalNeededError):
        take(site, olga)
    old, agreed = ask(site, olga), ask(site, olga, "second")
    site.accounts.approve(petra, place.id, agreed)
    site.now += APPROVAL_LASTS_S
    petra, olga = site.again(petra), site.again(olga)
    with pytest.raises(ConflictError):
        site.accounts.approve(petra, place.id, old)
    with pytest.raises(ApprovalNeededError):
        take(site, olga, "second")


def test_who_may_not_erase_widely_neither_asks_nor_agrees(site: Site) -> None:
    olga, dev = site.member("olga", Role.OWNER), site.member("dev", Role.DEVELOPER)
    site.member("petra", Role.PRIVACY)
    asked = ask(site, olga)
    for attempt in (
        lambda: ask(site, dev),
        lambda: site.accounts.approve(dev, site.workspace().id, asked),
        lambda: take(site, dev),
        lambda: site.accounts.list_approvals(dev, site.workspace().id),
    ):
        with pytest.raises(ForbiddenError):
            attempt()


@pytest.mark.parametrize("text", ["", "a b", "x" * 201, "\0", "\ud800"])
def test_a_plan_is_a_plain_token(local_site: Site, text: str) -> None:
    olga = local_site.member("olga", Role.OWNER)
    with pytest.raises(InvalidError):
        ask(local_site, olga, text)
