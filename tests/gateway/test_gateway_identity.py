from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.config.gateway import TenantSource, parse_tenant_source
from kvrun.gateway.errors import GatewayConfigError, GatewayError
from kvrun.gateway.identity import (
    Identity,
    IdentityPolicy,
    Principal,
    check_headers,
    resolve_identity,
)
from kvrun.gateway.seen import FileSeenTenant

ANYONE = Principal("anonymous")
BY_HEADER = TenantSource("header", "")
GOOD_ID = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128)


def resolve(
    *headers: tuple[bytes, bytes],
    body: dict[str, object] | None = None,
    principal: Principal = ANYONE,
    source: TenantSource = BY_HEADER,
    seen: bool = False,
    messages_api: bool = False,
    **settings: object,
) -> Identity:
    policy = IdentityPolicy(source, **settings)  # type: ignore[arg-type]
    return resolve_identity(
        check_headers(headers, policy),
        body,
        principal,
        policy,
        seen_tenant=seen,
        user_in_metadata=messages_api,
    )


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(GatewayError) as caught:
        call()
    return caught.value.status, caught.value.message


def test_without_headers_a_deployment_is_a_single_tenant() -> None:
    assert resolve() == Identity("default", "default", named=False)
    assert resolve((b"x-kv-session", b"s1")) == Identity("default", "s1", named=False)


@given(GOOD_ID.filter(lambda text: text != "default"), GOOD_ID)
def test_ids_arrive_exactly_as_sent(tenant: str, session: str) -> None:
    headers = ((b"x-kv-tenant", tenant.encode()), (b"x-kv-session", session.encode()))
    assert resolve(*headers) == Identity(tenant, session, named=True)


def test_ids_differ_by_case() -> None:
    assert resolve((b"X-KV-TENANT", b"Alice")).tenant == "Alice"
    assert resolve((b"x-kv-tenant", b"alice")).tenant == "alice"


@given(
    st.binary(max_size=200).filter(
        lambda raw: not (1 <= len(raw) <= 128 and all(0x21 <= byte <= 0x7E for byte in raw))
    )
)
def test_no_other_id_is_taken_or_mended(raw: bytes) -> None:
    assert refusal(lambda: resolve((b"x-kv-tenant", raw))) == (
        400,
        "the header X-KV-Tenant must be 1 to 128 printable ASCII characters without spaces",
    )
    assert refusal(lambda: resolve((b"x-kv-session", raw))) == (
        400,
        "the header X-KV-Session must be 1 to 128 printable ASCII characters without spaces",
    )


@pytest.mark.parametrize("name", [b"x-kv-tenant", b"x-kv-session", b"X-Kv-Tenant"])
def test_a_repeated_header_is_refused_even_with_equal_values(name: bytes) -> None:
    status, message = refusal(lambda: resolve((name, b"a"), (name.lower(), b"a")))
    assert (status, message.endswith("was sent more than once")) == (400, True)


@pytest.mark.parametrize(
    "name",
    [b"x-kv-user", b"x-kv-", b"X-KV-Salt", b"x_kv_tenant", b"x-kv_tenant", b"X_KV_Session"],
)
def test_an_unknown_or_misspelt_identity_header_is_refused(name: bytes) -> None:
    assert refusal(lambda: resolve((name, b"a"))) == (
        400,
        f"unknown header {name.decode().lower()}; known here are X-KV-Session and X-KV-Tenant",
    )


@pytest.mark.parametrize(
    "name", [b"X-Session-ID", b"x-session-id", b"x_session_id", b"X-Vllm-Priority",
             b"X-data-parallel-rank"]
)  # fmt: skip
def test_a_header_that_steers_the_engine_is_refused(name: bytes) -> None:
    assert refusal(lambda: resolve((name, b"1"))) == (
        400,
        f"the header {name.decode().lower()} may not be set by a client",
    )


def test_a_renamed_header_replaces_the_usual_one() -> None:
    names = {"tenant_header": "X-User", "session_header": "X-Chat"}
    headers = ((b"x-user", b"a"), (b"x-chat", b"b"))
    assert resolve(*headers, **names) == Identity("a", "b", named=True)
    assert refusal(lambda: resolve((b"x-kv-tenant", b"a"), **names)) == (
        400,
        "unknown header x-kv-tenant; known here are X-Chat and X-User",
    )
    assert refusal(lambda: resolve((b"x_user", b"a"), **names))[0] == 400


def test_a_header_that_every_client_sends_can_name_the_tenant() -> None:
    names = {"tenant_header": "User-Agent", "session_header": "Accept"}
    headers = ((b"user-agent", b"a"), (b"accept", b"b"), (b"host", b"x"))
    assert resolve(*headers, **names) == Identity("a", "b", named=True)
    assert refusal(lambda: resolve((b"user-agent", b"a b"), **names))[0] == 400
    assert refusal(lambda: resolve((b"accept", b"a"), (b"accept", b"a"), **names))[0] == 400


def test_the_name_of_the_unnamed_tenant_cannot_be_taken() -> None:
    assert refusal(lambda: resolve((b"x-kv-tenant", b"default"), mixed=True)) == (
        400,
        "the tenant id 'default' is reserved for requests without a tenant",
    )


def test_a_multi_tenant_deployment_needs_a_tenant() -> None:
    assert refusal(lambda: resolve(multi_tenant=True)) == (
        400,
        "no tenant: the header X-KV-Tenant is missing and this deployment is multi-tenant",
    )
    assert resolve(multi_tenant=True, mixed=True).tenant == "default"


def test_having_seen_a_tenant_makes_a_missing_one_an_error() -> None:
    assert refusal(lambda: resolve(seen=True)) == (
        400,
        "no tenant: the header X-KV-Tenant is missing and this deployment has served requests"
        " with a tenant before",
    )
    assert resolve(seen=True, mixed=True) == Identity("default", "default", named=False)


def test_the_tenant_of_a_token_is_its_claim() -> None:
    source = TenantSource("jwt", "sub")
    token = Principal("jwt", claims={"sub": "alice"})
    assert resolve(principal=token, source=source).tenant == "alice"
    assert refusal(lambda: resolve((b"x-kv-tenant", b"bob"), principal=token, source=source)) == (
        400,
        "unknown header x-kv-tenant; known here are X-KV-Session",
    )


@pytest.mark.parametrize("value", [None, 7, "", "a b", "a" * 129, ["alice"], {"a": 1}, "ä"])
def test_a_token_without_a_usable_claim_is_forbidden(value: object) -> None:
    source = TenantSource("jwt", "sub")
    token = Principal("jwt", claims={} if value is None else {"sub": value})
    assert refusal(lambda: resolve(principal=token, source=source, mixed=True)) == (
        403,
        "the token's claim 'sub' does not hold a tenant id (1 to 128 printable ASCII characters)",
    )


def test_where_tokens_name_the_tenant_another_credential_is_not_enough() -> None:
    source = TenantSource("jwt", "sub")
    key = Principal("api_key", "k1")
    assert refusal(lambda: resolve(principal=key, source=source)) == (
        403,
        "no tenant: the tenant of this deployment is the claim 'sub' of a JSON web token, and the"
        " request carries none",
    )


@pytest.mark.parametrize("name", ["safety_identifier", "user"])
def test_the_tenant_may_stand_in_the_body(name: str) -> None:
    source = TenantSource("body", name)
    assert resolve(body={name: "u-1"}, source=source) == Identity("u-1", "default", named=True)
    assert refusal(lambda: resolve(body={}, source=source, multi_tenant=True)) == (
        400,
        f"no tenant: the body field {name} is missing and this deployment is multi-tenant",
    )
    assert refusal(lambda: resolve(body={name: ["u-1"]}, source=source)) == (
        400,
        f"the body field {name} must be text",
    )
    assert refusal(lambda: resolve(body={name: " u-1"}, source=source)) == (
        400,
        f"the body field {name} must be 1 to 128 printable ASCII characters without spaces",
    )


def test_the_messages_api_names_its_user_in_the_metadata() -> None:
    source = TenantSource("body", "user")
    body: dict[str, object] = {"metadata": {"user_id": "u-1"}}
    assert resolve(body=body, source=source, messages_api=True).tenant == "u-1"
    assert resolve(body=body, source=source).tenant == "default"


def test_a_key_bound_to_a_tenant_speaks_for_no_other() -> None:
    bound = Principal("api_key", "k1", tenant="alice")
    assert resolve(principal=bound).tenant == "alice"
    assert resolve((b"x-kv-tenant", b"alice"), principal=bound).tenant == "alice"
    assert refusal(lambda: resolve((b"x-kv-tenant", b"bob"), principal=bound)) == (
        403,
        "this API key belongs to another tenant",
    )


@pytest.mark.parametrize("text", ["", "Header", "jwt:", "jwt", "body:", "body:metadata", "cookie"])
def test_an_unknown_tenant_source_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="allowed are header, jwt:<claim>"):
        parse_tenant_source(text)


def test_a_seen_tenant_is_remembered_over_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first = FileSeenTenant(folder)
    assert not first.seen
    first.mark()
    first.mark()
    assert FileSeenTenant(folder).seen
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "tenant-seen").stat().st_mode & 0o777 == 0o600


def test_an_unusable_state_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GatewayConfigError, match="cannot use state_dir"):
        FileSeenTenant(tmp_path / "file")
