"""API keys: shown once, never more than their holder, gone when they should be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from accounts_rig import Site

from kvrun.accounts import AccessEventKind, ActorKind, Role, Scope, may
from kvrun.accounts.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthenticatedError,
)
from kvrun.accounts.gateway_keys import HeldKey, gateway_records
from kvrun.accounts.permissions import Permission
from kvrun.accounts.records import KeyRecord
from kvrun.accounts.tables import ServiceAccountRow
from kvrun.gateway.apikeys import ApiKeys, load_api_keys, save_api_keys
from kvrun.gateway.errors import GatewayError

HOUR = 3600


def test_a_key_acts_as_its_holder_within_its_scopes(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    record, secret = site.accounts.create_key(
        owner, place.id, "siem", [Scope.AUDIT_READ], expires_at=int(site.now) + HOUR
    )
    actor = site.accounts.authenticate_key(secret)
    assert (actor.id, actor.kind, actor.person) == (record.id, ActorKind.API_KEY, owner.id)
    assert may(actor, Permission.AUDIT_READ, place.id)
    assert not may(actor, Permission.ERASE, place.id)
    assert re.fullmatch(r"kvk_[A-Za-z0-9_-]{43}", secret)


def test_a_key_reaches_only_its_workspace(site: Site) -> None:
    owner = site.member("olga", Role.OWNER)
    second = site.accounts.create_workspace(owner, "second")
    _, secret = site.accounts.create_key(site.again(owner), site.workspace().id, "k", [Scope.ADMIN])
    actor = site.accounts.authenticate_key(secret)
    assert second.id not in actor.roles
    with pytest.raises(ForbiddenError, match="only people"):
        site.accounts.create_workspace(actor, "third")


@pytest.mark.parametrize("end", ["expired", "revoked", "member removed", "account deleted"])
def test_a_key_that_ended_is_refused_like_an_unknown_one(site: Site, end: str) -> None:
    owner, dev, place = (
        site.member("olga", Role.OWNER),
        site.member("dev", Role.DEVELOPER),
        site.workspace(),
    )
    if end == "account deleted":
        service = site.accounts.create_service_account(owner, place.id, "ci", Role.DEVELOPER)
        record, secret = site.accounts.create_key(
            owner, place.id, "k", [Scope.INFER], service_account_id=service.id
        )
    else:
        record, secret = site.accounts.create_key(
            dev, place.id, "k", [Scope.INFER], expires_at=int(site.now) + HOUR
        )
    site.accounts.authenticate_key(secret)
    assert [key.id for key in site.accounts.gateway_keys(place.id, "d-1")] == [record.id]
    if end == "expired":
        site.now += HOUR
    elif end == "revoked":
        site.accounts.revoke_key(owner, place.id, record.id)
    elif end == "member removed":
        site.accounts.remove_member(owner, place.id, dev.id)
    else:
        site.accounts.delete_service_account(owner, place.id, service.id)
    with pytest.raises(UnauthenticatedError) as known:
        site.accounts.authenticate_key(secret)
    with pytest.raises(UnauthenticatedError) as unknown:
        site.accounts.authenticate_key("kvk_" + "A" * 43)
    assert "kvrun init" in (unknown.value.hint or "")
    assert known.value.diagnostics() == unknown.value.diagnostics()
    assert site.accounts.gateway_keys(place.id, "d-1") == []
    assert not site.accounts.list_keys(owner, place.id)[0].active


@pytest.mark.parametrize(
    "text", ["", "kvk_", "kvk_\ud800", "kvk_" + "é" * 50, "x" * 10_000, "kvk_\0"]
)
def test_what_is_no_key_is_refused(local_site: Site, text: str) -> None:
    with pytest.raises(UnauthenticatedError):
        local_site.accounts.authenticate_key(text)


def test_a_weaker_role_weakens_the_key(site: Site) -> None:
    owner, dev = site.member("olga", Role.OWNER), site.member("dev", Role.DEVELOPER)
    place = site.workspace()
    _, secret = site.accounts.create_key(dev, place.id, "k", [Scope.INFER, Scope.AUDIT_READ])
    site.accounts.set_role(owner, place.id, dev.id, Role.AUDITOR)
    assert site.accounts.authenticate_key(secret).scopes == {Scope.AUDIT_READ}
    assert site.accounts.gateway_keys(place.id, "d-1") == []


def test_nobody_makes_a_key_that_could_do_more_than_its_holder(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    dev, privacy = site.member("dev", Role.DEVELOPER), site.member("petra", Role.PRIVACY)
    auditor = site.member("audrey", Role.AUDITOR)
    for actor, scope in (
        (dev, Scope.ERASE),
        (dev, Scope.ADMIN),
        (privacy, Scope.INFER),
        (privacy, Scope.ADMIN),
    ):
        with pytest.raises(ForbiddenError, match="allows no API key"):
            site.accounts.create_key(actor, place.id, "k", [scope])
    with pytest.raises(ForbiddenError):
        site.accounts.create_key(auditor, place.id, "k", [Scope.AUDIT_READ])
    service = site.accounts.create_service_account(owner, place.id, "ci", Role.AUDITOR)
    with pytest.raises(ForbiddenError):  # a service account's keys are the admins' business
        site.accounts.create_key(
            dev, place.id, "k", [Scope.AUDIT_READ], service_account_id=service.id
        )
    with pytest.raises(ForbiddenError, match="allows no API key"):
        site.accounts.create_key(owner, place.id, "k", [Scope.INFER], service_account_id=service.id)


def test_a_key_that_makes_a_key_gives_it_no_longer_life(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    ends = int(site.now) + HOUR
    record, secret = site.accounts.create_key(
        owner, place.id, "first", [Scope.ADMIN], expires_at=ends
    )
    actor = site.accounts.authenticate_key(secret)
    child, _ = site.accounts.create_key(actor, place.id, "child", [Scope.ADMIN])
    longer, _ = site.accounts.create_key(
        actor, place.id, "longer", [Scope.ADMIN], expires_at=ends + HOUR
    )
    heir, _ = site.accounts.rotate_key(actor, place.id, record.id, overlap_s=0)
    assert {child.expires_at, longer.expires_at, heir.expires_at} == {ends}


def test_two_keys_of_a_name_overlap_and_a_third_has_to_wait(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    first, old = site.accounts.create_key(owner, place.id, "app", [Scope.INFER])
    second, new = site.accounts.rotate_key(owner, place.id, first.id, overlap_s=HOUR)
    assert (second.name, second.scopes) == ("app", {Scope.INFER})
    for secret in (old, new):
        site.accounts.authenticate_key(secret)
    with pytest.raises(ConflictError, match="2 active API keys named app"):
        site.accounts.create_key(owner, place.id, "app", [Scope.INFER])
    site.now += HOUR
    with pytest.raises(UnauthenticatedError):
        site.accounts.authenticate_key(old)
    site.accounts.authenticate_key(new)
    third, _ = site.accounts.rotate_key(owner, place.id, second.id, overlap_s=0)
    with pytest.raises(UnauthenticatedError):
        site.accounts.authenticate_key(new)
    with pytest.raises(ConflictError, match="not active"):
        site.accounts.rotate_key(owner, place.id, first.id, overlap_s=0)
    assert third.active


def test_one_revokes_ones_own_keys_and_admins_everybodys(site: Site) -> None:
    dev, other = site.member("dev", Role.DEVELOPER), site.member("dora", Role.DEVELOPER)
    admin, place = site.member("adam", Role.ADMIN), site.workspace()
    record, _ = site.accounts.create_key(dev, place.id, "k", [Scope.INFER])
    for act in (
        lambda: site.accounts.revoke_key(other, place.id, record.id),
        lambda: site.accounts.rotate_key(other, place.id, record.id, overlap_s=0),
    ):
        with pytest.raises(ForbiddenError, match="somebody else's"):
            act()
    site.accounts.revoke_key(dev, place.id, record.id)
    second, _ = site.accounts.create_key(dev, place.id, "k", [Scope.INFER])
    site.accounts.revoke_key(admin, place.id, second.id)
    assert not any(key.active for key in site.accounts.list_keys(admin, place.id))
    revoked = [one.subject for one in site.events if one.kind is AccessEventKind.API_KEY_REVOKED]
    assert revoked == [record.id, second.id]


def test_nobody_gets_the_secret_of_anothers_key_by_rotating_it(site: Site) -> None:
    olga, other = site.member("olga", Role.OWNER), site.member("otto", Role.OWNER)
    admin, place = site.member("adam", Role.ADMIN), site.workspace()
    record, secret = site.accounts.create_key(olga, place.id, "k", [Scope.ADMIN])
    _, of_admin = site.accounts.create_key(admin, place.id, "a", [Scope.ADMIN])
    for actor in (admin, other, site.accounts.authenticate_key(of_admin)):
        with pytest.raises(ForbiddenError, match="somebody else's") as refused:
            site.accounts.rotate_key(actor, place.id, record.id, overlap_s=HOUR)
        assert "can revoke it" in refused.value.diagnostics()
    assert [key.expires_at for key in site.accounts.list_keys(olga, place.id)] == [None, None]
    mine = site.accounts.authenticate_key(secret)
    heir, _ = site.accounts.rotate_key(mine, place.id, record.id, overlap_s=HOUR)
    assert (heir.user_id, heir.person_id) == (olga.id, olga.id)


def test_a_service_accounts_key_is_the_admins_to_make_and_rotate(site: Site) -> None:
    owner, admin = site.member("olga", Role.OWNER), site.member("adam", Role.ADMIN)
    dev, place = site.member("dev", Role.DEVELOPER), site.workspace()
    service = site.accounts.create_service_account(owner, place.id, "ci", Role.ADMIN)
    record, secret = site.accounts.create_key(
        admin, place.id, "k", [Scope.ADMIN], service_account_id=service.id
    )
    with pytest.raises(ForbiddenError):
        site.accounts.rotate_key(dev, place.id, record.id, overlap_s=0)
    heir, _ = site.accounts.rotate_key(admin, place.id, record.id, overlap_s=HOUR)
    assert heir.service_account_id == service.id
    itself = site.accounts.authenticate_key(secret)
    site.accounts.revoke_key(admin, place.id, record.id)
    assert site.accounts.rotate_key(itself, place.id, heir.id, overlap_s=0)[0].active


def test_a_service_account_that_is_an_owner_all_the_same_gives_admins_nothing(site: Site) -> None:
    owner, admin = site.member("olga", Role.OWNER), site.member("adam", Role.ADMIN)
    place = site.workspace()
    service = site.accounts.create_service_account(owner, place.id, "ci", Role.ADMIN)
    record, _ = site.accounts.create_key(
        owner, place.id, "k", [Scope.ADMIN], service_account_id=service.id
    )
    with site.database.transaction() as session:
        session.get_one(ServiceAccountRow, service.id).role = Role.OWNER.value
    with pytest.raises(ForbiddenError, match="only an owner"):
        site.accounts.rotate_key(admin, place.id, record.id, overlap_s=0)
    with pytest.raises(ForbiddenError, match="only an owner"):
        site.accounts.create_key(
            admin, place.id, "k2", [Scope.ADMIN], service_account_id=service.id
        )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": ""}, InvalidError),
        ({"name": "a\nb"}, InvalidError),
        ({"name": "x" * 129}, InvalidError),
        ({"scopes": []}, InvalidError),
        ({"expires_at": 1_000_000}, InvalidError),
        ({"expires_at": 10**12}, InvalidError),
        ({"deployment_id": "a b"}, InvalidError),
        ({"deployment_id": "x" * 129}, InvalidError),
        ({"service_account_id": "svc-aaaaaaaaaaaaaaaa"}, NotFoundError),
    ],
)
def test_values_that_are_not_allowed_are_refused(
    local_site: Site, change: dict[str, object], error: type[Exception]
) -> None:
    owner, place = local_site.member("olga", Role.OWNER), local_site.workspace()
    good = {"name": "k", "scopes": [Scope.INFER]}
    with pytest.raises(error):
        local_site.accounts.create_key(owner, place.id, **{**good, **change})  # type: ignore[arg-type]
    assert local_site.accounts.list_keys(owner, place.id) == []


def test_the_gateway_of_a_deployment_gets_its_keys_and_the_workspaces(site: Site) -> None:
    owner, place = site.member("olga", Role.OWNER), site.workspace()
    make = site.accounts.create_key
    ours, _ = make(owner, place.id, "one", [Scope.INFER, Scope.ERASE], deployment_id="d-1")
    everywhere, _ = make(owner, place.id, "all", [Scope.INFER, Scope.ADMIN])
    make(owner, place.id, "other", [Scope.INFER], deployment_id="d-2")
    make(owner, place.id, "siem", [Scope.AUDIT_READ])
    found = {key.id: key.scopes for key in site.accounts.gateway_keys(place.id, "d-1")}
    assert found == {ours.id: ("erase", "inference"), everywhere.id: ("inference",)}
    site.accounts.revoke_deployment_keys("d-1")
    assert {key.id for key in site.accounts.gateway_keys(place.id, "d-1")} == {everywhere.id}


def test_a_gateway_believes_the_records(local_site: Site, tmp_path: Path) -> None:
    owner, place = local_site.member("olga", Role.OWNER), local_site.workspace()
    _, secret = local_site.accounts.create_key(
        owner, place.id, "app", [Scope.INFER], expires_at=int(local_site.now) + HOUR
    )
    path = tmp_path / "api_keys.json"
    save_api_keys(path, local_site.accounts.gateway_keys(place.id, "d-1"))
    keys = ApiKeys(load_api_keys(path))
    assert keys.authenticate(secret, local_site.now).scopes == {"inference"}
    with pytest.raises(GatewayError):
        keys.authenticate(secret, local_site.now + HOUR)


def test_the_gateways_records_leave_out_every_key_that_does_not_count() -> None:
    good = KeyRecord(
        id="key-1",
        workspace_id="ws-1",
        deployment_id="d-1",
        name="k",
        scopes=frozenset({Scope.INFER}),
        user_id="u",
        service_account_id=None,
        person_id="u",
        created_at=0,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
        active=True,
    )

    def records(key: KeyRecord, role: Role | None = Role.OWNER) -> int:
        return len(gateway_records([HeldKey(key, "0" * 64, role)], "ws-1", "d-1", 100.0))

    assert records(good) == 1
    assert records(replace(good, expires_at=101)) == 1
    assert records(good, None) == 0
    assert records(good, Role.AUDITOR) == 0
    assert records(replace(good, expires_at=100)) == 0
    assert records(replace(good, revoked_at=1)) == 0
    assert records(replace(good, workspace_id="ws-2")) == 0
    assert records(replace(good, deployment_id="d-2")) == 0
    assert records(replace(good, scopes=frozenset({Scope.ADMIN}))) == 0


def test_no_secret_is_in_the_database_or_its_journal(local_site: Site, tmp_path: Path) -> None:
    owner, place = local_site.member("olga", Role.OWNER), local_site.workspace()
    _, secret = local_site.accounts.create_key(owner, place.id, "app", [Scope.INFER])
    sign_in = local_site.sign_in("olga")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert owner.id.encode() in kept  # it is this database, and not only its beginning
    for found in (secret, secret.removeprefix("kvk_"), sign_in.token, sign_in.csrf_token):
        assert found.encode() not in kept


def test_reading_with_a_key_writes_once_a_minute(local_site: Site) -> None:
    owner, place = local_site.member("olga", Role.OWNER), local_site.workspace()
    _, secret = local_site.accounts.create_key(owner, place.id, "app", [Scope.INFER])

    def used_at() -> int | None:
        return local_site.accounts.list_keys(owner, place.id)[0].last_used_at

    began = int(local_site.now)
    local_site.accounts.authenticate_key(secret)
    local_site.now += 59
    local_site.accounts.authenticate_key(secret)
    assert used_at() == began
    local_site.now += 1
    local_site.accounts.authenticate_key(secret)
    assert used_at() == began + 60
