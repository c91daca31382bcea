"""The streams of a CUDA device: the engine's own, on which it computes, and one for copies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from kvrun.engines.copying import CopyHandle


class Streams(Protocol):
    """Says what runs after what on a device."""

    def copy_after_compute(self) -> None:
        """What is copied from now on waits for what is computed up to now."""

    def copying(self) -> AbstractContextManager[object]:
        """What is submitted within it goes to the stream for copies."""

    def mark_copies(self) -> CopyHandle:
        """A handle of all copies up to now."""

    def mark_compute(self) -> CopyHandle:
        """A handle of all that is computed up to now."""

    def done(self, handle: CopyHandle) -> bool:
        """Whether all of a handle is complete; never waits."""

    def wait(self, handle: CopyHandle) -> None:
        """Blocks this thread, not the device, until all of a handle is complete."""

    def pin(self, staging: torch.Tensor) -> int:
        """Has the device reach this memory without a copy in between; 0, or a cudaError."""

    def unpin(self, staging: torch.Tensor) -> None:
        """Ends that, after the copies under way."""


class CudaStreams:
    """Those of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device=device)

    def copy_after_compute(self) -> None:
        """See Streams."""
        self._copies.wait_stream(torch.cuda.current_stream(self._device))

    def copying(self) -> AbstractContextManager[object]:
        """See Streams."""
        on: AbstractContextManager[object] = torch.cuda.stream(self._copies)
        return on

    def mark_copies(self) -> CopyHandle:
        """See Streams."""
        return _event(self._copies)

    def mark_compute(self) -> CopyHandle:
        """See Streams."""
        return _event(torch.cuda.current_stream(self._device))

    def done(self, handle: CopyHandle) -> bool:
        """See Streams."""
        assert isinstance(handle, torch.cuda.Event)
        return bool(handle.query())

    def wait(self, handle: CopyHandle) -> None:
        """See Streams."""
        assert isinstance(handle, torch.cuda.Event)
        handle.synchronize()

    def pin(self, staging: torch.Tensor) -> int:
        """See Streams."""
        with torch.cuda.device(self._device):
            status = torch.cuda.cudart().cudaHostRegister(staging.data_ptr(), staging.numel(), 0)
        return int(status)

    def unpin(self, staging: torch.Tensor) -> None:
        """See Streams."""
        self._copies.synchronize()
        with torch.cuda.device(self._device):
            torch.cuda.cudart().cudaHostUnregister(staging.data_ptr())


def _event(stream: torch.cuda.Stream) -> CopyHandle:
    event = torch.cuda.Event()
    event.record(stream)
    handle: CopyHandle = event
    return handle
