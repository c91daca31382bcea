"""What the KVS1 envelope promises: the right opener gets the bytes, everyone else gets nothing."""

import copy
import dataclasses
import os
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrun.errors import KvrunError
from kvrun.seal import (
    OVERHEAD_BYTES,
    BlockIdentity,
    BlockSealer,
    ContextEncoder,
    EnvelopeFormatError,
    IntegrityError,
    SealBufferError,
    SealedBlockError,
    SealerClosedError,
    SessionContext,
    WrongKeyOrContextError,
    plain_size,
    sealed_size,
)

GENERATION = 7
SESSION = SessionContext("ws", "dep", "tenant", "session", bytes(range(32)), GENERATION)
BLOCK = BlockIdentity(b"\x5a" * 32, 0, 0, 2, "0-27", 256, 256)
CONTEXT = ContextEncoder(SESSION).encode(BLOCK)
SEALER = BlockSealer(bytearray(b"\x42" * 32), generation=GENERATION)


def sealed_block(plain: bytes, *, context: bytes = CONTEXT, sealer: BlockSealer = SEALER) -> bytes:
    out = bytearray(len(plain) + OVERHEAD_BYTES)
    sealer.seal_into(context, plain, out, salt=os.urandom(24))
    return bytes(out)


def opened(sealed: bytes, *, context: bytes = CONTEXT, sealer: BlockSealer = SEALER) -> bytes:
    out = bytearray(len(sealed) - OVERHEAD_BYTES)
    sealer.open_into(context, sealed, out)
    return bytes(out)


def refused(sealed: bytes, *, context: bytes = CONTEXT, sealer: BlockSealer = SEALER) -> type:
    """The error of opening ``sealed``; whatever it is, the output must hold only zeros."""
    out = bytearray(b"\xaa" * max(len(sealed) - OVERHEAD_BYTES, 0))
    with pytest.raises(SealedBlockError) as caught:
        sealer.open_into(context, sealed, out)
    assert not any(out)
    return caught.type


@given(st.binary(max_size=5000), st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_what_was_sealed_opens_to_the_same_bytes(plain, dek, context):
    sealer = BlockSealer(bytearray(dek), generation=0)
    sealed = sealed_block(plain, context=context, sealer=sealer)
    assert len(sealed) == sealed_size(len(plain)) == len(plain) + 88
    assert plain_size(len(sealed)) == len(plain)
    assert opened(sealed, context=context, sealer=sealer) == plain


def test_the_same_block_sealed_twice_shares_nothing_but_the_fixed_header_fields():
    one, two = sealed_block(bytes(4096)), sealed_block(bytes(4096))
    assert one[:12] == two[:12]
    same = sum(a == b for a, b in zip(one[72:], two[72:], strict=True))
    assert same < 100  # 16 in expectation


REGIONS = {
    "magic": (0, 4, EnvelopeFormatError),
    "format": (4, 5, EnvelopeFormatError),
    "algorithm": (5, 6, EnvelopeFormatError),
    "flags": (6, 8, EnvelopeFormatError),
    "generation": (8, 12, WrongKeyOrContextError),
    "salt": (12, 36, WrongKeyOrContextError),
    "commitment": (36, 68, WrongKeyOrContextError),
    "length": (68, 72, EnvelopeFormatError),
    "ciphertext": (72, -16, IntegrityError),
    "tag": (-16, None, IntegrityError),
}


@pytest.mark.parametrize("region", REGIONS)
@given(data=st.data(), plain=st.binary(min_size=1, max_size=300))
@settings(max_examples=60)
def test_one_altered_byte_anywhere_keeps_the_block_shut(region, data, plain):
    start, stop, expected = REGIONS[region]
    sealed = bytearray(sealed_block(plain))
    at = data.draw(st.sampled_from(range(len(sealed))[start:stop]))
    sealed[at] ^= data.draw(st.integers(1, 255))
    assert refused(bytes(sealed)) is expected


def test_the_regions_cover_every_byte():
    covered = [at for start, stop, _ in REGIONS.values() for at in range(200)[start:stop]]
    assert covered == list(range(200))


def test_a_block_cut_at_any_length_is_refused_as_malformed():
    sealed = sealed_block(os.urandom(100))
    for length in range(len(sealed)):
        assert refused(sealed[:length]) is EnvelopeFormatError


def test_a_truncated_block_is_refused_when_the_reader_expects_the_full_size():
    sealed = sealed_block(os.urandom(100))
    out = bytearray(b"\xaa" * 100)
    with pytest.raises(EnvelopeFormatError):
        SEALER.open_into(CONTEXT, sealed[:-1], out)
    assert not any(out)


@given(st.binary(min_size=1, max_size=64))
def test_a_block_with_bytes_appended_is_refused_as_malformed(extra):
    assert refused(sealed_block(b"kv") + extra) is EnvelopeFormatError


@given(st.binary(max_size=400))
def test_arbitrary_bytes_never_open(noise):
    refused(noise)


OTHER_SESSION = {
    "workspace": "ws2",
    "deployment": "dep2",
    "tenant": "tenant2",
    "session": "session2",
    "fingerprint": bytes(range(1, 33)),
    "generation": GENERATION + 1,
}
OTHER_BLOCK = {
    "block_hash": b"\x5a" * 31 + b"\x5b",
    "group": 1,
    "rank": 1,
    "world_size": 4,
    "layers": "0-26",
    "token_start": 0,
    "token_count": 128,
}


def test_every_field_of_an_identity_is_tried():
    assert set(OTHER_SESSION) == {f.name for f in dataclasses.fields(SessionContext)}
    assert set(OTHER_BLOCK) == {f.name for f in dataclasses.fields(BlockIdentity)}


@pytest.mark.parametrize("field", OTHER_SESSION)
def test_a_block_of_another_session_does_not_open(field):
    other = dataclasses.replace(SESSION, **{field: OTHER_SESSION[field]})
    foreign = sealed_block(b"kv" * 50, context=ContextEncoder(other).encode(BLOCK))
    assert refused(foreign) is WrongKeyOrContextError


@pytest.mark.parametrize("field", OTHER_BLOCK)
def test_a_swapped_block_does_not_open(field):
    other = dataclasses.replace(BLOCK, **{field: OTHER_BLOCK[field]})
    swapped = sealed_block(b"kv" * 50, context=ContextEncoder(SESSION).encode(other))
    assert refused(swapped) is WrongKeyOrContextError


def test_another_key_does_not_open_the_block():
    other = BlockSealer(bytearray(b"\x42" * 31 + b"\x43"), generation=GENERATION)
    assert refused(sealed_block(b"kv" * 50), sealer=other) is WrongKeyOrContextError


def test_a_block_of_another_generation_names_both_generations():
    older = BlockSealer(bytearray(b"\x42" * 32), generation=GENERATION - 1)
    sealed = sealed_block(b"kv", sealer=older)
    with pytest.raises(WrongKeyOrContextError, match=r"generation 6 .* generation 7"):
        opened(sealed)


def test_a_header_relabelled_to_this_generation_does_not_open():
    older = BlockSealer(bytearray(b"\x42" * 32), generation=GENERATION - 1)
    sealed = bytearray(sealed_block(b"kv" * 9, sealer=older))
    sealed[8:12] = GENERATION.to_bytes(4, "little")
    # Same key and context, so the commitment holds; the tag covers the header.
    assert refused(bytes(sealed)) is IntegrityError


def test_a_closed_sealer_neither_seals_nor_opens():
    sealer = BlockSealer(bytearray(b"\x42" * 32), generation=GENERATION)
    sealed = sealed_block(b"kv" * 50, sealer=sealer)
    assert not sealer.closed
    sealer.close()
    sealer.close()
    assert sealer.closed
    out = bytearray(b"\xaa" * 100)
    with pytest.raises(SealerClosedError):
        sealer.open_into(CONTEXT, sealed, out)
    assert not any(out)
    out = bytearray(188)
    with pytest.raises(SealerClosedError):
        sealer.seal_into(CONTEXT, b"kv" * 50, out, salt=bytes(24))
    assert not any(out)


def test_threads_that_share_a_sealer_do_not_disturb_each_other():
    def work(seed: int) -> bool:
        context, plain = bytes([seed]) * 40, bytes([seed]) * 65_536
        sealed = [sealed_block(plain, context=context) for _ in range(30)]
        return all(opened(each, context=context) == plain for each in sealed)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_zeroing_the_callers_key_afterwards_does_not_change_the_sealer():
    key = bytearray(b"\x42" * 32)
    sealer = BlockSealer(memoryview(key), generation=GENERATION)
    key[:] = bytes(32)
    assert opened(sealed_block(b"kv"), sealer=sealer) == b"kv"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_sealer_cannot_be_copied_or_pickled(duplicate):
    with pytest.raises(TypeError):
        duplicate(SEALER)


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_key_of_another_size_is_refused(size):
    with pytest.raises(SealBufferError, match="32 bytes"):
        BlockSealer(bytearray(size), generation=0)


@pytest.mark.parametrize("generation", [-1, 2**32])
def test_a_generation_that_does_not_fit_the_header_is_refused(generation):
    with pytest.raises(SealBufferError, match="generation"):
        BlockSealer(bytearray(32), generation=generation)


@pytest.mark.parametrize("size", [0, 12, 23, 25])
def test_a_salt_of_another_size_is_refused(size):
    with pytest.raises(SealBufferError, match="24 bytes"):
        SEALER.seal_into(CONTEXT, b"kv", bytearray(90), salt=bytes(size))


def test_errors_about_data_and_errors_about_the_call_are_different_families():
    for error in (EnvelopeFormatError, WrongKeyOrContextError, IntegrityError):
        assert issubclass(error, SealedBlockError)
    for error in (SealBufferError, SealerClosedError):
        assert issubclass(error, KvrunError)
        assert not issubclass(error, SealedBlockError)


def test_no_copy_of_the_block_is_made():
    plain, sealed = bytearray(8 << 20), bytearray((8 << 20) + 88)
    tracemalloc.start()
    try:
        SEALER.seal_into(CONTEXT, plain, sealed, salt=bytes(24))
        SEALER.open_into(CONTEXT, sealed, plain)
        sealed[-1] ^= 1
        with pytest.raises(IntegrityError):
            SEALER.open_into(CONTEXT, sealed, plain)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10
