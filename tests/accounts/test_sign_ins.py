"""Sign-ins: made anew each time, short-lived, kept as hashes; and the owner link."""

from __future__ import annotations

import stat

import pytest
from accounts_rig import ABSOLUTE_S, IDLE_S, Site

from kvrun.accounts import AccessEventKind, ActorKind, Role, write_owner_link
from kvrun.accounts.errors import AccountsError, ForbiddenError, UnauthenticatedError
from kvrun.accounts.part import MAX_FAILURES_A_MINUTE
from kvrun.api.dependencies import BrowserSession, check_csrf


def test_a_sign_in_ends_when_nobody_uses_it(site: Site) -> None:
    site.member("olga", Role.OWNER)
    token = site.sign_in("olga").token
    for _ in range(3):
        site.now += IDLE_S - 1
        site.accounts.actor_of(token)
    site.now += IDLE_S
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(token)


def test_a_page_that_only_looks_does_not_keep_a_sign_in_alive(local_site: Site) -> None:
    local_site.member("olga", Role.OWNER)
    token = local_site.sign_in("olga").token
    for _ in range(3):
        local_site.now += IDLE_S // 4
        local_site.accounts.actor_of(token, note_use=False)
    local_site.now += IDLE_S // 4
    with pytest.raises(UnauthenticatedError):
        local_site.accounts.actor_of(token, note_use=False)


def test_a_sign_in_ends_even_if_it_is_used_all_the_time(site: Site) -> None:
    site.member("olga", Role.OWNER)
    token = site.sign_in("olga").token
    began = site.now
    while site.now + IDLE_S // 2 < began + ABSOLUTE_S:
        site.now += IDLE_S // 2
        site.accounts.actor_of(token)
    site.now = began + ABSOLUTE_S
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(token)


def test_a_planted_cookie_is_not_what_somebody_signs_in_with(site: Site) -> None:
    """Session fixation: the attacker knows the cookie that the victim's browser had before."""
    site.member("mallory", Role.AUDITOR)
    site.member("olga", Role.OWNER)
    planted = site.sign_in("mallory").token
    signed_in = site.sign_in("olga", previous=planted)
    assert signed_in.token != planted
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(planted)
    made_up = "A" * 43
    again = site.sign_in("olga", previous=made_up)
    assert again.token != made_up
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(made_up)
    assert site.accounts.actor_of(signed_in.token).id == site.accounts.actor_of(again.token).id


def test_signing_out_ends_it_everywhere_or_here(site: Site) -> None:
    site.member("olga", Role.OWNER)
    here, there = site.sign_in("olga").token, site.sign_in("olga").token
    site.accounts.close_sign_in(here)
    site.accounts.close_sign_in(here)
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(here)
    site.accounts.close_all_sign_ins(site.accounts.actor_of(there))
    with pytest.raises(UnauthenticatedError):
        site.accounts.actor_of(there)


def test_a_csrf_token_is_good_for_its_own_sign_in_only(local_site: Site) -> None:
    local_site.member("olga", Role.OWNER)
    one, two = local_site.sign_in("olga"), local_site.sign_in("olga")
    assert local_site.accounts.csrf_token(one.token) == one.csrf_token
    session = BrowserSession(one.token, local_site.accounts.actor_of(one.token), one.csrf_token)
    check_csrf(session, one.csrf_token)
    for wrong in ("", two.csrf_token, one.token, one.csrf_token[:-1], "\ud800"):
        with pytest.raises(ForbiddenError, match="CSRF"):
            check_csrf(session, wrong)


@pytest.mark.parametrize("text", ["", "A" * 43, "\ud800", "x" * 10_000, "' OR 1=1 --", "\0"])
def test_what_is_no_token_signs_nobody_in(local_site: Site, text: str) -> None:
    with pytest.raises(UnauthenticatedError):
        local_site.accounts.actor_of(text)


def test_the_owner_link_makes_the_first_owner_once_and_always_alerts(site: Site) -> None:
    place = site.workspace("default")
    token = write_owner_link(site.owner_link)
    assert stat.S_IMODE(site.owner_link.stat().st_mode) == 0o600
    actor = site.accounts.actor_of(site.accounts.claim_owner_link(token + "\n").token)
    assert (actor.kind, actor.roles) == (ActorKind.LOCAL_OWNER, {place.id: Role.OWNER})
    assert not site.owner_link.exists()
    with pytest.raises(UnauthenticatedError):
        site.accounts.claim_owner_link(token)
    alerts = [event for event in site.events if event.alert]
    assert [event.kind for event in alerts] == [AccessEventKind.OWNER_LINK_USED]


def test_a_used_owner_link_does_not_come_back_with_a_backup(site: Site) -> None:
    token = write_owner_link(site.owner_link)
    backup = site.owner_link.read_bytes()
    site.accounts.claim_owner_link(token)
    site.owner_link.write_bytes(backup)
    site.owner_link.chmod(0o600)
    with pytest.raises(UnauthenticatedError):
        site.another().claim_owner_link(token)
    assert site.kinds()[-1] is AccessEventKind.SIGN_IN_FAILED


def test_a_new_owner_link_is_the_same_owner_and_ends_the_old_link(site: Site) -> None:
    first = site.local_owner()
    old = write_owner_link(site.owner_link)
    new = write_owner_link(site.owner_link)
    with pytest.raises(UnauthenticatedError):
        site.accounts.claim_owner_link(old)
    assert site.accounts.claim_owner_link(new).user_id == first.id


@pytest.mark.parametrize("wrong", ["", "A" * 43, "x" * 10_000, "\ud800"])
def test_a_wrong_owner_link_signs_nobody_in(local_site: Site, wrong: str) -> None:
    for kept in (True, False):
        if kept:
            write_owner_link(local_site.owner_link)
        else:
            local_site.owner_link.unlink()
        with pytest.raises(UnauthenticatedError):
            local_site.accounts.claim_owner_link(wrong)


def test_an_empty_owner_link_file_is_no_empty_password(local_site: Site) -> None:
    local_site.owner_link.touch(0o600)
    with pytest.raises(UnauthenticatedError):
        local_site.accounts.claim_owner_link("")


def test_an_owner_link_that_others_may_read_opens_nothing(local_site: Site) -> None:
    token = write_owner_link(local_site.owner_link)
    local_site.owner_link.chmod(0o640)
    with pytest.raises(AccountsError, match="may be read by other users"):
        local_site.accounts.claim_owner_link(token)


def test_what_the_access_log_does_not_take_does_not_happen(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    dev = site.member("dev", Role.DEVELOPER)
    site.log_fails = True
    told = len(site.told_after)
    with pytest.raises(OSError, match="full"):
        site.accounts.set_role(owner, place.id, dev.id, Role.ADMIN)
    with pytest.raises(OSError, match="full"):
        site.sign_in("dev")
    site.log_fails = False
    assert site.again(dev).roles == {place.id: Role.DEVELOPER}
    assert [event for event in site.told_after[told:] if event.subject == owner.id] == []
    assert {event.kind for event in site.told_after[told:]} <= {AccessEventKind.SIGNED_IN}


def test_everything_told_before_a_change_is_told_again_once_it_holds(site: Site) -> None:
    site.member("olga", Role.OWNER)
    assert site.told_after == site.events


def test_events_name_people_by_id_only(site: Site) -> None:
    site.member("olga", Role.OWNER)
    site.sign_in("olga")
    with pytest.raises(ForbiddenError):
        site.sign_in("mallory")
    assert not any("@" in repr(event) or "mallory" in repr(event) for event in site.events)


def test_failed_sign_ins_do_not_fill_the_log(local_site: Site) -> None:
    for _ in range(3 * MAX_FAILURES_A_MINUTE):
        with pytest.raises(UnauthenticatedError):
            local_site.accounts.claim_owner_link("wrong")
    assert len(local_site.events) == MAX_FAILURES_A_MINUTE
    assert local_site.events[-1].detail.endswith("are left out")
    local_site.now += 60
    with pytest.raises(UnauthenticatedError):
        local_site.accounts.claim_owner_link("wrong")
    assert len(local_site.events) == MAX_FAILURES_A_MINUTE + 1
