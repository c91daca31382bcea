"""Which memory can be sealed from and into, and which is refused."""

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.seal import MAX_PLAIN_BYTES, BlockSealer, EnvelopeFormatError, SealBufferError, buffers
from kvrun.seal import plain_size as plain_size_of

SEALER = BlockSealer(bytearray(range(32)), generation=1)
CONTEXT = b"context"
SALT = bytes(24)


def round_trip(source, out) -> bytes:
    size = memoryview(source).nbytes
    sealed = bytearray(size + 88)
    SEALER.seal_into(CONTEXT, source, sealed, salt=SALT)
    SEALER.open_into(CONTEXT, sealed, out)
    return memoryview(out).tobytes()


def anonymous_map(content: bytes) -> mmap.mmap:
    area = mmap.mmap(-1, len(content))
    area[:] = content
    return area


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, anonymous_map])
def test_bytes_like_sources_are_sealed_in_place(kind: Callable):
    plain = os.urandom(4096)
    assert round_trip(kind(plain), bytearray(4096)) == plain
    assert round_trip(kind(plain), mmap.mmap(-1, 4096)) == plain


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(4096,), (64, 64), (2, 4, 8, 64)])
def test_numpy_arrays_of_bytes_are_sealed_in_place(dtype, shape):
    np = pytest.importorskip("numpy")
    source = np.frombuffer(os.urandom(4096), np.uint8).view(dtype).reshape(shape)
    target = np.zeros_like(source)
    round_trip(source, target)
    assert np.array_equal(source, target)


def test_a_row_of_a_numpy_slab_is_a_destination_and_its_neighbours_stay():
    np = pytest.importorskip("numpy")
    slab = np.full((3, 1088), 0x77, np.uint8)
    plain = os.urandom(1000)
    SEALER.seal_into(CONTEXT, plain, slab[1], salt=SALT)
    assert (slab[0] == 0x77).all()
    assert (slab[2] == 0x77).all()
    out = bytearray(1000)
    SEALER.open_into(CONTEXT, slab[1], out)
    assert out == plain


def test_a_torch_tensor_viewed_as_bytes_comes_back_equal():
    torch = pytest.importorskip("torch")
    source = torch.randn(8, 256).to(torch.bfloat16)
    target = torch.zeros_like(source)
    round_trip(source.view(torch.uint8).numpy(), target.view(torch.uint8).numpy())
    assert torch.equal(source, target)


def test_an_empty_array_of_several_dimensions_is_sealed():
    np = pytest.importorskip("numpy")
    assert round_trip(np.empty((0, 4), np.uint8), np.empty((4, 0), np.uint8)) == b""


def test_wide_items_are_refused_with_the_way_out():
    np = pytest.importorskip("numpy")
    with pytest.raises(SealBufferError, match="format 'e'") as caught:
        SEALER.seal_into(CONTEXT, np.zeros(8, np.float16), bytearray(104), salt=SALT)
    assert "uint8" in caught.value.hint


def test_memory_with_gaps_is_refused():
    with pytest.raises(SealBufferError, match="plaintext is not C-contiguous"):
        SEALER.seal_into(CONTEXT, memoryview(bytes(16))[::2], bytearray(96), salt=SALT)
    with pytest.raises(SealBufferError, match="out is not C-contiguous"):
        SEALER.seal_into(CONTEXT, bytes(8), memoryview(bytearray(192))[::2], salt=SALT)


@pytest.mark.parametrize("value", ["text", [1, 2], None, 5])
def test_what_is_no_buffer_is_refused(value):
    with pytest.raises(SealBufferError, match=type(value).__name__):
        SEALER.seal_into(CONTEXT, value, bytearray(96), salt=SALT)


def test_a_read_only_destination_is_refused():
    with pytest.raises(SealBufferError, match="read-only"):
        SEALER.seal_into(CONTEXT, bytes(8), bytes(96), salt=SALT)
    with pytest.raises(SealBufferError, match="read-only"):
        SEALER.open_into(CONTEXT, bytes(96), memoryview(bytearray(8)).toreadonly())


@pytest.mark.parametrize("size", [0, 8, 95, 97])
def test_a_destination_of_another_size_is_refused_when_sealing(size):
    out = bytearray(size)
    with pytest.raises(SealBufferError, match=f"out has {size} bytes") as caught:
        SEALER.seal_into(CONTEXT, b"12345678", out, salt=SALT)
    assert "exactly 96" in caught.value.hint
    assert not any(out)


def test_a_block_longer_than_the_format_allows_is_refused_before_it_is_read():
    # Pages of an anonymous map that nobody touches take no memory.
    huge = mmap.mmap(-1, MAX_PLAIN_BYTES + 1)
    with pytest.raises(SealBufferError, match=f"plaintext has {MAX_PLAIN_BYTES + 1} bytes"):
        SEALER.seal_into(CONTEXT, huge, bytearray(96), salt=SALT)
    with pytest.raises(EnvelopeFormatError, match=str(MAX_PLAIN_BYTES)):
        plain_size_of(MAX_PLAIN_BYTES + 89)
    assert plain_size_of(MAX_PLAIN_BYTES + 88) == MAX_PLAIN_BYTES


@given(plain_at=st.integers(0, 300), out_at=st.integers(0, 300), size=st.integers(1, 100))
def test_overlapping_memory_is_refused_and_disjoint_memory_is_not(plain_at, out_at, size):
    memory = bytearray(os.urandom(600))
    before = bytes(memory)
    view = memoryview(memory)
    plain = view[plain_at : plain_at + size].toreadonly()
    out = view[out_at : out_at + size + 88]
    overlap = set(range(plain_at, plain_at + size)) & set(range(out_at, out_at + size + 88))
    if overlap:
        with pytest.raises(SealBufferError, match="overlaps"):
            SEALER.seal_into(CONTEXT, plain, out, salt=SALT)
        with pytest.raises(SealBufferError, match="overlaps"):
            SEALER.open_into(CONTEXT, out.toreadonly(), view[plain_at : plain_at + size])
        assert memory == before
    else:
        SEALER.seal_into(CONTEXT, plain, out, salt=SALT)
        opened = bytearray(size)
        SEALER.open_into(CONTEXT, out, opened)
        assert opened == before[plain_at : plain_at + size]


def moves_during(call: Callable[[], object], tries: int) -> bool:
    """Whether another Python thread ever runs while ``call`` does.

    With a switch interval longer than the test, a thread loses the GIL only by giving it up.
    """
    count, stop = 0, False

    def tick() -> None:
        nonlocal count
        while not stop:
            count += 1
            time.sleep(50e-6)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for _ in range(tries):
            time.sleep(0.001)  # the ticker is asleep or waiting when the call starts
            before = count
            call()
            if count != before:
                return True
        return False
    finally:
        stop = True
        sys.setswitchinterval(interval)
        thread.join()


def test_other_threads_run_while_a_block_is_sealed_or_opened():
    plain, sealed = bytearray(16 << 20), bytearray((16 << 20) + 88)
    assert not moves_during(lambda: plain.translate(None), tries=10), "the probe sees nothing"
    assert moves_during(lambda: SEALER.seal_into(CONTEXT, plain, sealed, salt=SALT), tries=200)
    assert moves_during(lambda: SEALER.open_into(CONTEXT, sealed, plain), tries=200)


def test_bytes_are_copied_between_views_of_one_size_only() -> None:
    source, area = os.urandom(5000), anonymous_map(bytes(8192))
    view = memoryview(area)
    buffers.copy(view[4:5004], memoryview(source))
    assert view[:5008].tobytes() == bytes(4) + source + bytes(4)
    for target in (view[:4999], view[:5001], view[:5000].toreadonly()):
        with pytest.raises(SealBufferError):
            buffers.copy(target, memoryview(source))
    assert view[:5008].tobytes() == bytes(4) + source + bytes(4)
