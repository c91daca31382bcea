"""The context encoding: injective, and strict about what it takes."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.seal import BlockIdentity, ContextEncoder, ContextError, SessionContext

SCOPE_TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=6)
SESSIONS = st.builds(
    SessionContext,
    workspace=SCOPE_TEXT,
    deployment=SCOPE_TEXT,
    tenant=SCOPE_TEXT,
    session=SCOPE_TEXT,
    fingerprint=st.binary(min_size=32, max_size=32),
    generation=st.integers(0, 2**32 - 1),
)
BLOCKS = st.builds(
    BlockIdentity,
    block_hash=st.binary(min_size=1, max_size=40),
    group=st.integers(0, 2**32 - 1),
    rank=st.integers(0, 7),
    world_size=st.integers(8, 16),
    layers=SCOPE_TEXT,
    token_start=st.integers(0, 2**64 - 1),
    token_count=st.integers(1, 2**32 - 1),
)
SESSION = SessionContext("ws", "dep", "tenant", "session", bytes(32), 1)
BLOCK = BlockIdentity(b"hash", 0, 0, 1, "0-27", 0, 256)


def decode(context: bytes) -> tuple[SessionContext, BlockIdentity]:
    """A reader of the specified encoding: if it can be read back, no two identities share one."""
    label = b"kvrun/kv-block/v1\x00"
    assert context.startswith(label)
    rest = context[len(label) :]

    def take(size: int) -> bytes:
        nonlocal rest
        value, rest = rest[:size], rest[size:]
        assert len(value) == size
        return value

    def number(size: int) -> int:
        return int.from_bytes(take(size), "little")

    texts = [take(number(2)).decode() for _ in range(4)]
    session = SessionContext(*texts, fingerprint=take(32), generation=number(4))
    block_hash, layers = take(number(2)), take(number(2)).decode()
    block = BlockIdentity(block_hash, number(4), number(4), number(4), layers, number(8), number(4))
    assert rest == b""
    return session, block


@given(SESSIONS, BLOCKS)
def test_every_identity_can_be_read_back_from_its_encoding(session, block):
    assert decode(ContextEncoder(session).encode(block)) == (session, block)


def test_characters_moved_from_one_field_to_the_next_change_the_encoding():
    names = ("workspace", "deployment", "tenant", "session")
    base = SessionContext("aa", "aa", "aa", "aa", bytes(32), 1)
    encodings = {ContextEncoder(base).encode(BLOCK)}
    for shorter, longer in itertools.pairwise(names):
        moved = dataclasses.replace(base, **{shorter: "a", longer: "aaa"})
        encodings.add(ContextEncoder(moved).encode(BLOCK))
    assert len(encodings) == 4


def test_a_block_hash_that_looks_like_the_next_field_does_not_collide():
    one = dataclasses.replace(BLOCK, block_hash=b"h", layers="ab")
    two = dataclasses.replace(BLOCK, block_hash=b"h\x02\x00a", layers="b")
    encoder = ContextEncoder(SESSION)
    assert encoder.encode(one) != encoder.encode(two)


@pytest.mark.parametrize("field", ["workspace", "deployment", "tenant", "session"])
@pytest.mark.parametrize("text", ["", "a" * 129, "a b", "tab\t", "nul\x00", "é", "\x7f", b"ws"])
def test_a_scope_text_outside_the_limits_is_refused_by_name(field, text):
    with pytest.raises(ContextError, match=field):
        dataclasses.replace(SESSION, **{field: text})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", bytes(31)),
        ("fingerprint", bytearray(32)),
        ("generation", -1),
        ("generation", 2**32),
        ("generation", True),
    ],
)
def test_a_session_value_outside_the_limits_is_refused_by_name(field, value):
    with pytest.raises(ContextError, match=field):
        dataclasses.replace(SESSION, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_hash", b""),
        ("block_hash", bytes(256)),
        ("block_hash", "hash"),
        ("layers", ""),
        ("layers", "a" * 65536),
        ("layers", "0 - 27"),
        ("group", -1),
        ("group", 2**32),
        ("world_size", 0),
        ("rank", 1),
        ("rank", -1),
        ("token_start", -1),
        ("token_start", 2**64),
        ("token_count", 0),
        ("token_count", 2**32),
        ("token_count", 1.0),
    ],
)
def test_a_block_value_outside_the_limits_is_refused_by_name(field, value):
    with pytest.raises(ContextError, match=field):
        dataclasses.replace(BLOCK, **{field: value})


def test_the_longest_layer_text_is_accepted():
    block = dataclasses.replace(BLOCK, layers="a" * 65535)
    assert decode(ContextEncoder(SESSION).encode(block)) == (SESSION, block)
