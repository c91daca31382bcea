"""Several at once: what may happen once happens once, in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from accounts_rig import Site
from sqlalchemy.orm import Session

from kvrun.accounts import Accounts, Role, Scope, write_owner_link
from kvrun.accounts.errors import UnauthenticatedError
from kvrun.accounts.oidc import challenge_of
from kvrun.accounts.part import NOTE_USE_EVERY_S
from kvrun.errors import KvrunError
from kvrun.state import Database

VERIFIER = "v" * 43


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


class HeldBack(Database):
    """Every transaction waits to commit until it is let go."""

    def __init__(self, real: Database) -> None:
        self.__dict__.update(real.__dict__)
        self.reached, self.let_go = threading.Event(), threading.Event()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with super().transaction() as session:
            yield session
            session.flush()
            self.reached.set()
            self.let_go.wait(30)


def while_another_commits(
    site: Site, first: Callable[[Accounts], object], then: Callable[[], object]
) -> object:
    """What ``first`` returns, whose commit waits while ``then`` is under way or done."""
    real = site.database
    held = site.database = HeldBack(real)
    accounts, answers = site.another(), list[object]()
    site.database = real
    threads = [
        threading.Thread(target=lambda: answers.append(first(accounts))),
        threading.Thread(target=then),
    ]
    threads[0].start()
    assert held.reached.wait(30)
    threads[1].start()
    threads[1].join(0.5)  # it waits for the row, or is done without having waited
    held.let_go.set()
    for thread in threads:
        thread.join()
    (answer,) = answers
    return answer


def signed_in(site: Site) -> str:
    """An owner's browser."""
    site.member("olga", Role.OWNER)
    return site.sign_in("olga").token


def sign_out(accounts: Accounts, browser: str, everywhere: bool) -> None:
    if everywhere:
        accounts.close_all_sign_ins(accounts.actor_of(browser, note_use=False))
    else:
        accounts.close_sign_in(browser)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_page_asked_for_while_signing_out_is_no_error(site: Site, everywhere: bool) -> None:
    browser = signed_in(site)
    site.now += 2 * NOTE_USE_EVERY_S
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            site.accounts.actor_of(browser)
        except UnauthenticatedError:
            pass
        except Exception as error:
            failed.append(error)

    while_another_commits(site, lambda accounts: sign_out(accounts, browser, everywhere), ask)
    assert not failed
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(browser)


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


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_code_that_is_just_made_does_not_outlive_signing_out(
    site: Site, everywhere: bool
) -> None:
    browser = signed_in(site)
    code = while_another_commits(
        site,
        lambda accounts: accounts.allow_login(browser, challenge_of(VERIFIER), 3600),
        lambda: sign_out(site.accounts, browser, everywhere),
    )
    with pytest.raises(UnauthenticatedError):
        site.accounts.finish_login(str(code), VERIFIER)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_login_that_is_just_made_does_not_outlive_signing_out(
    site: Site, everywhere: bool
) -> None:
    browser = signed_in(site)
    code = site.accounts.allow_login(browser, challenge_of(VERIFIER), 3600)
    token = while_another_commits(
        site,
        lambda accounts: accounts.finish_login(code, VERIFIER).token,
        lambda: sign_out(site.accounts, browser, everywhere),
    )
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of_login(str(token))


def test_a_key_that_a_login_just_makes_does_not_outlive_its_end(site: Site) -> None:
    browser, place = signed_in(site), site.workspace().id
    code = site.accounts.allow_login(browser, challenge_of(VERIFIER), 3600)
    token = site.accounts.finish_login(code, VERIFIER).token
    actor = site.accounts.actor_of_login(token)
    while_another_commits(
        site,
        lambda accounts: accounts.create_key(actor, place, "late", [Scope.ADMIN]),
        lambda: site.accounts.close_sign_in(token),
    )
    (key,) = site.accounts.list_keys(site.accounts.actor_of(browser), place)
    assert not key.active
