import json
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from kvrun.claims import (
    Claim,
    ClaimError,
    ClaimFault,
    ClaimSigner,
    ClaimVerifier,
    ReplayWindow,
    key_id_of,
)
from kvrun.claims.keyfile import (
    ClaimKeyError,
    create_signing_key,
    load_signing_key,
    load_verification_key,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "claim.json").read_text())
KEY = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["private_key"]))
NOW = 1_800_000_010
IDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128)


def make_claim(**changes: object) -> Claim:
    fields: dict[str, object] = {
        "workspace": "w1",
        "deployment": "chat",
        "tenant": "alice",
        "session": "s1",
        "generation": 3,
        "salt": "A" * 43,
        "request_id": "kvr-1",
        "nonce": "n" * 22,
        "uses": 1,
        "issued_at": 1_800_000_000,
        "expires_at": 1_800_000_300,
    }
    return Claim(**{**fields, **changes})  # type: ignore[arg-type]


def verifier(now: float = NOW, **changes: object) -> ClaimVerifier:
    options: dict[str, object] = {"deployment": "chat", "workspace": "w1", **changes}
    return ClaimVerifier([KEY.public_key()], now=lambda: now, **options)  # type: ignore[arg-type]


def fault_of(token: str, checker: ClaimVerifier) -> ClaimFault:
    with pytest.raises(ClaimError) as caught:
        checker.verify(token)
    return caught.value.fault


@pytest.mark.parametrize("vector", VECTORS["valid"])
def test_tokens_are_those_of_the_independent_vectors(vector: dict[str, object]) -> None:
    claim = msgspec.convert(vector["claim"], Claim)
    assert ClaimSigner(KEY).sign(claim) == vector["token"]
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(VECTORS["public_key"]))
    assert ClaimVerifier([public], "chat", lambda: NOW).verify(str(vector["token"])) == claim


@pytest.mark.parametrize("vector", VECTORS["signed_but_malformed"], ids=lambda v: v["what"])
def test_a_signed_claim_outside_its_limits_is_malformed(vector: dict[str, str]) -> None:
    assert fault_of(vector["token"], verifier()) is ClaimFault.MALFORMED


@given(IDS, IDS, st.integers(0, 2**63 - 1), st.integers(1, 4096))
def test_any_claim_within_its_limits_comes_back_as_it_was(
    tenant: str, session: str, generation: int, uses: int
) -> None:
    claim = make_claim(tenant=tenant, session=session, generation=generation, uses=uses)
    assert verifier().verify(ClaimSigner(KEY).sign(claim)) == claim


@given(st.data())
def test_no_other_byte_anywhere_in_a_token_is_accepted(data: st.DataObject) -> None:
    token = ClaimSigner(KEY).sign(make_claim())
    position = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(max_codepoint=0xFF).filter(lambda c: c != token[position]))
    changed = token[:position] + other + token[position + 1 :]
    with pytest.raises(ClaimError):
        verifier().verify(changed)


@given(st.text(max_size=200) | st.text("kvc1.-_AZaz09=", max_size=200))
def test_no_made_up_text_is_a_claim(text: str) -> None:
    with pytest.raises(ClaimError):
        verifier().verify(text)


@pytest.mark.parametrize("extra", ["=", "\n", " ", ".", "A"])
def test_a_token_with_something_appended_is_refused(extra: str) -> None:
    with pytest.raises(ClaimError):
        verifier().verify(ClaimSigner(KEY).sign(make_claim()) + extra)


def test_the_spare_bits_of_a_signature_must_be_zero() -> None:
    token = ClaimSigner(KEY).sign(make_claim())
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    same_bytes = token[:-1] + alphabet[alphabet.index(token[-1]) | 1]
    assert same_bytes != token
    assert fault_of(same_bytes, verifier()) is ClaimFault.MALFORMED


def test_a_claim_signed_by_someone_else_is_refused() -> None:
    stranger = Ed25519PrivateKey.generate()
    token = ClaimSigner(stranger).sign(make_claim())
    assert fault_of(token, verifier()) is ClaimFault.UNKNOWN_KEY
    head, _, rest = token.partition(".")[0], None, token.split(".", 2)[2]
    renamed = f"{head}.{key_id_of(KEY.public_key())}.{rest}"
    assert fault_of(renamed, verifier()) is ClaimFault.BAD_SIGNATURE


def test_the_payload_of_one_claim_under_the_signature_of_another_is_refused() -> None:
    signer = ClaimSigner(KEY)
    mine, theirs = signer.sign(make_claim()), signer.sign(make_claim(tenant="bob"))
    mixed = theirs.rsplit(".", 1)[0] + "." + mine.rsplit(".", 1)[1]
    assert fault_of(mixed, verifier()) is ClaimFault.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        (1_800_000_300, ClaimFault.EXPIRED),
        (1_800_009_999, ClaimFault.EXPIRED),
        (1_799_999_994, ClaimFault.NOT_YET_VALID),
    ],
)
def test_a_claim_holds_only_in_its_time(now: float, fault: ClaimFault) -> None:
    token = ClaimSigner(KEY).sign(make_claim())
    assert fault_of(token, verifier(now)) is fault


@pytest.mark.parametrize("now", [1_799_999_995, 1_800_000_000, 1_800_000_299.9])
def test_a_claim_holds_from_its_issue_to_its_end(now: float) -> None:
    assert verifier(now).verify(ClaimSigner(KEY).sign(make_claim())) == make_claim()


def test_a_claim_for_another_deployment_or_workspace_is_refused() -> None:
    token = ClaimSigner(KEY).sign(make_claim())
    assert fault_of(token, verifier(deployment="Chat")) is ClaimFault.WRONG_DEPLOYMENT
    assert fault_of(token, verifier(workspace="w2")) is ClaimFault.WRONG_DEPLOYMENT


def test_a_signer_does_not_sign_what_no_verifier_accepts() -> None:
    with pytest.raises(ClaimError, match="claim field tenant must be 1 to 128"):
        ClaimSigner(KEY).sign(make_claim(tenant="a b"))


def test_a_claim_is_used_as_often_as_it_says_and_no_more() -> None:
    window = ReplayWindow()
    claim = make_claim(uses=3)
    assert [window.admit(claim, NOW) for _ in range(5)] == [True, True, True, False, False]


def test_an_expired_claim_is_forgotten_and_stays_refused() -> None:
    window = ReplayWindow()
    claim = make_claim()
    assert window.admit(claim, NOW)
    assert not window.admit(claim, claim.expires_at)
    assert len(window) == 0


def test_a_full_window_refuses_new_claims_and_never_forgets_live_ones() -> None:
    window = ReplayWindow(capacity=2)
    claims = [make_claim(nonce=letter * 22) for letter in "abc"]
    assert [window.admit(claim, NOW) for claim in claims] == [True, True, False]
    assert not window.admit(claims[0], NOW)
    later = make_claim(nonce="d" * 22, issued_at=1_800_000_300, expires_at=1_800_000_400)
    assert window.admit(later, 1_800_000_300)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=60))
def test_no_order_of_requests_uses_a_claim_too_often(steps: list[tuple[int, int]]) -> None:
    window = ReplayWindow(capacity=3)
    admitted = dict.fromkeys(range(5), 0)
    now = float(NOW)
    for number, wait in steps:
        now += wait
        claim = make_claim(nonce=str(number) * 22, uses=2)
        if window.admit(claim, now):
            admitted[number] += 1
            assert now < claim.expires_at
        assert len(window) <= 3
    assert max(admitted.values()) <= 2


def test_key_files_are_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "claim.pem"
    key = create_signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_signing_key(path).private_bytes_raw() == key.private_bytes_raw()
    with pytest.raises(ClaimKeyError, match="File exists"):
        create_signing_key(path)
    path.chmod(0o640)
    with pytest.raises(ClaimKeyError, match="may be read by other users"):
        load_signing_key(path)
    public = tmp_path / "claim.pub"
    public.write_text(key.public_key().public_bytes_raw().hex() + "\n")
    assert key_id_of(load_verification_key(public)) == key_id_of(key.public_key())
    public.write_text("zz")
    with pytest.raises(ClaimKeyError, match="not an Ed25519 key in 64 hex digits"):
        load_verification_key(public)
