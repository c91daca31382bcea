"""Which requests are served, and that only the token of a scope's own fresh plan confirms it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import (
    TOKEN_LIFETIME_S,
    ConfirmationError,
    ErasureScope,
    ScopeNotServedError,
    TierCount,
    add_tiers,
    check_token,
    erasure_scope,
    make_token,
    needs_token,
)

KEY = b"k" * 32
NOW = 1_800_000_000.0
TENANT = erasure_scope("tenant", "alice")


def token(scope: ErasureScope = TENANT, *, key: bytes = KEY, sessions: int = 20) -> str:
    return make_token(key, scope, tenants=1, sessions=sessions, now=NOW)


def check(
    given_token: str, scope: ErasureScope = TENANT, *, sessions: int = 20, now: float = NOW
) -> None:
    check_token(KEY, given_token, scope, tenants=1, sessions=sessions, now=now)


def test_only_a_session_is_erased_without_a_token() -> None:
    assert not needs_token(erasure_scope("session", "a", "b"))
    assert all(needs_token(erasure_scope(kind, "a")) for kind in ("tenant", "user", "deployment"))


@pytest.mark.parametrize("kind", ["workspace", "account", "tenants"])
def test_what_needs_the_control_plane_says_so(kind: str) -> None:
    with pytest.raises(ScopeNotServedError, match="control plane"):
        erasure_scope(kind, "x")


@pytest.mark.parametrize(
    ("kind", "tenant", "session"),
    [("session", "a", ""), ("session", "", "b"), ("tenant", "a b", ""), ("user", "é", ""),
     ("tenant", "a" * 129, ""), ("everything", "", "")],
)  # fmt: skip
def test_a_malformed_scope_is_refused(kind: str, tenant: str, session: str) -> None:
    with pytest.raises(ScopeNotServedError):
        erasure_scope(kind, tenant, session)


def test_the_plans_token_confirms_it_until_it_is_old() -> None:
    check(token())
    check(token(), now=NOW + TOKEN_LIFETIME_S)
    with pytest.raises(ConfirmationError, match="older than"):
        check(token(), now=NOW + TOKEN_LIFETIME_S + 1)
    with pytest.raises(ConfirmationError, match="older than"):
        check(token(), now=NOW - 60)


def test_a_token_confirms_no_other_scope_and_no_other_deployment() -> None:
    for scope in (erasure_scope("tenant", "bob"), erasure_scope("user", "alice")):
        with pytest.raises(ConfirmationError, match="another scope"):
            check(token(), scope)
    with pytest.raises(ConfirmationError, match="of this deployment"):
        check(token(key=b"o" * 32))
    with pytest.raises(ConfirmationError, match="wants the token"):
        check("")


def test_much_more_than_was_counted_is_planned_again() -> None:
    check(token(sessions=20), sessions=30)
    check(token(sessions=1000), sessions=1100)
    check(token(sessions=20), sessions=0)
    for counted, there in ((20, 31), (1000, 1101), (0, 11)):
        with pytest.raises(ConfirmationError, match=f"counted {counted} sessions"):
            check(token(sessions=counted), sessions=there)


@given(st.data())
def test_a_changed_token_confirms_nothing(data: st.DataObject) -> None:
    good = token()
    at = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda char: char != good[at]))
    changed = good[:at] + other + good[at + 1 :]
    try:
        check(changed)
    except ConfirmationError:
        return
    # Base64's last character has bits that carry nothing: the same token, spelled differently.
    assert at == len(good) - 1


@given(st.text(max_size=700))
def test_any_text_is_a_token_or_a_refusal(text: str) -> None:
    with pytest.raises(ConfirmationError):
        check(text)


SCOPES = st.builds(
    ErasureScope,
    st.just(RequestKind.SESSION),
    st.sampled_from("ab"),
    st.sampled_from("xy"),
) | st.builds(ErasureScope, st.just(RequestKind.TENANT), st.sampled_from("ab")) | st.just(
    ErasureScope(RequestKind.DEPLOYMENT)
)  # fmt: skip


@given(SCOPES, SCOPES)
def test_two_scopes_overlap_where_a_session_lies_in_both(
    one: ErasureScope, other: ErasureScope
) -> None:
    shared = [(t, s) for t in "ab" for s in "xy" if one.covers(t, s) and other.covers(t, s)]
    assert one.overlaps(other) == other.overlaps(one) == bool(shared)


def test_counts_add_up_by_tier() -> None:
    counts = [
        TierCount(tier="memory", blocks=1, bytes=10),
        TierCount(tier="disk", blocks=2, bytes=20),
        TierCount(tier="memory", blocks=3, bytes=30),
    ]
    assert [(c.tier, c.blocks, c.bytes) for c in add_tiers(counts)] == [
        ("memory", 4, 40),
        ("disk", 2, 20),
    ]
