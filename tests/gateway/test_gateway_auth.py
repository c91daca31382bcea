import base64
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from kvrun.config.gateway import JwtSettings
from kvrun.gateway.apikeys import (
    ApiKeyRecord,
    ApiKeys,
    hash_api_key,
    load_api_keys,
    make_api_key,
    save_api_keys,
)
from kvrun.gateway.auth import Authenticator, read_credential
from kvrun.gateway.errors import GatewayConfigError, GatewayError
from kvrun.gateway.jwt import JwtVerifier, parse_jwks

KEY = make_api_key(bytes(range(32)))
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
SETTINGS = JwtSettings(issuer="https://id", audience="kvrun", jwks_url="https://id/jwks")


def jwks(*names: str) -> bytes:
    known = {
        "r1": RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True),
        "e1": ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True),
        "o1": OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True),
    }
    keys = [{**known[name], "kid": name, "use": "sig"} for name in names or known]
    return json.dumps({"keys": keys}).encode()


# Some tokens are made when the tests are collected, and used much later.
DAY_S = 86_400


def token(kid: str | None = "e1", key: Any = EC_KEY, alg: str = "ES256", **claims: Any) -> str:
    payload = {
        "iss": "https://id",
        "aud": "kvrun",
        "exp": time.time() + DAY_S,
        "sub": "a",
        **claims,
    }
    payload = {name: value for name, value in payload.items() if value is not None}
    return jwt.encode(payload, key, algorithm=alg, headers={"kid": kid} if kid else {})


class Issuer:
    """Serves a key set and counts how often it is asked."""

    def __init__(self) -> None:
        self.document: bytes | Exception = jwks()
        self.fetches = 0
        self.now = 0.0

    async def fetch(self) -> bytes:
        self.fetches += 1
        if isinstance(self.document, Exception):
            raise self.document
        return self.document

    def verifier(self) -> JwtVerifier:
        return JwtVerifier(SETTINGS, self.fetch, lambda: self.now)


async def refusal(verifier: JwtVerifier, text: str) -> tuple[int, str]:
    with pytest.raises(GatewayError) as caught:
        await verifier.authenticate(text)
    return caught.value.status, caught.value.message


@pytest.mark.parametrize(
    ("kid", "key", "alg"),
    [("r1", RSA_KEY, "RS256"), ("e1", EC_KEY, "ES256"), ("o1", ED_KEY, "EdDSA")],
)
async def test_a_good_token_speaks_for_its_subject(kid: str, key: Any, alg: str) -> None:
    principal = await Issuer().verifier().authenticate(token(kid, key, alg))
    assert (principal.kind, principal.claims["sub"]) == ("jwt", "a")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (token(exp=time.time() - 60), "it has expired"),
        (token(aud="other"), "it is for another audience"),
        (token(iss="https://evil"), "it comes from another issuer"),
        (token(exp=None), "its claim exp is missing"),
        (token(aud=None), "its claim aud is missing"),
        (token(iss=None), "its claim iss is missing"),
        (token(nbf=time.time() + DAY_S), "its signature or its claims are not valid"),
        (token(kid=None), "it does not name its key (kid)"),
        (token(kid="nobody"), "it was signed with an unknown key"),
        (token(key=ec.generate_private_key(ec.SECP256R1())), "its signature or its claims"),
        (token(alg="HS256", key="s" * 32), "its signature algorithm is not allowed here"),
        (token(alg="none", key=None), "its signature algorithm is not allowed here"),
        (token(kid="r1", key=RSA_KEY, alg="PS256"), "its signature algorithm is not allowed here"),
        ("a.b.c", "it is malformed"),
        ("x" * 20_000, "it is too long"),
    ],
)
async def test_a_bad_token_is_refused_with_its_reason(text: str, why: str) -> None:
    status, message = await refusal(Issuer().verifier(), text)
    assert status == 401
    assert message.startswith(f"the token is not valid: {why}")


async def test_a_public_key_used_as_a_shared_secret_signs_nothing() -> None:
    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    head = part({"alg": "HS256", "kid": "r1", "typ": "JWT"})
    body = part({"iss": "https://id", "aud": "kvrun", "exp": time.time() + 60, "sub": "a"})
    secret = json.dumps(RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True)).encode()
    mac = base64.urlsafe_b64encode(hmac.digest(secret, head + b"." + body, "sha256")).rstrip(b"=")
    forged = (head + b"." + body + b"." + mac).decode()
    assert (await refusal(Issuer().verifier(), forged))[0] == 401


async def test_an_algorithm_must_fit_its_key() -> None:
    settings = SETTINGS.model_copy(update={"algorithms": ("RS256", "ES256", "PS256")})
    issuer = Issuer()
    verifier = JwtVerifier(settings, issuer.fetch, lambda: 0.0)
    assert (await refusal(verifier, token(kid="e1", key=RSA_KEY, alg="PS256")))[0] == 401


async def test_keys_are_fetched_once_and_again_when_they_are_old() -> None:
    issuer = Issuer()
    verifier = issuer.verifier()
    for _ in range(3):
        await verifier.authenticate(token())
    assert issuer.fetches == 1
    issuer.now = 301
    await verifier.authenticate(token())
    assert issuer.fetches == 2


async def test_made_up_key_ids_do_not_flood_the_issuer() -> None:
    issuer = Issuer()
    verifier = issuer.verifier()
    await verifier.authenticate(token())
    for number in range(50):
        issuer.now += 1
        await refusal(verifier, token(kid=f"k{number}"))
    assert issuer.fetches <= 3


async def test_a_rotated_key_is_found_and_a_removed_one_refused() -> None:
    issuer = Issuer()
    issuer.document = jwks("r1")
    verifier = issuer.verifier()
    await verifier.authenticate(token("r1", RSA_KEY, "RS256"))
    issuer.document, issuer.now = jwks("e1"), 31
    await verifier.authenticate(token())
    assert (await refusal(verifier, token("r1", RSA_KEY, "RS256")))[0] == 401


@pytest.mark.parametrize(
    "failure", [OSError("down"), b"{", b'{"keys":5}', b'{"keys":[{"kid":"x"}]}']
)
async def test_an_issuer_that_is_away_leaves_the_known_keys_in_use(failure: Any) -> None:
    issuer = Issuer()
    verifier = issuer.verifier()
    await verifier.authenticate(token())
    issuer.document, issuer.now = failure, 1000
    await verifier.authenticate(token())
    assert issuer.fetches == 2


async def test_before_any_key_is_known_tokens_are_answered_with_503() -> None:
    issuer = Issuer()
    issuer.document = OSError("down")
    verifier = issuer.verifier()
    assert await refusal(verifier, token()) == (
        503,
        "tokens cannot be checked right now: the issuer's keys are not available",
    )
    issuer.document, issuer.now = jwks(), 2
    await verifier.authenticate(token())


def test_shared_secrets_and_encryption_keys_in_a_key_set_are_ignored() -> None:
    document = json.loads(jwks("e1"))
    document["keys"].append({"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"})
    document["keys"].append({**document["keys"][0], "kid": "x", "use": "enc"})
    assert set(parse_jwks(json.dumps(document).encode())) == {"e1"}


def keys(**changes: Any) -> ApiKeys:
    return ApiKeys([ApiKeyRecord(id="k1", sha256=hash_api_key(KEY), **changes)])


def test_a_key_is_random_text_with_a_prefix() -> None:
    assert KEY.startswith("kvk_")
    assert len(KEY) == 47
    with pytest.raises(ValueError, match="exactly 32 random bytes"):
        make_api_key(b"short")


@given(st.text(max_size=60) | st.just(KEY[:-1]) | st.just(KEY + "A") | st.just(KEY.lower()))
def test_no_other_text_is_a_key(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        keys().authenticate(text, 0)
    assert (caught.value.status, caught.value.message) == (401, "the API key is not valid")


def test_a_key_gives_its_scopes_and_tenant_until_it_expires() -> None:
    principal = keys(scopes=("metrics",), tenant="alice", expires_at=10).authenticate(KEY, 9)
    assert (principal.name, principal.scopes, principal.tenant) == ("k1", {"metrics"}, "alice")
    with pytest.raises(GatewayError, match="the API key is not valid"):
        keys(expires_at=10).authenticate(KEY, 10)


def test_the_keys_file_keeps_hashes_only_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    records = [ApiKeyRecord(id="k1", sha256=hash_api_key(KEY))]
    save_api_keys(path, records)
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY not in path.read_text()
    assert load_api_keys(path) == records
    path.chmod(0o644)
    with pytest.raises(GatewayConfigError, match="may be read by other users"):
        load_api_keys(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is malformed"),
        ('{"keys":[{"id":"a"}]}', "is malformed: Object missing required field `sha256`"),
        ('{"keys":[{"id":"a","sha256":"' + "0" * 64 + '","admin":1}]}', "unknown field `admin`"),
        ('{"keys":[{"id":"a b","sha256":"' + "0" * 64 + '"}]}', "id must be 1 to 64 of"),
        ('{"keys":[{"id":"a","sha256":"kvk_x"}]}', "sha256 must be 64 lower-case hex digits"),
        (
            '{"keys":[{"id":"a","sha256":"' + "0" * 64 + '","scopes":["root"]}]}',
            "unknown scope 'root', allowed are erase, inference, metrics",
        ),
        (
            '{"keys":[{"id":"a","sha256":"' + "0" * 64 + '","tenant":"a b"}]}',
            "tenant must be 1 to 128 printable ASCII characters",
        ),
    ],
)
def test_a_malformed_keys_file_says_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(GatewayConfigError) as caught:
        load_api_keys(path)
    assert why in caught.value.message


def test_a_missing_or_doubled_keys_file_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(GatewayConfigError, match="No such file"):
        load_api_keys(tmp_path / "none.json")
    record = ApiKeyRecord(id="k1", sha256="0" * 64)
    save_api_keys(tmp_path / "keys.json", [record, record])
    with pytest.raises(GatewayConfigError, match="holds the key id 'k1' twice"):
        load_api_keys(tmp_path / "keys.json")


def authenticator(required: bool = True, with_jwt: bool = False, **record: Any) -> Authenticator:
    verifier = Issuer().verifier() if with_jwt else None
    return Authenticator(api_keys=keys(**record), jwt=verifier, required=required, now=lambda: 0.0)


async def outcome(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(GatewayError) as caught:
        await call()
    return caught.value.status, caught.value.message


async def test_both_ways_of_sending_a_key_work() -> None:
    for header in ((b"authorization", f"Bearer {KEY}"), (b"x-api-key", KEY),
                   (b"Authorization", f"bearer {KEY}")):  # fmt: skip
        principal = await authenticator().authenticate(
            [(header[0], header[1].encode())], "inference"
        )
        assert principal.name == "k1"


async def test_keys_and_tokens_work_side_by_side() -> None:
    both = authenticator(with_jwt=True)
    for text, kind in ((KEY, "api_key"), (token(), "jwt")):
        header = (b"authorization", f"Bearer {text}".encode())
        assert (await both.authenticate([header], "inference")).kind == kind
    header = (b"authorization", f"Bearer {token()}".encode())
    assert (await outcome(lambda: both.authenticate([header], "metrics")))[0] == 403


async def test_missing_or_wrong_credentials_are_refused() -> None:
    assert await outcome(lambda: authenticator().authenticate([], "inference")) == (
        401,
        "no credentials: send an API key or a token as 'Authorization: Bearer ...'",
    )
    wrong = [(b"authorization", b"Bearer kvk_wrong")]
    assert (await outcome(lambda: authenticator().authenticate(wrong, "inference")))[0] == 401
    # Optional authentication does not make a wrong key right.
    assert (await outcome(lambda: authenticator(False).authenticate(wrong, "inference")))[0] == 401
    assert (await authenticator(False).authenticate([], "inference")).kind == "anonymous"


async def test_a_key_without_the_scope_is_refused() -> None:
    header = [(b"authorization", f"Bearer {KEY}".encode())]
    assert await outcome(lambda: authenticator().authenticate(header, "metrics")) == (
        403,
        "this API key lacks the scope 'metrics'",
    )


async def test_where_nothing_is_checked_any_placeholder_key_passes() -> None:
    free = Authenticator(api_keys=None, jwt=None, required=False, now=lambda: 0.0)
    header = [(b"authorization", b"Bearer EMPTY")]
    assert (await free.authenticate(header, "inference")).kind == "anonymous"


@pytest.mark.parametrize("value", [b"Basic abc", b"Bearer", b"Bearer  ", b"kvk_abc"])
def test_another_authorization_scheme_is_refused(value: bytes) -> None:
    with pytest.raises(GatewayError, match="must be 'Bearer' and a key or token"):
        read_credential([(b"authorization", value)])


@pytest.mark.parametrize("second", [b"authorization", b"Authorization", b"x-api-key"])
def test_credentials_sent_twice_are_refused(second: bytes) -> None:
    with pytest.raises(GatewayError, match="credentials were sent more than once"):
        read_credential([(b"authorization", b"Bearer a"), (second, b"Bearer a")])
