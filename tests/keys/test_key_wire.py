"""The key service's format: byte for byte as documented, and nothing else is taken for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.keys.wire import (
    MAX_ANSWER_BYTES,
    Acquire,
    Challenge,
    End,
    Ended,
    Hello,
    Lent,
    Renew,
    Welcome,
    WireError,
    decode_answer,
    decode_request,
    encode,
    frame_length,
    hello_proof,
    welcome_proof,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "key-service.json").read_text())
TOKEN = bytes.fromhex(VECTORS["token"])
CHALLENGE = Challenge(1, bytes(range(32)), bytes(range(16)))
UNPROVEN = Hello(1, "acme", "chat", "acme/chat/box-1", bytes(range(32, 64)), b"", [b"k" * 16])


def test_the_proofs_are_those_of_the_vectors() -> None:
    assert hello_proof(TOKEN, CHALLENGE, UNPROVEN).hex() == VECTORS["hello_proof"]
    assert welcome_proof(TOKEN, CHALLENGE, UNPROVEN).hex() == VECTORS["welcome_proof"]


MESSAGES = {
    "challenge": CHALLENGE,
    "hello": Hello(
        1, "acme", "chat", "acme/chat/box-1", bytes(range(32, 64)),
        bytes.fromhex(VECTORS["hello_proof"]), [b"k" * 16],
    ),
    "welcome": Welcome(bytes.fromhex(VECTORS["welcome_proof"]), []),
    "renew": Renew(7, [(b"k" * 16, 1_800_000_000.5)]),
    "acquire": Acquire(8, "alice", "chat-7", True),
    "lent": Lent(8, b"k" * 16, 3, 1_800_000_000.0, 1_800_000_000.5, "a" * 32),
    "end": End(1, [b"k" * 16]),
    "ended": Ended(1),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_is_framed_as_documented(name: str) -> None:
    message, frame = MESSAGES[name], bytes.fromhex(VECTORS["frames"][name])
    assert encode(message) == frame
    assert frame_length(frame[:4], at_most=MAX_ANSWER_BYTES) == len(frame) - 4
    read = decode_request if name in ("hello", "renew", "acquire", "ended") else decode_answer
    assert read(frame[4:]) == message


@pytest.mark.parametrize("changed", ["acme", "chat", "acme/chat/box-1"])
def test_a_proof_is_of_one_name_and_one_challenge(changed: str) -> None:
    names = ["evil" if changed == name else name for name in ("acme", "chat", "acme/chat/box-1")]
    other = Hello(1, *names, UNPROVEN.nonce, b"")
    assert hello_proof(TOKEN, CHALLENGE, other) != hello_proof(TOKEN, CHALLENGE, UNPROVEN)
    later = Challenge(1, b"x" * 32, CHALLENGE.service)
    assert hello_proof(TOKEN, later, UNPROVEN) != hello_proof(TOKEN, CHALLENGE, UNPROVEN)


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
