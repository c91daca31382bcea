"""Copies KV pages between the engine's memory and the staging region.

A block of a group is one page of each tensor that the group refers to, copied whole and in order;
what is inside a page is opaque (its layout differs by device and CPU instruction set). Nothing
here imports the engine, so that torch alone tests it.
"""

import ctypes
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from kvrun.engines.copying import CopyHandle, PageCopier, PageCopy
from kvrun.engines.streams import CudaStreams, Streams
from kvrun.errors import KvrunError


class PageLayoutError(KvrunError):
    """The engine's KV tensors are not rows of whole pages, or staging does not fit them."""


class PageRef(NamedTuple):
    """One page of a group's block: which tensor, and how many bytes of its row."""

    tensor_idx: int
    page_size_bytes: int


def page_copier(
    tensors: Sequence[torch.Tensor],
    group_refs: Sequence[Sequence[tuple[int, int]]],
    staging: memoryview,
) -> PageCopier:
    """The copier for the device that holds ``tensors``.

    Raises PageLayoutError for a device without one, and where the arguments do not fit together.
    """
    device = tensors[0].device.type if tensors else "cpu"
    if device == "cpu":
        return CpuPageCopier(tensors, group_refs, staging)
    if device == "cuda":
        return CudaPageCopier(tensors, group_refs, staging)
    raise PageLayoutError(f"KV pages on a {device!r} device cannot be copied", hint="cpu or cuda")


class CpuPageCopier:
    """Pages in host memory: one memmove a page, without the GIL, complete on return.

    ``tensors`` are one byte an element, shape [num_blocks, ...], each row contiguous (rows may be
    strided). ``group_refs`` lists, a group, (tensor index, page bytes). ``staging`` is writable.
    Raises PageLayoutError where they do not fit together.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        group_refs: Sequence[Sequence[tuple[int, int]]],
        staging: memoryview | torch.Tensor,
    ) -> None:
        self._layout = _Layout(tensors, group_refs, staging)
        base = [tensor.data_ptr() for tensor in tensors]
        # A group's pages as (address of row 0, bytes between rows, bytes of a page).
        self._pages = [
            [
                (base[ref.tensor_idx], tensors[ref.tensor_idx].stride(0), ref.page_size_bytes)
                for ref in refs
            ]
            for refs in self._layout.groups
        ]
        self._staging = self._layout.staging.data_ptr()

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of ``group`` in staging."""
        return self._layout.block_bytes[group]

    def gather(self, group: int, block_id: int, offset: int) -> None:
        """Copies one block into staging at ``offset``. Raises PageLayoutError out of bounds."""
        self._layout.check(group, block_id, offset)
        target = self._staging + offset
        for base, stride, size in self._pages[group]:
            ctypes.memmove(target, base + block_id * stride, size)
            target += size

    def scatter(self, group: int, block_id: int, offset: int) -> None:
        """Copies one block back from staging. Raises PageLayoutError out of bounds."""
        self._layout.check(group, block_id, offset)
        source = self._staging + offset
        for base, stride, size in self._pages[group]:
            ctypes.memmove(base + block_id * stride, source, size)
            source += size

    def submit_gather(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Copies the blocks into staging at once; the handle is complete."""
        for group, block_id, offset in batch:
            self.gather(group, block_id, offset)
        return _COMPLETE

    def submit_scatter(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Copies the blocks from staging at once; the handle is complete."""
        for group, block_id, offset in batch:
            self.scatter(group, block_id, offset)
        return _COMPLETE

    def submit_zero(self, block_ids: Sequence[int]) -> CopyHandle:
        """Zeroes these rows of every tensor at once; the handle is complete."""
        for row in self._layout.rows(block_ids):
            row.zero_()
        return _COMPLETE

    def done(self, handle: CopyHandle) -> bool:
        """Always true: a submitted copy is complete."""
        return True

    def wait(self, handle: CopyHandle) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Nothing to give back."""


class CudaPageCopier:
    """Pages in GPU memory: asynchronous copies on a stream of their own, staging pinned.

    Arguments as for :class:`CpuPageCopier`; all tensors are on one CUDA device, whose ``streams``
    are used, and ``staging`` lies at least as long as the copier. A batch starts after everything
    submitted to the device's current stream at that moment, so a gather sees finished pages and a
    scatter never overtakes a kernel that still reads the page.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        group_refs: Sequence[Sequence[tuple[int, int]]],
        staging: memoryview | torch.Tensor,
        streams: Streams | None = None,
    ) -> None:
        self._layout = _Layout(tensors, group_refs, staging)
        self._streams = streams or CudaStreams(_cuda_device(tensors))
        self._tensors = [tensor.flatten(1).view(torch.uint8) for tensor in tensors]
        self._host = self._layout.staging
        if status := self._streams.pin(self._host):
            raise PageLayoutError(
                f"CUDA cannot pin {self._host.numel()} bytes of staging (cudaError {status})",
                hint="raise the memlock limit (ulimit -l), or use a smaller context window",
            )
        self._pinned = True

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of ``group`` in staging."""
        return self._layout.block_bytes[group]

    def submit_gather(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Starts copying blocks into staging; read them once :meth:`done` says so."""
        return self._submit(batch, into_staging=True)

    def submit_scatter(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Starts copying blocks from staging; leave staging alone until :meth:`done`."""
        return self._submit(batch, into_staging=False)

    def submit_zero(self, block_ids: Sequence[int]) -> CopyHandle:
        """Starts zeroing these rows of every tensor, on the compute stream itself: what is
        computed from now on finds them zero."""
        for row in self._layout.rows(block_ids):
            row.zero_()
        return self._streams.mark_compute()

    def done(self, handle: CopyHandle) -> bool:
        """Whether every copy of the batch is complete."""
        return self._streams.done(handle)

    def wait(self, handle: CopyHandle) -> None:
        """Blocks this thread, not the device, until the batch is complete."""
        self._streams.wait(handle)

    def close(self) -> None:
        """Waits for the copies under way and unpins staging."""
        if self._pinned:
            self._pinned = False
            self._streams.unpin(self._host)

    def _submit(self, batch: Sequence[PageCopy], *, into_staging: bool) -> CopyHandle:
        for group, block_id, offset in batch:
            self._layout.check(group, block_id, offset)
        self._streams.copy_after_compute()
        with self._streams.copying():
            for group, block_id, offset in batch:
                for tensor_idx, size in self._layout.groups[group]:
                    page = self._tensors[tensor_idx][block_id, :size]
                    host = self._host[offset : offset + size]
                    if into_staging:
                        host.copy_(page, non_blocking=True)
                    else:
                        page.copy_(host, non_blocking=True)
                    offset += size
        return self._streams.mark_copies()


def _cuda_device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """The one CUDA device of all tensors. Raises PageLayoutError."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        raise PageLayoutError(
            f"the KV tensors are on {', '.join(sorted(map(str, devices)))}",
            hint="all of them must be on one CUDA device",
        )
    return devices.pop()


class _Complete:
    """The handle of a copy that was complete when it was submitted."""


_COMPLETE = _Complete()


class _Layout:
    """Checked geometry, the same for both devices."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        group_refs: Sequence[Sequence[tuple[int, int]]],
        staging: memoryview | torch.Tensor,
    ) -> None:
        for index, tensor in enumerate(tensors):
            if tensor.element_size() != 1 or tensor.dim() < 2 or not tensor.shape[0]:
                raise PageLayoutError(
                    f"KV tensor {index} has shape {tuple(tensor.shape)} of {tensor.dtype}",
                    hint="allowed: one byte an element, [num_blocks >= 1, page bytes]",
                )
            if not tensor[0].is_contiguous():
                raise PageLayoutError(f"a page of KV tensor {index} is not contiguous")
        self.groups = [[PageRef(*ref) for ref in refs] for refs in group_refs]
        for group, refs in enumerate(self.groups):
            for ref in refs:
                row = tensors[ref.tensor_idx][0].numel()
                if not 0 < ref.page_size_bytes <= row:
                    raise PageLayoutError(
                        f"group {group} wants pages of {ref.page_size_bytes} bytes of tensor "
                        f"{ref.tensor_idx}, whose rows have {row}"
                    )
        self.block_bytes = [sum(ref.page_size_bytes for ref in refs) for refs in self.groups]
        self._rows = [
            min((tensors[ref.tensor_idx].shape[0] for ref in refs), default=0)
            for refs in self.groups
        ]
        self.tensors = list(tensors)
        if isinstance(staging, memoryview):
            staging = torch.frombuffer(staging, dtype=torch.uint8)
        if staging.dtype != torch.uint8 or staging.dim() != 1 or not staging.is_contiguous():
            raise PageLayoutError("staging is not one contiguous run of bytes")
        self.staging = staging
        self._staging_bytes = staging.numel()

    def rows(self, block_ids: Sequence[int]) -> Iterator[torch.Tensor]:
        """These rows of every tensor. Raises PageLayoutError for one that does not exist."""
        for tensor in self.tensors:
            for block_id in block_ids:
                if not 0 <= block_id < tensor.shape[0]:
                    raise PageLayoutError(f"block {block_id}; there are {tensor.shape[0]}")
                yield tensor[block_id]

    def check(self, group: int, block_id: int, offset: int) -> None:
        """Raises PageLayoutError for a copy outside the tensors or staging."""
        if not 0 <= group < len(self.groups):
            raise PageLayoutError(f"group {group}; there are {len(self.groups)}")
        if not 0 <= block_id < self._rows[group]:
            raise PageLayoutError(f"block {block_id} of group {group}, {self._rows[group]} rows")
        if not 0 <= offset <= self._staging_bytes - self.block_bytes[group]:
            raise PageLayoutError(
                f"offset {offset} for {self.block_bytes[group]} bytes, "
                f"staging has {self._staging_bytes}"
            )
