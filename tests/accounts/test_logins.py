"""Logins on command lines: a code for whoever asked, a token for hours, and what ends it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from accounts_rig import ABSOLUTE_S, IDLE_S, Site

from kvrun.accounts import AccessEventKind, ActorKind, Role, Scope
from kvrun.accounts.errors import (
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthenticatedError,
)
from kvrun.accounts.logins import CODE_LASTS_S, LONGEST_S
from kvrun.accounts.oidc import challenge_of

REVOKED = AccessEventKind.API_KEY_REVOKED
VERIFIER, OTHER = "v" * 43, "w" * 43


def allow(site: Site, browser: str, verifier: str = VERIFIER, lasts_s: int = 3600) -> str:
    return site.accounts.allow_login(browser, challenge_of(verifier), lasts_s)


def log_in(site: Site, name: str, lasts_s: int = 3600) -> str:
    """A token of somebody's, from a browser of its own."""
    code = allow(site, site.sign_in(name).token, lasts_s=lasts_s)
    return site.accounts.finish_login(code, VERIFIER).token


def refused(site: Site, code: str, verifier: str = VERIFIER) -> None:
    with pytest.raises(UnauthenticatedError, match="code for the command line is not valid"):
        site.accounts.finish_login(code, verifier)


def ended(site: Site, token: str) -> None:
    with pytest.raises(UnauthenticatedError, match="login has ended"):
        site.accounts.actor_of_login(token)


def test_a_login_is_the_person_with_the_role_of_now(site: Site) -> None:
    petra, olga = site.member("petra", Role.PRIVACY), site.member("olga", Role.OWNER)
    place = site.workspace().id
    token = log_in(site, "petra")
    actor = site.accounts.actor_of_login(token)
    assert (actor.id, actor.kind, actor.scopes) == (petra.id, ActorKind.USER, None)
    assert actor.roles == {place: Role.PRIVACY}
    assert site.events[-1].kind is AccessEventKind.SIGNED_IN
    assert (site.events[-1].subject, site.events[-1].detail) == (petra.id, "terminal")
    site.accounts.set_role(olga, place, petra.id, Role.AUDITOR)
    assert site.accounts.actor_of_login(token).roles == {place: Role.AUDITOR}


def test_a_code_works_once_and_only_with_its_own_verifier(site: Site) -> None:
    site.member("olga", Role.OWNER)
    browser = site.sign_in("olga").token
    code = allow(site, browser)
    site.accounts.finish_login(code, VERIFIER)
    refused(site, code)
    stolen = allow(site, browser)
    refused(site, stolen, OTHER)
    refused(site, stolen)  # whoever tried it used it up
    assert site.kinds()[-1] is AccessEventKind.SIGN_IN_FAILED


def test_a_code_is_typed_as_people_type(local_site: Site) -> None:
    local_site.member("olga", Role.OWNER)
    code = allow(local_site, local_site.sign_in("olga").token)
    typed = f" {code[:4]}-{code[4:8]} {code[8:].upper()}\n"
    assert local_site.accounts.finish_login(typed, VERIFIER).user_id


def test_an_attackers_code_logs_nobody_elses_command_line_in(site: Site) -> None:
    """The victim's command line is given the code of a login that the attacker allowed."""
    site.member("mallory", Role.AUDITOR)
    attackers = allow(site, site.sign_in("mallory").token, OTHER)
    refused(site, attackers, VERIFIER)


def test_a_code_that_is_too_old_or_was_followed_by_another_is_none(site: Site) -> None:
    site.member("olga", Role.OWNER)
    browser = site.sign_in("olga").token
    first, second = allow(site, browser), allow(site, browser)
    refused(site, first)
    site.now += CODE_LASTS_S
    refused(site, second)


@pytest.mark.parametrize("text", ["", "a" * 16, "\ud800", "x" * 10_000, "' OR 1=1 --", "\0"])
def test_what_is_no_code_no_verifier_or_no_token_opens_nothing(local_site: Site, text: str) -> None:
    local_site.member("olga", Role.OWNER)
    refused(local_site, text)
    refused(local_site, allow(local_site, local_site.sign_in("olga").token), text)
    ended(local_site, text)
    ended(local_site, "kvl_" + text)


def test_a_browsers_sign_in_and_a_login_are_not_taken_for_each_other(site: Site) -> None:
    site.member("olga", Role.OWNER)
    browser = site.sign_in("olga").token
    token = log_in(site, "olga")
    ended(site, browser)
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(token)
    with pytest.raises(UnauthenticatedError):  # a login lets no other login in
        allow(site, token)


@pytest.mark.parametrize("challenge", ["", "c" * 42, "c" * 44, "c" * 42 + "=", "c" * 42 + "\n"])
def test_a_challenge_is_one_of_s256(local_site: Site, challenge: str) -> None:
    local_site.member("olga", Role.OWNER)
    browser = local_site.sign_in("olga").token
    with pytest.raises(InvalidError, match="challenge"):
        local_site.accounts.allow_login(browser, challenge, 3600)
    for lasts_s in (0, -1, LONGEST_S + 1):
        with pytest.raises(InvalidError, match="lasts"):
            allow(local_site, browser, lasts_s=lasts_s)


def test_a_login_ends_at_its_time_and_with_the_browsers_sign_in_at_the_latest(site: Site) -> None:
    site.member("olga", Role.OWNER)
    token = log_in(site, "olga", 120)
    site.now += 119
    site.accounts.actor_of_login(token)
    site.now += 1
    ended(site, token)
    browser = site.sign_in("olga")
    for _ in range(2 * (ABSOLUTE_S // IDLE_S) - 1):
        site.now += IDLE_S // 2
        site.accounts.actor_of(browser.token)
    late = site.accounts.finish_login(allow(site, browser.token, lasts_s=LONGEST_S), VERIFIER)
    assert late.expires_at == browser.expires_at


def test_a_login_that_nobody_uses_ends_as_every_sign_in(site: Site) -> None:
    site.member("olga", Role.OWNER)
    token = log_in(site, "olga")
    site.now += IDLE_S
    ended(site, token)


def test_a_removed_person_is_logged_out_and_stays_so(site: Site) -> None:
    petra, olga = site.member("petra", Role.PRIVACY), site.member("olga", Role.OWNER)
    place = site.workspace().id
    token = log_in(site, "petra")
    on_its_way = allow(site, site.sign_in("petra").token)
    site.accounts.remove_member(olga, place, petra.id)
    ended(site, token)
    refused(site, on_its_way)
    site.accounts.add_member(olga, place, "petra@example.com", Role.PRIVACY)
    ended(site, token)
    refused(site, on_its_way)


def test_signing_out_everywhere_ends_logins_and_codes_too(site: Site) -> None:
    olga = site.member("olga", Role.OWNER)
    token = log_in(site, "olga")
    browser = site.sign_in("olga").token
    given_up = allow(site, browser)
    site.accounts.close_sign_in(browser)
    refused(site, given_up)
    on_its_way = allow(site, site.sign_in("olga").token)
    site.accounts.close_all_sign_ins(olga)
    ended(site, token)
    refused(site, on_its_way)


def test_signing_out_in_the_browser_ends_the_logins_that_it_allowed(site: Site) -> None:
    site.member("olga", Role.OWNER)
    browser, elsewhere = site.sign_in("olga").token, log_in(site, "olga")
    allowed = site.accounts.finish_login(allow(site, browser), VERIFIER).token
    on_its_way = allow(site, browser)
    site.accounts.close_sign_in(browser)
    ended(site, allowed)
    refused(site, on_its_way)
    assert site.accounts.actor_of_login(elsewhere)  # allowed in another browser


def test_a_login_outlives_a_browser_that_is_idle_but_not_one_that_signs_out(site: Site) -> None:
    site.member("olga", Role.OWNER)
    browser = site.sign_in("olga")
    token = site.accounts.finish_login(allow(site, browser.token), VERIFIER).token
    for _ in range(2):
        site.now += IDLE_S // 2
        site.accounts.actor_of_login(token)
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(browser.token)
    site.sign_in("olga")  # forgets the browsers that are idle
    assert site.accounts.actor_of_login(token).login_expires_at == browser.expires_at
    site.accounts.close_sign_in(browser.token)
    ended(site, token)


def test_signing_in_again_keeps_the_persons_logins_and_no_other_persons(site: Site) -> None:
    site.member("olga", Role.OWNER)
    site.member("petra", Role.PRIVACY)
    first = site.sign_in("olga").token
    kept = site.accounts.finish_login(allow(site, first), VERIFIER).token
    on_its_way = allow(site, first)
    second = site.sign_in("olga", previous=first).token
    assert site.accounts.actor_of_login(kept)
    refused(site, on_its_way)
    site.accounts.close_sign_in(second)
    ended(site, kept)
    third = site.sign_in("olga").token
    hers = site.accounts.finish_login(allow(site, third), VERIFIER).token
    site.sign_in("petra", previous=third)
    ended(site, hers)


def test_people_see_their_own_logins_and_end_them(site: Site) -> None:
    olga, petra = site.member("olga", Role.OWNER), site.member("petra", Role.PRIVACY)
    token = log_in(site, "olga")
    (listed,) = site.accounts.list_logins(olga)
    assert listed.id not in token
    assert site.accounts.list_logins(petra) == []
    for unknown in (listed.id, "", "x"):
        with pytest.raises(NotFoundError):
            site.accounts.end_login(petra, unknown)
    site.accounts.end_login(olga, listed.id)
    ended(site, token)
    assert site.accounts.list_logins(olga) == []
    assert site.kinds()[-1] is AccessEventKind.SIGNED_OUT
    _, secret = site.accounts.create_key(olga, site.workspace().id, "k", [Scope.ADMIN])
    with pytest.raises(ForbiddenError):
        site.accounts.list_logins(site.accounts.authenticate_key(secret))


def test_a_login_is_a_second_person_as_the_browser_is(site: Site) -> None:
    olga = site.member("olga", Role.OWNER)
    site.member("petra", Role.PRIVACY)
    site.member("dev", Role.DEVELOPER)
    place, accounts = site.workspace().id, site.accounts
    asked = accounts.ask_approval(olga, place, "erase_deployment", "plan", deployment_id="d-1").id
    own = accounts.actor_of_login(log_in(site, "olga"))
    with pytest.raises(ForbiddenError, match="whoever asked"):
        accounts.approve(own, place, asked)
    with pytest.raises(ForbiddenError, match="erase_wide"):
        accounts.approve(accounts.actor_of_login(log_in(site, "dev")), place, asked)
    agreed = accounts.approve(accounts.actor_of_login(log_in(site, "petra")), place, asked)
    assert agreed.agreed


def end_now(site: Site, token: str, browser: str) -> None:
    olga = site.accounts.actor_of_login(token)
    (login,) = site.accounts.list_logins(olga)
    site.accounts.end_login(olga, login.id)


def leave(site: Site, token: str, browser: str) -> None:
    site.accounts.close_sign_in(token)


def sign_out(site: Site, token: str, browser: str) -> None:
    site.accounts.close_sign_in(browser)


def sign_out_everywhere(site: Site, token: str, browser: str) -> None:
    site.accounts.close_all_sign_ins(site.accounts.actor_of(browser))


def give_the_browser_away(site: Site, token: str, browser: str) -> None:
    site.sign_in("petra", previous=browser)


@pytest.mark.parametrize(
    "end", [end_now, leave, sign_out, sign_out_everywhere, give_the_browser_away]
)
def test_whatever_ends_a_login_revokes_the_keys_that_were_made_with_it(
    site: Site, end: Callable[[Site, str, str], None]
) -> None:
    olga, place = site.member("olga", Role.OWNER), site.workspace().id
    site.member("petra", Role.PRIVACY)
    accounts, browser = site.accounts, site.sign_in("olga").token
    token = accounts.finish_login(allow(site, browser), VERIFIER).token
    program = accounts.create_service_account(olga, place, "ci", Role.DEVELOPER).id
    _, other = accounts.create_key(olga, place, "other", [Scope.ADMIN])
    actor = accounts.actor_of_login(token)
    own, secret = accounts.create_key(actor, place, "own", [Scope.ADMIN])
    served, _ = accounts.create_key(
        actor, place, "served", [Scope.INFER], service_account_id=program
    )
    second, _ = accounts.create_key(
        accounts.authenticate_key(secret), place, "second", [Scope.ERASE]
    )
    end(site, token, browser)
    made = {own.id, served.id, second.id}
    for key in accounts.list_keys(olga, place):
        assert key.active is (key.id not in made), key.name
    told = {event.subject for event in site.events if event.kind is REVOKED}
    assert told == made
    assert accounts.authenticate_key(other)
    with pytest.raises(UnauthenticatedError):
        accounts.authenticate_key(secret)
    with pytest.raises(UnauthenticatedError):  # a request that was let in before
        accounts.create_key(actor, place, "late", [Scope.ADMIN])


def test_a_key_outlives_a_login_that_nobody_used_until_it_would_have_ended(site: Site) -> None:
    site.member("olga", Role.OWNER)
    token, place = log_in(site, "olga"), site.workspace().id
    actor = site.accounts.actor_of_login(token)
    _, secret = site.accounts.create_key(actor, place, "k", [Scope.ERASE])
    site.now += IDLE_S
    ended(site, token)
    assert site.accounts.authenticate_key(secret)
    site.now += 3600 - IDLE_S
    with pytest.raises(UnauthenticatedError):
        site.accounts.authenticate_key(secret)


def test_a_key_made_with_a_login_ends_with_it_and_none_is_rotated(site: Site) -> None:
    olga, place = site.member("olga", Role.OWNER), site.workspace().id
    actor = site.accounts.actor_of_login(log_in(site, "olga"))
    lasting = int(site.now) + 86_400
    for asked in (None, lasting):
        made, _ = site.accounts.create_key(actor, place, "k", [Scope.ERASE], expires_at=asked)
        assert made.expires_at == actor.login_expires_at
    old, _ = site.accounts.create_key(olga, place, "old", [Scope.ERASE])
    with pytest.raises(ForbiddenError, match="would end with this login"):
        site.accounts.rotate_key(actor, place, old.id, overlap_s=0)
