"""The key service's format: byte for byte as documented, and nothing else is taken for it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from kvrun.keys.daemon_state import DaemonReport, DaemonState, Pages
from kvrun.keys.greeting import hello_proof, is_signed, signed_by, welcome_proof
from kvrun.keys.listing import SessionPage, SessionsAsked, TenantInfo, TenantPage, TenantsAsked
from kvrun.keys.session import SessionInfo
from kvrun.keys.wire import (
    MAX_ANSWER_BYTES,
    Acquire,
    Challenge,
    Cleared,
    Destroy,
    End,
    Ended,
    Gone,
    Hello,
    Lent,
    ListedSessions,
    ListedTenants,
    ListSessions,
    ListTenants,
    Renew,
    Settle,
    Settled,
    Welcome,
    WireError,
    decode_answer,
    decode_request,
    encode,
    frame_length,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "key-service.json").read_text())
TOKEN = bytes.fromhex(VECTORS["token"])
INSTANCE = bytes.fromhex(VECTORS["instance"])
SIGNATURE = bytes.fromhex(VECTORS["signature"])
CHALLENGE = Challenge(3, bytes(range(32)), bytes(range(16)))
UNPROVEN = Hello(
    3, "acme", "chat", "acme/chat/box-1", INSTANCE, bytes(range(32, 64)), b"", b"", [b"k" * 16]
)


def test_the_proofs_are_those_of_the_vectors() -> None:
    assert hello_proof(TOKEN, CHALLENGE, UNPROVEN).hex() == VECTORS["hello_proof"]
    assert welcome_proof(TOKEN, CHALLENGE, UNPROVEN).hex() == VECTORS["welcome_proof"]
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["instance_key"]))
    assert signed_by(key, CHALLENGE, UNPROVEN).hex() == VECTORS["signature"]


OTHER = "acme/chat/box-2 (process 77)"
OF_DAEMONS = (
    "hello", "renew", "acquire", "destroy", "settle", "look", "ended", "cleared", "tenants",
    "sessions",
)  # fmt: skip
A, B = "a" * 32, "b" * 32
USED, ENDS = 1_800_000_000.5, 1_800_000_060.5
SESSION = SessionInfo("alice", "chat-7", A, B, 3, "6b" * 16, 1_800_000_000.0, USED, ENDS)
MESSAGES = {
    "challenge": CHALLENGE,
    "hello": Hello(
        3, "acme", "chat", "acme/chat/box-1", INSTANCE, bytes(range(32, 64)),
        bytes.fromhex(VECTORS["hello_proof"]), bytes.fromhex(VECTORS["signature"]), [b"k" * 16],
    ),
    "welcome": Welcome(bytes.fromhex(VECTORS["welcome_proof"]), []),
    "renew": Renew(7, [(b"k" * 16, 1_800_000_000.5)]),
    "acquire": Acquire(8, "alice", "chat-7", True),
    "lent": Lent(8, b"k" * 16, 3, 1_800_000_000.0, 1_800_000_000.5, "a" * 32),
    "destroy": Destroy(9, "e" * 24, ["6b" * 16], [b"o" * 16]),
    "gone": Gone(9, [], [(77, OTHER)]),
    "settle": Settle(10, "e" * 24, [OTHER], 30.0),
    "look": Settle(11, "e" * 24, [OTHER], None),
    "settled": Settled(
        10,
        [
            DaemonState(OTHER, DaemonReport.LET_GO, Pages(5, 4, 1, ["note"])),
            DaemonState("acme/chat/box-3 (process 78)", DaemonReport.ABSENT),
        ],
    ),
    "tenants": ListTenants(12, TenantsAsked(ids=("alice",), begins="a", limit=50)),
    "tenants_page": ListedTenants(12, TenantPage((TenantInfo("", A, (B,), USED, ENDS),), 1)),
    "sessions": ListSessions(13, SessionsAsked(tenant="alice", limit=50, named=True)),
    "sessions_page": ListedSessions(13, SessionPage(A, (SESSION,), 1)),
    "end": End(1, [b"k" * 16], [b"o" * 16]),
    "ended": Ended(1),
    "cleared": Cleared(1, Pages(5, 4, 1, ["note"])),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_is_framed_as_documented(name: str) -> None:
    message, frame = MESSAGES[name], bytes.fromhex(VECTORS["frames"][name])
    assert encode(message) == frame
    assert frame_length(frame[:4], at_most=MAX_ANSWER_BYTES) == len(frame) - 4
    read = decode_request if name in OF_DAEMONS else decode_answer
    assert read(frame[4:]) == message


@pytest.mark.parametrize("changed", ["acme", "chat", "acme/chat/box-1"])
def test_a_proof_is_of_one_name_and_one_challenge(changed: str) -> None:
    names = ["evil" if changed == name else name for name in ("acme", "chat", "acme/chat/box-1")]
    other = Hello(3, *names, INSTANCE, UNPROVEN.nonce, b"", SIGNATURE)
    assert hello_proof(TOKEN, CHALLENGE, other) != hello_proof(TOKEN, CHALLENGE, UNPROVEN)
    assert not is_signed(CHALLENGE, other)
    later = Challenge(3, b"x" * 32, CHALLENGE.service)
    assert hello_proof(TOKEN, later, UNPROVEN) != hello_proof(TOKEN, CHALLENGE, UNPROVEN)
    signed = msgspec.structs.replace(UNPROVEN, signature=SIGNATURE)
    assert is_signed(CHALLENGE, signed)
    assert not is_signed(later, signed)


@pytest.mark.parametrize("instance", [b"", b"i" * 31, b"i" * 32, b"\xff" * 32])
def test_another_instance_key_is_not_shown(instance: bytes) -> None:
    signed = msgspec.structs.replace(UNPROVEN, signature=SIGNATURE, instance=instance)
    assert not is_signed(CHALLENGE, signed)
    assert hello_proof(TOKEN, CHALLENGE, signed) != hello_proof(TOKEN, CHALLENGE, UNPROVEN)


@given(st.binary(max_size=200))
def test_anything_else_is_refused_and_breaks_nothing(data: bytes) -> None:
    for decode in (decode_request, decode_answer):
        try:
            decode(data)
        except WireError:
            continue


@pytest.mark.parametrize("head", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_a_length_out_of_bounds_is_refused(head: bytes) -> None:
    with pytest.raises(WireError, match="are allowed"):
        frame_length(head, at_most=1 << 20)
