"""A claim key that is replaced: who introduces the next, and how long the one before counts."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kvrun.claims.claim import Claim, ClaimError, ClaimFault
from kvrun.claims.rotating import RotatingSigner, is_introduced
from kvrun.claims.verify import ClaimVerifier

NOW = 1_800_000_000
CLAIM = Claim(
    workspace="w",
    deployment="chat",
    tenant="alice",
    session="one",
    generation=1,
    salt="s" * 43,
    request_id="r",
    nonce="n" * 22,
    uses=1,
    issued_at=NOW,
    expires_at=NOW + 300,
)


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def rotating() -> RotatingSigner:
    fresh = iter((key(2), key(3), key(4)))
    return RotatingSigner(key(1), lambda: next(fresh))


def public(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)


def test_the_earlier_key_counts_until_its_end_and_the_new_one_on() -> None:
    clock, signer = Clock(), rotating()
    verifier = ClaimVerifier([key(1).public_key()], "chat", clock)
    before, first = signer.sign(CLAIM), signer.key_id
    made = signer.introduction()
    assert signer.key_id == first, "it is not used before it is believed"
    assert verifier.add(public(made.public_key))
    verifier.end(made.replaces, clock.now + 60)
    later = next(key_id for key_id in verifier.believed() if key_id != first)
    assert not signer.use(first)
    assert signer.use(later)
    after = signer.sign(CLAIM)
    assert verifier.verify(before) == verifier.verify(after) == CLAIM
    assert {key_id: until for key_id, (_, until) in verifier.believed().items()} == {
        first: clock.now + 60,
        later: None,
    }
    clock.now += 60
    assert verifier.verify(after) == CLAIM
    with pytest.raises(ClaimError) as refused:
        verifier.verify(before)
    assert refused.value.fault is ClaimFault.UNKNOWN_KEY


def test_an_end_is_never_put_off_and_what_ended_never_comes_back() -> None:
    clock = Clock()
    verifier = ClaimVerifier([key(1).public_key()], "chat", clock)
    signer = rotating()
    verifier.end([signer.key_id], clock.now + 10)
    verifier.end([signer.key_id], clock.now + 1000)
    verifier.end(["unknown"], clock.now)
    clock.now += 10
    assert verifier.believed() == {}
    assert not verifier.add(key(1).public_key())
    assert verifier.believed() == {}


def test_only_the_launchs_key_vouches_for_another() -> None:
    signer = rotating()
    made = signer.introduction()
    assert is_introduced(made.public_key, made.signature, key(1).public_key())
    assert not is_introduced(made.public_key, made.signature, key(2).public_key())
    other = key(9).public_key().public_bytes_raw()
    assert not is_introduced(other, made.signature, key(1).public_key())
    assert not is_introduced(other, key(9).sign(other), key(1).public_key())


def test_every_earlier_key_is_named_and_only_the_last_one_made_is_taken_up() -> None:
    signer = rotating()
    first = signer.key_id
    forgotten, taken = signer.introduction(), signer.introduction()
    verifier = ClaimVerifier([public(taken.public_key)], "chat", Clock())
    unused = ClaimVerifier([public(forgotten.public_key)], "chat", Clock())
    assert not signer.use(next(iter(unused.believed())))
    second = next(iter(verifier.believed()))
    assert signer.use(second)
    assert signer.introduction().replaces == (first, second)
