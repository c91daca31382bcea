"""Lists of tenants and sessions: whole, in order, and from an index that knows nobody's id."""

from __future__ import annotations

from pathlib import Path

import pytest
from keys_support import Clock, abandon, listed, open_service

from kvrun.keys import KeyLimits, KeyService, KeyUnavailableError
from kvrun.keys.listing import MAX_ROWS, SessionsAsked, TenantsAsked
from kvrun.keys.slot_keys import SlotKeys
from support.held_text import texts_held_by

EVERYBODY = TenantsAsked(begins="")
NAMED = TenantsAsked(begins="", named=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(tmp_path: Path, clock: Clock) -> KeyService:
    """alice used two sessions, bob one, and carol one that came last."""
    made = open_service(
        tmp_path, clock, limits=KeyLimits(idle_timeout_s=100, absolute_timeout_s=150)
    )
    for tenant, session in [
        ("alice", "alice-1"),
        ("bob", "bob-1"),
        ("alice", "alice-2"),
        ("carol", "carol-1"),
    ]:
        clock.time += 1
        made.acquire(tenant, session)
    return made


def names(service: KeyService, asked: TenantsAsked) -> list[str]:
    return [row.tenant for row in service.listing.tenants(asked).rows]


def test_tenants_come_by_last_use_a_page_at_a_time(service: KeyService, clock: Clock) -> None:
    assert names(service, NAMED) == ["carol", "alice", "bob"]
    first = service.listing.tenants(TenantsAsked(begins="", limit=2, named=True))
    rest = service.listing.tenants(TenantsAsked(begins="", offset=2, limit=2, named=True))
    assert [row.tenant for row in (*first.rows, *rest.rows)] == ["carol", "alice", "bob"]
    assert first.total == rest.total == 3
    clock.time += 1
    service.acquire("bob", "bob-1").touch(clock.time)
    assert names(service, NAMED) == ["bob", "carol", "alice"]
    service.close()


def test_a_tenant_is_found_by_its_id_its_reference_or_how_that_begins(service: KeyService) -> None:
    ref = service.acquire("alice", "alice-1").tenant_ref
    for asked in (
        TenantsAsked(ids=("alice", "nobody", "no id ü", "x" * 200)),
        TenantsAsked(refs=(ref, "f" * 32), named=True),
        TenantsAsked(begins=ref[:12], named=True),
        TenantsAsked(ids=("alice",), refs=(ref,), begins=ref, named=True),
    ):
        (row,) = service.listing.tenants(asked).rows
        assert (row.tenant, row.tenant_ref, len(row.session_refs)) == ("alice", ref, 2)
    assert service.listing.tenants(TenantsAsked()).rows == ()
    service.close()


def test_sessions_of_one_tenant_have_the_references_that_its_keys_make(
    service: KeyService, clock: Clock
) -> None:
    keys = service.acquire("alice", "alice-1")
    page = service.listing.sessions(SessionsAsked(tenant="alice", named=True))
    assert [(row.tenant, row.session) for row in page.rows] == [
        ("alice", "alice-1"),
        ("alice", "alice-2"),
    ]
    row = page.rows[0]
    assert (page.tenant_ref, row.session_ref) == (keys.tenant_ref, keys.session_ref)
    assert (row.generation, row.key_id, row.created_at) == (
        keys.generation,
        keys.key_id,
        keys.created_at,
    )
    assert row.expires_at == min(row.last_used_at + 100, row.created_at + 150)
    by_ref = SessionsAsked(ref=keys.tenant_ref, offset=1)
    assert [row.session for row in service.listing.sessions(by_ref).rows] == [""], "not asked for"
    for nobody in (
        SessionsAsked(tenant="nobody"),
        SessionsAsked(ref="f" * 32),
        SessionsAsked(tenant="bob", ref=keys.tenant_ref),
    ):
        assert service.listing.sessions(nobody).total == 0
    service.close()


def test_a_restart_lists_the_same(service: KeyService, tmp_path: Path, clock: Clock) -> None:
    before = sorted(listed(service), key=lambda info: info.key_id)
    service.close()
    again = open_service(
        tmp_path, clock, limits=KeyLimits(idle_timeout_s=100, absolute_timeout_s=150)
    )
    assert sorted(listed(again), key=lambda info: info.key_id) == before
    again.close()


def test_lists_open_no_slot_unless_ids_are_asked_for(
    service: KeyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    read = SlotKeys._read

    def counted(keys: SlotKeys, slot: int, *rest: object) -> None:
        opened.append(slot)
        read(keys, slot, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(SlotKeys, "_read", counted)
    assert service.listing.tenants(EVERYBODY).total == 3
    assert service.listing.sessions(SessionsAsked(tenant="alice")).total == 2
    assert service.listing.tenants(TenantsAsked(ids=("alice", "bob"))).total == 2
    assert opened == []
    assert len(names(service, TenantsAsked(begins="", limit=2, named=True))) == 2
    assert len(opened) == 2, "the rows of the page"
    service.close()


def test_the_index_knows_no_id_and_nothing_of_who_was_erased(service: KeyService) -> None:
    refs = {row.tenant: row.tenant_ref for row in service.listing.tenants(NAMED).rows}
    entry = service._ring.find_tenant("alice")
    assert entry is not None
    tag, sessions = entry.tag.decode("latin-1"), [one.ref for one in entry.sessions.values()]
    held = texts_held_by(service.listing.index)
    assert {*refs.values(), *sessions, tag} <= held
    assert not any(name in text for text in held for name in ("alice", "bob"))
    service.destroy_tenant("alice")
    del entry
    held = texts_held_by(service.listing.index)
    assert refs["bob"] in held
    assert not held & {refs["alice"], *sessions, tag}
    assert names(service, NAMED) == ["carol", "bob"]
    service.close()


def test_a_slot_that_does_not_open_is_listed_without_its_id(
    service: KeyService, tmp_path: Path
) -> None:
    entry = service._ring.find_tenant("bob")
    assert entry is not None
    service._ring.store.slots.erase([entry.slot])
    assert names(service, NAMED) == ["carol", "alice", ""]
    page = service.listing.sessions(SessionsAsked(ref=entry.ref, named=True))
    assert [row.session for row in page.rows] == [""]
    abandon(service)


def test_a_closed_service_lists_nothing(service: KeyService) -> None:
    service.close()
    with pytest.raises(KeyUnavailableError):
        service.listing.tenants(EVERYBODY)
    with pytest.raises(KeyUnavailableError):
        service.listing.sessions(SessionsAsked(tenant="alice"))


def test_bounds_are_kept_whatever_is_asked(service: KeyService) -> None:
    for asked in (TenantsAsked(begins="", offset=-5, limit=-1), TenantsAsked(begins="", limit=0)):
        assert service.listing.tenants(asked).rows == ()
    assert len(service.listing.tenants(TenantsAsked(begins="", limit=10**9)).rows) <= MAX_ROWS
    service.close()
