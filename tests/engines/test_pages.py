"""Pages travel whole between the engine's tensors and staging, and never outside either."""

import contextlib
import random

import pytest

torch = pytest.importorskip("torch")

from kvrun.engines.pages import (  # noqa: E402
    CpuPageCopier,
    CudaPageCopier,
    PageCopy,
    PageLayoutError,
)

PAGE = 192
BLOCKS = 7
# Two groups that share tensor 0 with different page sizes, as hybrid models do.
GROUPS = [[(0, PAGE), (1, PAGE)], [(0, 128), (2, 64)]]


def tensors(device="cpu"):
    generator = torch.Generator().manual_seed(7)

    def data(*shape):
        return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)

    plain = data(BLOCKS, PAGE).to(device)
    strided = data(BLOCKS, 2 * PAGE).to(device)[:, :PAGE]
    small = data(BLOCKS, 64).to(device)
    return [plain, strided, small]


def expected(kv, group, block):
    return b"".join(
        kv[index][block, :size].cpu().view(torch.uint8).numpy().tobytes()
        for index, size in GROUPS[group]
    )


def test_a_gathered_block_is_its_pages_in_order():
    kv = tensors()
    staging = bytearray(4096)
    copier = CpuPageCopier(kv, GROUPS, memoryview(staging))
    assert [copier.block_bytes(0), copier.block_bytes(1)] == [2 * PAGE, 192]
    copier.gather(0, 3, 100)
    copier.gather(1, 6, 1000)
    assert staging[100 : 100 + 2 * PAGE] == expected(kv, 0, 3)
    assert staging[1000:1192] == expected(kv, 1, 6)
    assert not any(staging[:100])
    assert not any(staging[1192:])


def round_trip(copier, kv):
    """Every block of both groups goes to staging and comes back to wiped tensors."""
    before = [tensor.clone() for tensor in kv]
    places = list(range(2 * BLOCKS))
    random.Random(1).shuffle(places)
    batch = [
        PageCopy(group, block, 2 * PAGE * places[group * BLOCKS + block])
        for group in (0, 1)
        for block in range(BLOCKS)
    ]
    copier.wait(copier.submit_gather(batch))
    for tensor in kv:
        tensor.zero_()
    handle = copier.submit_scatter(batch)
    copier.wait(handle)
    assert copier.done(handle)
    for tensor, old in zip(kv, before, strict=True):
        assert torch.equal(tensor, old)


def test_scatter_undoes_gather_on_strided_and_shared_tensors():
    kv = tensors()
    copier = CpuPageCopier(kv, GROUPS, memoryview(bytearray(2 * PAGE * 2 * BLOCKS)))
    round_trip(copier, kv)


def test_scatter_leaves_neighbouring_rows_and_padding_alone():
    kv = tensors()
    padded = torch.full((BLOCKS, 2 * PAGE), 5, dtype=torch.int8)
    kv[1] = padded[:, :PAGE]
    copier = CpuPageCopier(kv, GROUPS, memoryview(bytearray(b"\xff" * 4096)))
    copier.scatter(0, 2, 0)
    assert (padded[2, :PAGE] == -1).all()
    assert (padded[2, PAGE:] == 5).all()
    assert (padded[[0, 1, 3, 4, 5, 6]] == 5).all()


@pytest.mark.parametrize(
    ("group", "block", "offset"),
    [(2, 0, 0), (-1, 0, 0), (0, BLOCKS, 0), (0, -1, 0), (0, 0, -1), (0, 0, 4096 - 2 * PAGE + 1)],
)
def test_a_copy_out_of_bounds_is_refused(group, block, offset):
    copier = CpuPageCopier(tensors(), GROUPS, memoryview(bytearray(4096)))
    for copy in (copier.gather, copier.scatter):
        with pytest.raises(PageLayoutError):
            copy(group, block, offset)


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(3, 8, dtype=torch.int16),
        torch.zeros(8, dtype=torch.int8),
        torch.zeros(0, 8, dtype=torch.int8),
        torch.zeros(8, 3, dtype=torch.int8).T,
    ],
)
def test_tensors_that_are_not_rows_of_pages_are_refused(bad):
    with pytest.raises(PageLayoutError):
        CpuPageCopier([bad], [[(0, 4)]], memoryview(bytearray(64)))


def test_a_page_longer_than_its_row_is_refused():
    with pytest.raises(PageLayoutError, match="rows have 192"):
        CpuPageCopier(tensors(), [[(0, PAGE + 1)]], memoryview(bytearray(4096)))


@pytest.mark.cuda
def test_cuda_scatter_undoes_gather():
    kv = tensors("cuda")
    staging = torch.zeros(1 << 20, dtype=torch.uint8)
    copier = CudaPageCopier(kv, GROUPS, staging)
    try:
        round_trip(copier, kv)
    finally:
        copier.close()


@pytest.mark.cuda
def test_cuda_gather_waits_for_the_compute_stream():
    kv = [torch.zeros(4, 1 << 20, dtype=torch.int8, device="cuda")]
    staging = torch.zeros(4 << 20, dtype=torch.uint8)
    copier = CudaPageCopier(kv, [[(0, 1 << 20)]], staging)
    try:
        torch.cuda._sleep(200_000_000)
        kv[0].fill_(9)
        copier.wait(copier.submit_gather([PageCopy(0, block, block << 20) for block in range(4)]))
        assert (staging == 9).all()
    finally:
        copier.close()


@pytest.mark.cuda
def test_cuda_zeroes_after_what_is_being_computed_and_before_what_comes():
    kv = tensors("cuda")
    copier = CudaPageCopier(kv, GROUPS, torch.zeros(1 << 20, dtype=torch.uint8))
    try:
        before = [tensor.clone() for tensor in kv]
        torch.cuda._sleep(200_000_000)
        kv[0][2].fill_(9)  # a kernel that still writes the page
        handle = copier.submit_zero([2, 5])
        seen = [tensor.clone() for tensor in kv]  # a kernel that comes after
        copier.wait(handle)
        for tensor, old in zip(seen, before, strict=True):
            for block in range(BLOCKS):
                wanted = torch.zeros_like(old[block]) if block in (2, 5) else old[block]
                assert torch.equal(tensor[block], wanted)
    finally:
        copier.close()


class WrittenDown:
    """Streams that write down what happens in which order; memory is the host's."""

    def __init__(self, status=0):
        self.happened, self.status = [], status

    def copy_after_compute(self):
        self.happened.append("copies wait for compute")

    @contextlib.contextmanager
    def copying(self):
        self.happened.append("copying")
        yield
        self.happened.append("copied")

    def mark_copies(self):
        self.happened.append("copies marked")
        return "copies"

    def mark_compute(self):
        self.happened.append("compute marked")
        return "compute"

    def done(self, handle):
        return True

    def wait(self, handle):
        self.happened.append(f"{handle} awaited")

    def pin(self, staging):
        self.happened.append(f"{staging.numel()} bytes pinned")
        return self.status

    def unpin(self, staging):
        self.happened.append(f"{staging.numel()} bytes unpinned")


def test_the_path_for_cuda_copies_and_zeroes_the_same_pages_in_the_right_order():
    """What can be shown without a GPU: which bytes go where, and what waits for what."""
    streams, kv = WrittenDown(), tensors()
    copier = CudaPageCopier(kv, GROUPS, torch.zeros(1 << 16, dtype=torch.uint8), streams)
    assert streams.happened == ["65536 bytes pinned"]
    streams.happened.clear()
    round_trip(copier, kv)
    one_way = ["copies wait for compute", "copying", "copied", "copies marked", "copies awaited"]
    assert streams.happened == 2 * one_way
    streams.happened.clear()
    before = [tensor.clone() for tensor in kv]
    copier.wait(copier.submit_zero([2, 5]))
    # On the compute stream itself: after what runs, before what comes.
    assert streams.happened == ["compute marked", "compute awaited"]
    for tensor, old in zip(kv, before, strict=True):
        for block in range(BLOCKS):
            wanted = torch.zeros_like(old[block]) if block in (2, 5) else old[block]
            assert torch.equal(tensor[block], wanted)
    with pytest.raises(PageLayoutError, match="block 7"):
        copier.submit_zero([BLOCKS])
    streams.happened.clear()
    copier.close()
    copier.close()
    assert streams.happened == ["65536 bytes unpinned"]


def test_staging_that_cannot_be_pinned_is_refused_with_what_would_help():
    staging = torch.zeros(1 << 16, dtype=torch.uint8)
    with pytest.raises(PageLayoutError, match="cudaError 2") as refused:
        CudaPageCopier(tensors(), GROUPS, staging, WrittenDown(status=2))
    assert "memlock" in refused.value.hint


def test_tensors_that_are_on_no_gpu_are_refused():
    with pytest.raises(PageLayoutError, match="are on cpu"):
        CudaPageCopier(tensors(), GROUPS, torch.zeros(1 << 16, dtype=torch.uint8))
