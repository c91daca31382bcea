"""Workspaces and the people in them: who comes in, who gives roles, who stays last."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from accounts_rig import Site

from kvrun.accounts import AccessEventKind, Accounts, Actor, Role, Scope
from kvrun.accounts.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)


def test_a_person_is_invited_by_address_and_comes_in_at_the_first_sign_in(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    invited = site.accounts.add_member(owner, place.id, "Dev@Example.com", Role.DEVELOPER)
    assert (invited.email, invited.signed_in) == ("dev@example.com", False)
    actor = site.accounts.actor_of(site.sign_in("dev").token)
    assert (actor.id, dict(actor.roles)) == (invited.user_id, {place.id: Role.DEVELOPER})
    members = {one.email: one for one in site.accounts.list_members(owner, place.id)}
    assert members["dev@example.com"].signed_in


def test_somebody_else_with_an_unverified_address_does_not_come_in(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    site.accounts.add_member(owner, place.id, "dev@example.com", Role.DEVELOPER)
    with pytest.raises(ForbiddenError):
        site.sign_in("mallory", email=None)
    site.sign_in("dev")
    # The invitation is used up: the same address under another subject is another person.
    with pytest.raises(ForbiddenError):
        site.sign_in("mallory", email="dev@example.com")


def test_a_new_role_counts_with_the_next_request(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    site.accounts.add_member(owner, place.id, "dev@example.com", Role.DEVELOPER)
    token = site.sign_in("dev").token
    user = site.accounts.actor_of(token).id
    site.accounts.set_role(owner, place.id, user, Role.AUDITOR)
    assert site.accounts.actor_of(token).roles == {place.id: Role.AUDITOR}
    site.accounts.remove_member(owner, place.id, user)
    assert site.accounts.actor_of(token).roles == {}
    told = [event for event in site.events if event.kind is AccessEventKind.ROLE_CHANGED]
    assert [(event.actor_id, event.subject, event.detail) for event in told] == [
        (owner.id, user, "developer -> auditor")
    ]


def test_only_owners_give_and_take_the_role_owner(site: Site) -> None:
    owner, admin = site.member("olga", Role.OWNER), site.member("adam", Role.ADMIN)
    place = site.workspace()
    for refused in (
        lambda: site.accounts.set_role(admin, place.id, admin.id, Role.OWNER),
        lambda: site.accounts.set_role(admin, place.id, owner.id, Role.AUDITOR),
        lambda: site.accounts.remove_member(admin, place.id, owner.id),
        lambda: site.accounts.add_member(admin, place.id, "x@example.com", Role.OWNER),
    ):
        with pytest.raises(ForbiddenError, match="only an owner"):
            refused()
    assert site.again(admin).roles == {place.id: Role.ADMIN}
    assert site.again(owner).roles == {place.id: Role.OWNER}


def test_a_workspace_does_not_lose_its_last_owner(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    with pytest.raises(ConflictError, match="last owner"):
        site.accounts.remove_member(owner, place.id, owner.id)
    with pytest.raises(ConflictError, match="last owner"):
        site.accounts.set_role(owner, place.id, owner.id, Role.ADMIN)
    second = site.member("otto", Role.OWNER)
    site.accounts.remove_member(second, place.id, owner.id)
    assert site.again(owner).roles == {}


def test_a_service_account_is_no_owner_and_no_person(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    with pytest.raises(InvalidError, match="cannot be an owner"):
        site.accounts.create_service_account(owner, place.id, "ci", Role.OWNER)
    made = site.accounts.create_service_account(owner, place.id, "ci", Role.DEVELOPER)
    with pytest.raises(ConflictError):
        site.accounts.create_service_account(owner, place.id, "ci", Role.ADMIN)
    site.accounts.delete_service_account(owner, place.id, made.id)
    assert site.accounts.list_service_accounts(owner, place.id)[0].deleted_at is not None
    site.accounts.create_service_account(owner, place.id, "ci", Role.ADMIN)


def test_an_owner_makes_workspaces_and_others_do_not(site: Site) -> None:
    owner, dev = site.member("olga", Role.OWNER), site.member("dev", Role.DEVELOPER)
    made = site.accounts.create_workspace(owner, "second")
    assert site.again(owner).roles[made.id] is Role.OWNER
    assert made.id not in site.again(dev).roles
    with pytest.raises(ForbiddenError):
        site.accounts.create_workspace(dev, "third")
    for taken in ("second", "acme"):
        with pytest.raises(ConflictError):
            site.accounts.create_workspace(owner, taken)
    for bad in ("", "a b", "../x", "-x", "x" * 64, "ä"):
        with pytest.raises(InvalidError):
            site.accounts.create_workspace(owner, bad)


def test_a_deleted_workspace_can_be_read_and_its_name_is_not_given_again(site: Site) -> None:
    owner, dev = site.member("olga", Role.OWNER), site.member("dev", Role.DEVELOPER)
    place = site.workspace()
    key, secret = site.accounts.create_key(owner, place.id, "k", [Scope.ADMIN])
    with pytest.raises(ConflictError, match="open"):
        site.accounts.delete_workspace(owner, place.id)
    site.accounts.close_workspace(owner, place.id)
    site.accounts.close_workspace(owner, place.id)  # a second call goes on where one stopped
    with pytest.raises(ConflictError, match="being deleted"):
        site.accounts.create_key(owner, place.id, "late", [Scope.ADMIN])
    site.accounts.delete_workspace(owner, place.id)
    assert site.again(owner).roles == {place.id: Role.AUDITOR}
    assert site.again(dev).roles == {}
    assert site.accounts.get_workspace(site.again(owner), place.id).deleted_at is not None
    with pytest.raises(ForbiddenError):
        site.accounts.delete_workspace(site.again(owner), place.id)
    assert site.accounts.list_keys(site.again(owner), place.id)[0].revoked_at is not None
    assert site.accounts.gateway_keys(place.id, "d") == []
    with pytest.raises(ConflictError, match="is, or was"):
        site.accounts.ensure_workspace("acme")
    assert key.active
    assert secret


def _calls() -> dict[str, Callable[[Accounts, Actor, str, str], object]]:
    """Everything that takes a workspace's id, with an id of a thing in it."""
    return {
        "get_workspace": lambda a, who, ws, _: a.get_workspace(who, ws),
        "close_workspace": lambda a, who, ws, _: a.close_workspace(who, ws),
        "delete_workspace": lambda a, who, ws, _: a.delete_workspace(who, ws),
        "list_members": lambda a, who, ws, _: a.list_members(who, ws),
        "add_member": lambda a, who, ws, _: a.add_member(who, ws, "x@example.com", Role.AUDITOR),
        "set_role": lambda a, who, ws, it: a.set_role(who, ws, it, Role.AUDITOR),
        "remove_member": lambda a, who, ws, it: a.remove_member(who, ws, it),
        "create_service_account": lambda a, who, ws, _: a.create_service_account(
            who, ws, "s", Role.AUDITOR
        ),
        "list_service_accounts": lambda a, who, ws, _: a.list_service_accounts(who, ws),
        "delete_service_account": lambda a, who, ws, it: a.delete_service_account(who, ws, it),
        "create_key": lambda a, who, ws, _: a.create_key(who, ws, "k", [Scope.ERASE]),
        "rotate_key": lambda a, who, ws, it: a.rotate_key(who, ws, it, overlap_s=0),
        "revoke_key": lambda a, who, ws, it: a.revoke_key(who, ws, it),
        "list_keys": lambda a, who, ws, _: a.list_keys(who, ws),
        "approval_needed": lambda a, who, ws, _: a.approval_needed(who, ws),
        "ask_approval": lambda a, who, ws, _: a.ask_approval(who, ws, "erase", "plan"),
        "list_approvals": lambda a, who, ws, _: a.list_approvals(who, ws),
        "approve": lambda a, who, ws, it: a.approve(who, ws, it),
        "refuse_approval": lambda a, who, ws, it: a.refuse_approval(who, ws, it),
        "take_approval": lambda a, who, ws, _: a.take_approval(who, ws, "erase", "plan"),
    }


def test_every_operation_on_a_workspace_is_in_this_test() -> None:
    taking = {
        name
        for name, method in inspect.getmembers(Accounts, inspect.isfunction)
        if not name.startswith("_")
        and {"actor", "workspace_id"} <= set(inspect.signature(method).parameters)
    }
    assert taking == set(_calls())


def test_ids_of_another_workspace_open_nothing_and_tell_nothing(site: Site) -> None:
    """A stranger gets word for word the same answer for what exists and for what does not."""
    victim, stranger = site.member("vera", Role.OWNER), site.member("sam", Role.OWNER, "other")
    ours, theirs = site.workspace("acme"), site.workspace("other")
    key, _ = site.accounts.create_key(victim, ours.id, "k", [Scope.ADMIN])
    service = site.accounts.create_service_account(victim, ours.id, "ci", Role.AUDITOR)
    asked = site.accounts.ask_approval(victim, ours.id, "erase", "plan")
    real: dict[str, Any] = {
        "set_role": victim.id,
        "remove_member": victim.id,
        "delete_service_account": service.id,
        "rotate_key": key.id,
        "revoke_key": key.id,
        "approve": asked.id,
        "refuse_approval": asked.id,
    }
    told = len(site.events)
    for name, call in _calls().items():
        answers = set()
        for place in (ours.id, "ws-aaaaaaaaaaaaaaaa"):
            for thing in (real.get(name, "x"), "none-aaaaaaaaaaaaaaaa", "\0", "\ud800"):
                with pytest.raises(NotFoundError) as caught:
                    call(site.accounts, stranger, place, thing)
                answers.add(caught.value.diagnostics())
        assert len(answers) == 1, name
        if name in real:  # their own workspace, our thing
            with pytest.raises(NotFoundError):
                call(site.accounts, stranger, theirs.id, real[name])
            for malformed in ("\0", "\ud800", "", "x" * 10_000):
                with pytest.raises(NotFoundError):
                    call(site.accounts, stranger, theirs.id, malformed)
    assert len(site.events) == told
    assert site.accounts.list_keys(victim, ours.id)[0].active
    assert site.accounts.list_approvals(victim, ours.id)[0].agreed is None
