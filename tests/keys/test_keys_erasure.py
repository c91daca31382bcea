"""What was destroyed does not come back, and no file names a tenant or session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from keys_support import Clock, open_service

from kvrun.keys import KeyService, SessionKeys
from kvrun.seal import SealedBlockError


def seal(keys: SessionKeys) -> bytes:
    out = bytearray(88 + 5)
    keys.sealer.seal_into(b"context", b"plain", out, salt=b"s" * 24)
    return bytes(out)


def raw_keys(service: KeyService, tenant: str, session: str) -> list[bytes]:
    entry = service._ring.find(tenant, session)
    assert entry is not None
    with service._ring.opened(entry) as opened:
        return [bytes(opened.dek), bytes(opened.salt_seed), bytes(opened.name_key)]


@pytest.mark.parametrize("what", ["session", "tenant"])
def test_restored_old_slot_files_open_nothing_that_was_destroyed(tmp_path: Path, what: str) -> None:
    service = open_service(tmp_path)
    victim, block = service.acquire("alice", "one"), b""
    block = seal(victim)
    kept = service.acquire("bob", "one")
    kept_salt, victim_salt = kept.salt, victim.salt
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "backup")
    service = open_service(tmp_path)
    if what == "session":
        service.destroy_session("alice", "one")
    else:
        service.destroy_tenant("alice")
    service.close()

    shutil.rmtree(tmp_path / "keys")
    shutil.copytree(tmp_path / "backup", tmp_path / "keys")
    service = open_service(tmp_path)
    # Nothing of the old copy opens: the destroyed session least of all, survivors neither
    # (their keys live on in the file that was replaced).
    assert list(service.sessions()) == []
    assert service.recovery.stale_slots == 5  # one group, two tenants, two sessions
    assert service.find("alice", "one") is None
    fresh = service.acquire("alice", "one")
    assert fresh.salt != victim_salt
    with pytest.raises(SealedBlockError):
        fresh.sealer.open_into(b"context", block, bytearray(5))
    assert service.acquire("bob", "one").salt != kept_salt
    service.close()


def test_an_old_slot_put_back_into_the_living_file_opens_nothing(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    service.acquire("alice", "one")
    kept = service.acquire("alice", "two")
    kept_salt = kept.salt
    path = tmp_path / "keys" / "keys.slots"
    old = path.read_bytes()
    entry = service._ring.find("alice", "one")
    assert entry is not None
    service.destroy_session("alice", "one")
    service.close()
    start = 4096 + entry.slot * 1024
    living = bytearray(path.read_bytes())
    assert living[start : start + 1024] == bytes(1024)
    living[start : start + 1024] = old[start : start + 1024]
    path.write_bytes(living)
    service = open_service(tmp_path)
    assert service.recovery.stale_slots == 1
    assert service.find("alice", "one") is None
    assert service.acquire("alice", "two").salt == kept_salt
    service.close()


def test_the_control_a_copy_made_before_with_its_root_opens(tmp_path: Path) -> None:
    """Proves that the tests above can fail: with the root of its time the copy does open."""
    service = open_service(tmp_path)
    salt = service.acquire("alice", "one").salt
    service.close()
    for name in ("keys", "root"):
        shutil.copytree(tmp_path / name, tmp_path / "then" / name)
    service = open_service(tmp_path)
    service.destroy_session("alice", "one")
    service.close()
    (tmp_path / "then").chmod(0o700)
    service = open_service(tmp_path / "then")
    found = service.find("alice", "one")
    assert found is not None
    assert found.salt == salt
    service.close()


def test_no_file_holds_an_id_or_a_key_in_the_clear(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    names = [("tenant-Zoe", "session-Blue"), ("tenant-Max", "session-Green")]
    secrets = []
    for name in names:
        service.acquire(*name)
        secrets += raw_keys(service, *name)

    def search() -> None:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) >= 4
        for path in files:
            content = path.read_bytes()
            for name in names:
                assert not any(part.encode() in content for part in name), path
            assert not any(secret in content for secret in secrets), path

    search()
    service.destroy_session(*names[0])
    search()
    service.destroy_tenant(names[1][0])
    search()
    service.close()
    search()


def test_no_record_shows_that_it_is_of_the_same_tenant_or_session_as_another(
    tmp_path: Path,
) -> None:
    clock = Clock()
    service = open_service(tmp_path, clock)
    contents = []
    for _ in range(2):
        service.acquire("alice", "one")
        entry = service._ring.find("alice", "one")
        assert entry is not None
        content = (tmp_path / "keys" / "keys.slots").read_bytes()
        for slot in (entry.slot, entry.tenant.slot):
            start = 4096 + slot * 1024
            halves = [content[at : at + 480] for at in (start, start + 512)]
            contents += [half for half in halves if any(half)]
        service.destroy_tenant("alice")
        clock.time += 1000
    service.close()
    assert len(contents) == 4
    # What two records share is no longer than the deployment's id or zeros.
    first, second = contents[:2], contents[2:]
    deployment_id = service._ring.store.deployment_id
    for old in first:
        for new in second:
            for at in range(20, 480 - 16):
                piece = old[at : at + 16]
                if any(piece) and piece in new:
                    shared = piece.strip(b"\0")
                    assert shared in deployment_id or len(shared) < 12, shared


def test_wrapped_keys_of_a_destroyed_session_are_nowhere_in_the_folder(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    service.acquire("alice", "one")
    service.acquire("alice", "two")
    service.destroy_session("alice", "two")  # so that both halves of "one" have been written
    entry = service._ring.find("alice", "one")
    assert entry is not None
    path = tmp_path / "keys" / "keys.slots"
    start = 4096 + entry.slot * 1024
    slot = path.read_bytes()[start : start + 1024]
    wraps = [slot[at : at + 16] for at in (96, 608)]  # the wraps' first bytes
    assert all(any(wrap) for wrap in wraps)
    gone = service.destroy_session("alice", "one")
    assert gone is not None
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert not any(wrap in file.read_bytes() for wrap in wraps)
    service.close()
