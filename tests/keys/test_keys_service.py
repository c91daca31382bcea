"""Sessions get keys that last, are apart from each other, expire, and are bounded."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest
from keys_support import DEPLOYMENT, WORKSPACE, Clock, listed, open_service

from kvrun.keys import (
    ClaimClass,
    FileRoot,
    FolderBusyError,
    KeyDestroyedError,
    KeyLimits,
    KeysError,
    KeyService,
    KeyUnavailableError,
    MemoryRoot,
    ScopeError,
    SessionKeys,
    SessionLimitError,
)
from kvrun.seal import SealerClosedError

SALT = b"s" * 24


def sealed(keys: SessionKeys, text: bytes = b"plain text") -> bytes:
    out = bytearray(len(text) + 88)
    keys.sealer.seal_into(b"context", text, out, salt=SALT)
    return bytes(out)


def opened(keys: SessionKeys, block: bytes) -> bytes:
    out = bytearray(len(block) - 88)
    keys.sealer.open_into(b"context", block, out)
    return bytes(out)


def facts(keys: SessionKeys) -> tuple[object, ...]:
    return (
        keys.scope,
        keys.generation,
        keys.key_id,
        keys.tenant_ref,
        keys.session_ref,
        keys.salt,
        keys.block_name(b"id"),
    )


def test_keys_and_pseudonyms_survive_a_restart(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    keys = service.acquire("alice", "one")
    before, block = facts(keys), sealed(keys)
    service.close()
    service = open_service(tmp_path)
    again = service.find("alice", "one")
    assert again is not None
    assert facts(again) == before
    assert opened(again, block) == b"plain text"
    service.close()


def test_the_first_acquire_is_durable_before_it_returns(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    salt = service.acquire("alice", "one").salt
    synced = (tmp_path / "keys" / "keys.slots").read_bytes()
    service.close()
    (tmp_path / "keys" / "keys.slots").write_bytes(synced)
    service = open_service(tmp_path)
    assert service.acquire("alice", "one").salt == salt
    service.close()


def test_forms_are_as_specified(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    keys = service.acquire("alice", "one")
    assert len(keys.salt) == 43
    assert set(keys.salt) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    for ref in (keys.tenant_ref, keys.session_ref, keys.key_id):
        assert len(bytes.fromhex(ref)) == 16
    assert len(keys.block_name(b"x")) == 16
    service.close()


def test_no_two_sessions_share_anything(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    # Pairs whose concatenation is the same must differ too.
    names = [("a", "bc"), ("ab", "c"), ("a", "b"), ("b", "a")]
    keys = [service.acquire(*name) for name in names]
    for field in ("generation", "key_id", "session_ref", "salt"):
        assert len({getattr(key, field) for key in keys}) == len(keys), field
    assert len({key.block_name(b"same") for key in keys}) == len(keys)
    assert keys[0].tenant_ref == keys[2].tenant_ref != keys[1].tenant_ref
    block = sealed(keys[0])
    for other in keys[1:]:
        with pytest.raises(KeysError.__base__):  # type: ignore[arg-type]
            opened(other, block)
    service.close()


def test_acquiring_twice_gives_the_same_handle_also_while_evicted(tmp_path: Path) -> None:
    service = open_service(tmp_path, limits=KeyLimits(max_open_handles=8))
    held = service.acquire("alice", "held")
    block = sealed(held)
    for number in range(50):
        service.acquire("alice", f"s{number}")
    assert len(service._handles) <= 8
    assert ("alice", "held") not in service._handles
    assert opened(held, block) == b"plain text"  # eviction does not break a holder
    assert service.acquire("alice", "held") is held
    service.close()


def test_an_evicted_handle_that_nobody_holds_forgets_its_key(tmp_path: Path) -> None:
    service = open_service(tmp_path, limits=KeyLimits(max_open_handles=1))
    keys = service.acquire("alice", "one")
    sealer, salt = keys.sealer, keys.salt
    del keys
    service.acquire("alice", "two")
    gc.collect()
    assert sealer.closed
    assert service.acquire("alice", "one").salt == salt
    service.close()


def test_find_never_creates(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    assert service.find("alice", "one") is None
    keys = service.acquire("alice", "one")
    assert service.find("alice", "one") is keys
    assert service.find("alice", "two") is None
    assert len(listed(service)) == 1
    service.close()


def test_after_destroy_the_handle_refuses_and_the_session_starts_anew(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    keys = service.acquire("alice", "one")
    other = service.acquire("alice", "two")
    before, other_before, sealer = facts(keys), facts(other), keys.sealer
    gone = service.destroy_session("alice", "one")
    assert gone is not None
    assert (gone.key_id, gone.generation, gone.session_ref) == (before[2], before[1], before[4])
    assert (gone.tenant_ref, gone.reason) == (before[3], "erased")
    assert keys.destroyed
    with pytest.raises(KeyDestroyedError):
        _ = keys.sealer
    with pytest.raises(KeyDestroyedError):
        keys.block_name(b"id")
    with pytest.raises(SealerClosedError):
        sealer.seal_into(b"context", b"", bytearray(88), salt=SALT)
    assert service.find("alice", "one") is None
    assert service.destroy_session("alice", "one") is None
    fresh = service.acquire("alice", "one")
    assert fresh is not keys
    assert fresh.generation > keys.generation
    assert fresh.tenant_ref == keys.tenant_ref
    assert len({fresh.salt, before[5]}) == 2
    assert len({fresh.session_ref, before[4]}) == 2
    assert facts(other) == other_before
    service.close()


def test_generations_rise_over_destruction_and_restart(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        service = open_service(tmp_path)
        for _ in range(2):
            seen.append(service.acquire("alice", "one").generation)
            service.destroy_session("alice", "one")
        service.close()
    assert seen == sorted(set(seen))


def test_destroying_a_tenant_takes_all_its_sessions_and_its_pseudonym(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    mine = [service.acquire("alice", f"s{number}") for number in range(3)]
    other = service.acquire("bob", "s0")
    other_before = facts(other)
    tenant_ref = mine[0].tenant_ref
    gone = service.destroy_tenant("alice")
    assert [key.session_ref for key in gone] == [*(key.session_ref for key in mine), ""]
    assert {key.tenant_ref for key in gone} == {tenant_ref}
    assert all(keys.destroyed for keys in mine)
    assert service.destroy_tenant("alice") == []
    assert service.acquire("alice", "s0").tenant_ref != tenant_ref
    assert facts(other) == other_before
    service.close()
    service = open_service(tmp_path)
    assert facts(service.acquire("bob", "s0")) == other_before
    service.close()


def test_idle_and_old_sessions_expire_and_are_reported_once(tmp_path: Path) -> None:
    clock = Clock()
    limits = KeyLimits(idle_timeout_s=100, absolute_timeout_s=250)
    service = open_service(tmp_path, clock, limits=limits)
    idle, busy = service.acquire("alice", "idle"), service.acquire("alice", "busy")
    clock.time += 99
    assert service.destroy_expired() == []
    service.acquire("alice", "busy")
    clock.time += 1
    assert service.find("alice", "idle") is None
    gone = service.destroy_expired()
    assert [(key.session_ref, key.reason) for key in gone] == [(idle.session_ref, "idle")]
    assert [idle.destroyed, busy.destroyed] == [True, False]
    for _ in range(3):
        clock.time += 50
        service.acquire("alice", "busy")
    assert busy.destroyed  # 250 s old, however busy
    gone = service.destroy_expired()
    assert [(key.session_ref, key.reason) for key in gone] == [(busy.session_ref, "absolute")]
    assert service.destroy_expired() == []
    service.close()


def test_acquire_never_hands_out_an_expired_key(tmp_path: Path) -> None:
    clock = Clock()
    service = open_service(tmp_path, clock, limits=KeyLimits(idle_timeout_s=10))
    keys = service.acquire("alice", "one")
    salt = keys.salt
    clock.time += 10
    fresh = service.acquire("alice", "one")
    assert keys.destroyed
    assert fresh.salt != salt
    service.close()


def test_the_last_use_survives_a_restart_and_an_idle_tenant_goes_with_its_sessions(
    tmp_path: Path,
) -> None:
    clock = Clock()
    limits = KeyLimits(idle_timeout_s=1000)
    service = open_service(tmp_path, clock, limits=limits)
    service.acquire("alice", "one")
    clock.time += 900
    service.acquire("alice", "one")
    service.close()
    clock.time += 900
    service = open_service(tmp_path, clock, limits=limits)
    assert service.destroy_expired() == []
    clock.time += 100
    gone = service.destroy_expired()
    assert [bool(key.session_ref) for key in gone] == [True, False]  # the session, the tenant
    assert service._ring.tenants() == []
    service.close()


def test_a_tenant_has_so_many_sessions_and_no_more(tmp_path: Path) -> None:
    clock = Clock()
    limits = KeyLimits(max_sessions_per_tenant=2, max_sessions=3, idle_timeout_s=10)
    service = open_service(tmp_path, clock, limits=limits)
    for session in ("one", "two"):
        service.acquire("alice", session)
    with pytest.raises(SessionLimitError) as refused:
        service.acquire("alice", "three")
    assert refused.value.status == 429
    service.acquire("alice", "one")  # an existing one is no new one
    service.acquire("bob", "one")
    with pytest.raises(SessionLimitError):
        service.acquire("carol", "one")
    clock.time += 10
    service.acquire("alice", "three")  # the expired ones make room
    assert len(service.destroy_expired()) >= 2
    service.close()


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 129, "a\n", "\x7f"])
def test_ids_that_are_not_allowed_are_refused(tmp_path: Path, name: str) -> None:
    service = open_service(tmp_path)
    for call in (service.acquire, service.find):
        with pytest.raises(ScopeError, match="128 printable"):
            call(name, "s")
        with pytest.raises(ScopeError):
            call("t", name)
    service.acquire("x" * 128, "~!" * 64)
    service.close()


def test_sessions_lists_ids_that_only_the_keys_can_read(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    keys = service.acquire("alice", "one")
    service.acquire("bob", "two")
    found = {(info.tenant, info.session): info for info in listed(service)}
    assert set(found) == {("alice", "one"), ("bob", "two")}
    info = found["alice", "one"]
    assert (info.tenant_ref, info.session_ref) == (keys.tenant_ref, keys.session_ref)
    service.close()


def test_two_services_on_one_folder_are_refused_by_name(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    with pytest.raises(FolderBusyError, match=r"key root.*in use by process \d+"):
        open_service(tmp_path)
    with pytest.raises(FolderBusyError, match=r"key folder.*in use by process \d+"):
        open_service(tmp_path, root=MemoryRoot())
    service.close()
    open_service(tmp_path).close()


def test_another_deployment_cannot_open_the_folder(tmp_path: Path) -> None:
    open_service(tmp_path).close()
    root = FileRoot(tmp_path / "root")
    with pytest.raises(KeysError, match=f"belongs to deployment {WORKSPACE}/{DEPLOYMENT}"):
        KeyService.open(
            tmp_path / "keys",
            root,
            workspace=WORKSPACE,
            deployment="other",
            limits=KeyLimits(),
            now=Clock(),
        )
    root.close()


def test_a_closed_service_and_its_handles_refuse(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    keys = service.acquire("alice", "one")
    service.close()
    service.close()
    for call in (lambda: service.acquire("alice", "one"), lambda: keys.block_name(b"")):
        with pytest.raises(KeyUnavailableError, match="closed"):
            call()
    assert not keys.destroyed


def test_a_memory_root_starts_cold_and_keeps_counting_generations(tmp_path: Path) -> None:
    service = open_service(tmp_path, root=MemoryRoot())
    assert service.claim is ClaimClass.CRYPTOGRAPHIC
    keys = service.acquire("alice", "one")
    service.close()
    service = open_service(tmp_path, root=MemoryRoot())
    assert listed(service) == []
    assert service.acquire("alice", "one").generation > keys.generation
    service.close()


def test_threads_get_one_handle_a_session_and_destruction_hits_only_its_own(
    tmp_path: Path,
) -> None:
    service = open_service(tmp_path, limits=KeyLimits(max_open_handles=4))
    stop = time.monotonic() + 2.0
    problems: list[BaseException] = []
    safe_salts: list[set[str]] = [set() for _ in range(4)]

    def use(number: int) -> None:
        try:
            while time.monotonic() < stop:
                for session in range(4):
                    keys = service.acquire("safe", f"s{session}")
                    safe_salts[session].add(keys.salt)
                    assert opened(keys, sealed(keys)) == b"plain text"
                    try:
                        risky = service.acquire("risky", f"s{session}")
                        sealed(risky)
                    except (KeyDestroyedError, SealerClosedError):
                        pass
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    destroyed = 0
    while time.monotonic() < stop:
        destroyed += service.destroy_session("risky", f"s{destroyed % 4}") is not None
    for thread in threads:
        thread.join()
    assert not problems, problems
    assert destroyed > 3
    assert [len(salts) for salts in safe_salts] == [1, 1, 1, 1]
    service.close()


def test_a_live_session_is_acquired_while_the_service_is_busy_with_the_disk(
    tmp_path: Path,
) -> None:
    service = open_service(tmp_path)
    keys = service.acquire("alice", "one")
    done = threading.Event()
    with service._lock:  # what a rotation holds
        thread = threading.Thread(
            target=lambda: (
                done.set()
                if service.acquire("alice", "one") is service.find("alice", "one") is keys
                else None
            )
        )
        thread.start()
        assert done.wait(5)
    thread.join()
    service.close()


def test_keys_are_found_by_their_ids_while_they_live(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    ids = [bytes.fromhex(service.acquire("alice", name).key_id) for name in ("one", "two")]
    unknown = bytes(len(ids[0]))
    found = service.living([*ids, unknown], within_s=1)
    assert found is not None
    assert [entry.key_id for entry in found.values()] == list(found) == ids
    service.destroy_session("alice", "one")
    service.close()
    again = open_service(tmp_path)
    assert list(again.living(ids, within_s=1) or ()) == [ids[1]]
    again.close()
