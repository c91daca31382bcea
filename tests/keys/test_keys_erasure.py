"""What was destroyed does not come back, and no file names a tenant or session."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from random import Random

import pytest
from keys_support import Clock, LossyDisk, listed, open_service

from kvrun.keys import KeysError, KeyService, RecoveryReport, SessionKeys
from kvrun.keys.slots import SlotFile
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
def test_restored_old_slot_files_open_the_living_and_nothing_that_was_destroyed(
    tmp_path: Path, what: str
) -> None:
    service = open_service(tmp_path)
    victim, block = service.acquire("alice", "one"), b""
    block = seal(victim)
    kept = {
        name: service.acquire(*name).salt
        for name in [("bob", "one"), ("carol", "a"), ("carol", "b")]
    }
    victim_salt = victim.salt
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "backup")
    service = open_service(tmp_path)
    if what == "session":
        service.destroy_session("alice", "one")
    else:
        service.destroy_tenant("alice")
    service.rotate_root()
    service.close()

    shutil.rmtree(tmp_path / "keys")
    shutil.copytree(tmp_path / "backup", tmp_path / "keys")
    service = open_service(tmp_path)
    # Of the old copy all that lives opens, and nothing of what was destroyed.
    assert {(info.tenant, info.session) for info in listed(service)} == set(kept)
    assert service.recovery.stale_slots == (1 if what == "session" else 2)
    assert service.find("alice", "one") is None
    fresh = service.acquire("alice", "one")
    assert fresh.salt != victim_salt
    with pytest.raises(SealedBlockError):
        fresh.sealer.open_into(b"context", block, bytearray(5))
    assert {name: service.acquire(*name).salt for name in kept} == kept
    service.close()


def test_what_an_older_copy_lacked_counts_as_destroyed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who was to be erased and was not found must not come back with a newer copy."""
    service = open_service(tmp_path)
    salt = service.acquire("alice", "one").salt
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "older")
    service = open_service(tmp_path)
    service.acquire("bob", "one")
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "newer")

    service = put_back(tmp_path, "newer")  # the control: nothing was missing, so Bob is there
    assert not service.recovery.older_copy
    assert service.recovery_text == ""
    assert service.find("bob", "one") is not None
    service.close()
    service = put_back(tmp_path, "older")
    assert service.recovery.older_copy
    assert "is an older copy: keys that it lacks are destroyed" in caplog.text
    assert service.recovery_text.startswith("an older copy")
    assert service.destroy_tenant("bob") == []
    service.close()
    service = put_back(tmp_path, "newer")
    assert service.find("bob", "one") is None
    assert service.recovery.stale_slots == 2
    assert service.acquire("alice", "one").salt == salt
    service.close()
    shutil.rmtree(tmp_path / "keys")  # an empty folder is the oldest copy of all
    service = open_service(tmp_path)
    assert service.recovery.older_copy
    assert service.find("alice", "one") is None
    service.close()
    service = put_back(tmp_path, "newer")
    assert service.find("alice", "one") is None
    service.close()


def test_of_two_branches_of_a_key_file_only_the_one_that_is_used_goes_on(tmp_path: Path) -> None:
    """A file that went on for long is behind an older copy of it that was put back since."""
    service = open_service(tmp_path)
    salt = service.acquire("alice", "one").salt
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "older")
    service = open_service(tmp_path)
    for number in range(5):
        service.acquire("bob", f"s{number}")
    service.destroy_tenant("bob")
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "longer")
    service = put_back(tmp_path, "older")
    service.acquire("carol", "one")
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "with-carol")
    service = put_back(tmp_path, "longer")
    assert service.recovery.older_copy
    assert service.destroy_tenant("carol") == [], "she is not held here"
    service.close()
    service = put_back(tmp_path, "with-carol")
    assert service.find("carol", "one") is None
    assert service.acquire("alice", "one").salt == salt
    service.close()


def put_back(base: Path, name: str) -> KeyService:
    shutil.rmtree(base / "keys")
    shutil.copytree(base / name, base / "keys")
    return open_service(base)


def make_earlier_folders(base: Path) -> None:
    """Key and root folder as the version before made them; nothing opens their records any more."""
    service = open_service(base)
    ring, root_id = service._ring.store.ring.keyring_id, service.root_facts.root_id
    service.close()
    (base / "root" / "upper.slots").unlink()
    (base / "keys" / "keys.slots").unlink()
    file = SlotFile(base / "keys" / "keys.slots")
    state = struct.pack(">16s16sQ?", ring, root_id, 7, True) + b"\x04acme\x04chat"
    for kind, body in (
        (7, bytes(124)),
        (1, state),
        (2, bytes(124)),
        (3, bytes(124)),
        (5, bytes(345)),
    ):
        file.write(file.take_free(), kind, body)
    file.sync()
    file.close()


def test_keys_of_an_earlier_version_are_removed_and_the_cache_starts_cold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_earlier_folders(tmp_path)
    shutil.copytree(tmp_path / "keys", tmp_path / "earlier")
    with caplog.at_level("WARNING"):
        service = open_service(tmp_path)
    assert "the cache starts cold (an earlier version made them)" in caplog.text
    assert service.recovery.started_over
    assert service.recovery_text.startswith("emptied")
    assert service.epoch == 2, "copies of the earlier file are under an epoch that is gone"
    salt = service.acquire("alice", "one").salt
    service.close()
    service = open_service(tmp_path)
    assert service.recovery == RecoveryReport()
    assert service.acquire("alice", "one").salt == salt
    service.close()
    for _ in range(2):  # a backup from before the change, and the start after that
        service = put_back(tmp_path, "earlier")
        assert service.find("alice", "one") is None
        service.acquire("bob", "one")
        service.close()
        service = open_service(tmp_path)
        assert service.find("bob", "one") is not None
        service.close()


def test_the_removal_of_earlier_keys_cut_at_each_sync_is_finished_in_a_new_epoch(
    tmp_path: Path,
) -> None:
    make_earlier_folders(tmp_path)
    cut = 0
    while True:
        base = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "keys", base / "keys")
        shutil.copytree(tmp_path / "root", base / "root")
        disk = LossyDisk(fail_at_sync=cut)
        try:
            open_service(base, io=disk).close()
        except (OSError, KeysError):
            disk.crash(Random(cut))
        finished = not disk.off
        service = open_service(base)
        assert 1 not in service._root.epochs(), f"cut at sync {cut}"
        service.acquire("alice", "one")
        service.close()
        if finished:
            break
        cut += 1
    assert cut > 5


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
    clock = Clock()
    service = open_service(tmp_path, clock)
    service.acquire("alice", "one")
    clock.time += 7200
    service.acquire("alice", "one")
    service.destroy_expired()  # writes last uses, so that both halves have been written
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
