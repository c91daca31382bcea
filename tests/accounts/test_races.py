"""Several at once: what may happen once happens once, in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable

from accounts_rig import Site

from kvrun.accounts import Role, Scope, write_owner_link
from kvrun.errors import KvrunError


def at_once(act: Callable[[int], object], times: int = 5) -> tuple[int, set[str]]:
    """How many of ``times`` calls at the same time succeeded, and what the others raised."""
    begin = threading.Barrier(times)
    done: list[object] = []
    failed: list[BaseException] = []

    def call(number: int) -> None:
        begin.wait()
        try:
            done.append(act(number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(error, KvrunError) for error in failed), failed
    return len(done), {type(error).__name__ for error in failed}


def test_two_keys_of_a_name_and_no_third(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    made = at_once(lambda _: site.accounts.create_key(owner, place.id, "app", [Scope.INFER]))
    assert made == (2, {"ConflictError"})


def test_an_owner_link_signs_in_once(site: Site) -> None:
    token = write_owner_link(site.owner_link)
    assert at_once(lambda _: site.accounts.claim_owner_link(token)) == (
        1,
        {"UnauthenticatedError"},
    )


def test_an_approval_is_used_once(site: Site) -> None:
    olga, petra = site.member("olga", Role.OWNER), site.member("petra", Role.PRIVACY)
    place = site.workspace()
    asked = site.accounts.ask_approval(olga, place.id, "erase", "plan")
    site.accounts.approve(petra, place.id, asked.id)
    used = at_once(lambda _: site.accounts.take_approval(olga, place.id, "erase", "plan"))
    assert used == (1, {"ApprovalNeededError"})


def test_owners_who_remove_each_other_leave_one(site: Site) -> None:
    owners = [site.member(f"owner{number}", Role.OWNER) for number in range(3)]
    place = site.workspace()

    def remove_the_next(number: int) -> None:
        site.accounts.remove_member(owners[number], place.id, owners[(number + 1) % 3].id)

    removed, errors = at_once(remove_the_next, 3)
    assert (removed, errors) == (2, {"ConflictError"})


def test_one_workspace_of_a_name(site: Site) -> None:
    owner = site.member("olga", Role.OWNER)
    made = at_once(lambda _: site.accounts.create_workspace(owner, "second"))
    assert made == (1, {"ConflictError"})
