"""Signing keys are made once, rotate, are revoked, and are exported without their secret half."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from keys_support import Clock

from kvrun.keys import (
    CurrentKey,
    FolderPermissionError,
    KeyPurpose,
    SigningKey,
    SigningKeyError,
    SigningRing,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(tmp_path: Path, clock: Clock) -> SigningRing:
    return SigningRing(tmp_path / "signing", now=clock)


def test_a_key_is_made_once_and_found_again(
    tmp_path: Path, ring: SigningRing, clock: Clock
) -> None:
    made = ring.load_or_create(KeyPurpose.CLAIM)
    again = SigningRing(tmp_path / "signing", now=clock).load_or_create(KeyPurpose.CLAIM)
    assert isinstance(made.private_key, Ed25519PrivateKey)
    assert again.key_id == made.key_id
    made.public().key().verify(again.private_key.sign(b"text"), b"text")
    assert len(ring.all_keys()) == 1


def test_each_purpose_has_its_own_key(ring: SigningRing) -> None:
    claim = ring.load_or_create(KeyPurpose.CLAIM)
    checkpoint = ring.load_or_create(KeyPurpose.CHECKPOINT)
    assert claim.key_id != checkpoint.key_id
    assert [key.key_id for key in ring.all_keys(KeyPurpose.CHECKPOINT)] == [checkpoint.key_id]


def test_after_a_rotation_the_new_key_signs_and_the_old_one_still_verifies(
    ring: SigningRing,
) -> None:
    old = ring.load_or_create(KeyPurpose.CLAIM)
    signature = old.private_key.sign(b"text")
    new = ring.rotate(KeyPurpose.CLAIM)
    assert ring.load_or_create(KeyPurpose.CLAIM).key_id == new.key_id != old.key_id
    by_id = {record.key_id: record for record in ring.public_keys(KeyPurpose.CLAIM)}
    by_id[old.key_id].key().verify(signature, b"text")


def test_a_rotation_ends_the_validity_of_earlier_keys_after_an_overlap(
    ring: SigningRing, clock: Clock
) -> None:
    short = ring.load_or_create(KeyPurpose.CERTIFICATE, valid_for_s=10)
    ring.rotate(KeyPurpose.CERTIFICATE, overlap_s=60)
    newest = ring.rotate(KeyPurpose.CERTIFICATE, overlap_s=60)
    other = ring.load_or_create(KeyPurpose.CHECKPOINT)
    now = int(clock.time)
    until = {key.key_id: key.valid_until for key in ring.all_keys()}
    assert sorted(until.values(), key=str) == [now + 10, now + 60, None, None]
    assert until[short.key_id] == now + 10
    assert until[newest.key_id] is until[other.key_id] is None


@pytest.mark.parametrize(
    "purpose", [KeyPurpose.CHECKPOINT, KeyPurpose.CERTIFICATE, KeyPurpose.INSTANCE]
)
def test_who_signs_meanwhile_always_has_a_valid_key_and_takes_up_the_new_one(
    tmp_path: Path, ring: SigningRing, clock: Clock, purpose: KeyPurpose
) -> None:
    # Another process's view of the same folder.
    current = CurrentKey(SigningRing(tmp_path / "signing", now=clock), purpose)
    stop, problems = threading.Event(), []
    used: list[SigningKey] = []

    def sign() -> None:
        while not stop.is_set():
            key = current.get()
            key.public().key().verify(key.private_key.sign(b"text"), b"text")
            problem = key.problem(clock.time)
            if problem is not None:
                problems.append(problem)
            if not used or used[-1].key_id != key.key_id:
                used.append(key)

    thread = threading.Thread(target=sign)
    thread.start()
    for _ in range(5):
        newest = ring.rotate(purpose)
    while thread.is_alive() and (not used or used[-1].key_id != newest.key_id):
        stop.wait(0.01)
    stop.set()
    thread.join()
    assert problems == []
    assert used[-1].key_id == newest.key_id


def test_a_key_is_looked_up_again_when_the_ring_changed_or_the_key_ended(
    ring: SigningRing, clock: Clock
) -> None:
    late = 2**62
    current = CurrentKey(ring, KeyPurpose.CLAIM, wall_ns=lambda: late)
    current.get()  # makes the key, and so changes the folder
    first = current.get()
    assert current.get() is first  # remembered
    ring.revoke(first.key_id)
    second = current.get()
    assert second.key_id != first.key_id
    ring.rotate(KeyPurpose.CLAIM, valid_for_s=100)
    third = current.get()
    assert third.key_id != second.key_id
    clock.time += 4000
    assert current.get().key_id not in (first.key_id, second.key_id, third.key_id)


def test_a_change_in_the_same_moment_as_the_look_is_not_missed(ring: SigningRing) -> None:
    current = CurrentKey(ring, KeyPurpose.CLAIM, wall_ns=lambda: 0)
    for _ in range(20):
        newest = ring.rotate(KeyPurpose.CLAIM)
        assert current.get().key_id == newest.key_id


def test_a_revoked_or_outdated_key_signs_no_more(ring: SigningRing, clock: Clock) -> None:
    first = ring.load_or_create(KeyPurpose.CLAIM, valid_for_s=100)
    assert ring.revoke(first.key_id).revoked_at == int(clock.time)
    second = ring.load_or_create(KeyPurpose.CLAIM, valid_for_s=100)
    assert second.key_id != first.key_id
    clock.time += 100
    third = ring.load_or_create(KeyPurpose.CLAIM)
    assert len({first.key_id, second.key_id, third.key_id}) == 3
    problems = {key.key_id: key.problem(clock.time) for key in ring.all_keys()}
    assert "revoked" in str(problems[first.key_id])
    assert "no longer valid" in str(problems[second.key_id])
    assert problems[third.key_id] is None
    with pytest.raises(SigningKeyError, match="no signing key 0000"):
        ring.revoke("0000")


def test_what_verifiers_get_is_the_public_half_only(ring: SigningRing) -> None:
    key = ring.load_or_create(KeyPurpose.CHECKPOINT)
    exported = json.loads(msgspec.json.encode(ring.public_keys()))
    assert [entry["keyId"] for entry in exported] == [key.key_id]
    assert set(exported[0]) == {
        "version",
        "keyId",
        "purpose",
        "publicKey",
        "createdAt",
        "validUntil",
        "revokedAt",
    }


def test_files_are_for_their_owner_only(tmp_path: Path, ring: SigningRing) -> None:
    ring.load_or_create(KeyPurpose.CLAIM)
    folder = tmp_path / "signing"
    assert folder.stat().st_mode & 0o777 == 0o700
    (path,) = folder.glob("*.key.json")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o604)
    with pytest.raises(FolderPermissionError, match="0604"):
        ring.load_or_create(KeyPurpose.CLAIM)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"privateKey": "AAAA"}, "malformed"),
        ({"privateKey": "A" * 42 + "B"}, "malformed"),  # spare bits: not the one spelling
        ({"purpose": "love-letters"}, "malformed"),
        ({"version": 2}, "version 2"),
        ({"keyId": "0" * 16}, "another key"),
    ],
)
def test_a_file_that_was_changed_is_refused(
    tmp_path: Path, ring: SigningRing, change: dict[str, object], message: str
) -> None:
    ring.load_or_create(KeyPurpose.CLAIM)
    (path,) = (tmp_path / "signing").glob("*.key.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SigningKeyError, match=message):
        ring.all_keys()
