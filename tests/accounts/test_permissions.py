"""Who may do what, as docs/accounts.md states it: every role, every scope, and no hint by ids."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from kvrun.accounts.actor import Actor, ActorKind, Role, Scope
from kvrun.accounts.errors import ForbiddenError, NotFoundError
from kvrun.accounts.permissions import Permission, allowed_scopes, may, require

PAGE = Path(__file__).parents[2] / "docs" / "accounts.md"


def read(columns: Iterable[str]) -> dict[tuple[str, str], bool]:
    """The page's table whose last columns are these: (column, permission) to whether it says x."""
    names = [str(column) for column in columns]
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    first = next(number for number, row in enumerate(rows) if row[-len(names) :] == names)
    found = {}
    for row in rows[first + 2 :][: len(Permission)]:
        for column, cell in zip(names, row[-len(names) :], strict=True):
            found[column, row[0].strip("`")] = cell == "x"
    return found


ROLE_TABLE, SCOPE_TABLE = read(Role), read(Scope)


def person(role: Role, workspace: str = "ws-1") -> Actor:
    return Actor("user-1", "p", ActorKind.USER, {workspace: role}, person="user-1")


def key(role: Role, *scopes: Scope, deployment: str | None = None) -> Actor:
    return Actor(
        "key-1",
        "k",
        ActorKind.API_KEY,
        {"ws-1": role},
        frozenset(scopes),
        deployment,
        person="user-1",
    )


def test_the_tables_name_every_role_scope_and_permission() -> None:
    assert set(ROLE_TABLE) == set(product(Role, Permission))
    assert set(SCOPE_TABLE) == set(product(Scope, Permission))


@pytest.mark.parametrize(("role", "permission"), list(product(Role, Permission)))
def test_a_person_may_do_what_the_role_allows(role: Role, permission: Permission) -> None:
    assert may(person(role), permission, "ws-1") == ROLE_TABLE[role, permission]
    assert not may(person(role), permission, "ws-2")


@pytest.mark.parametrize("role", Role)
def test_an_api_key_may_do_what_role_and_scope_both_allow(role: Role) -> None:
    for scope, permission in product(Scope, Permission):
        allowed = ROLE_TABLE[role, permission] and SCOPE_TABLE[scope, permission]
        assert may(key(role, scope), permission, "ws-1") == allowed, (scope, permission)


def test_a_key_of_one_deployment_does_nothing_elsewhere() -> None:
    bound = key(Role.OWNER, *Scope, deployment="d-1")
    for permission in Permission:
        assert may(bound, permission, "ws-1", "d-1")
        assert not may(bound, permission, "ws-1", "d-2")
        assert not may(bound, permission, "ws-1")


def test_an_actor_without_scopes_that_is_no_person_may_nothing() -> None:
    for kind in (ActorKind.API_KEY, ActorKind.SERVICE):
        assert not may(Actor("k", "k", kind, {"ws-1": Role.OWNER}), Permission.VIEW, "ws-1")


def test_a_role_allows_keys_only_with_scopes_that_it_could_use() -> None:
    assert allowed_scopes(Role.OWNER) == allowed_scopes(Role.ADMIN) == frozenset(Scope)
    assert allowed_scopes(Role.DEVELOPER) == {Scope.INFER, Scope.AUDIT_READ}
    assert allowed_scopes(Role.PRIVACY) == {Scope.ERASE, Scope.AUDIT_READ}
    assert allowed_scopes(Role.AUDITOR) == {Scope.AUDIT_READ, Scope.EVIDENCE}


def test_who_has_no_business_there_learns_not_even_that_it_exists() -> None:
    strangers = [
        person(Role.OWNER, "ws-2"),
        Actor("user-2", "p", ActorKind.USER),
        key(Role.OWNER, Scope.INFER),
        key(Role.OWNER, *Scope, deployment="d-2"),
    ]
    for stranger, permission in product(strangers, Permission):
        with pytest.raises(NotFoundError):
            require(stranger, permission, "ws-1", "d-1")


def test_who_is_known_learns_which_permission_is_missing() -> None:
    with pytest.raises(ForbiddenError, match="needs the permission deploy") as caught:
        require(person(Role.PRIVACY), Permission.DEPLOY, "ws-1", "d-1")
    assert "owner, admin, developer" in (caught.value.hint or "")
