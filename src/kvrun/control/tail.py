"""The verified records of a log's open segment, kept by the collector until the segment closes."""

from __future__ import annotations

import os
from pathlib import Path

from kvrun.errors import KvrunError


class TailDamagedError(KvrunError):
    """The tail has fewer bytes than were verified."""

    exit_code = 3


class Tail:
    """The file at ``path``, of which the first ``size_bytes`` are verified."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Open or create it; what a crash left after the verified bytes is cut off."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self.size_bytes = path, size_bytes
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        there = os.fstat(self._descriptor).st_size
        if there < size_bytes:
            os.close(self._descriptor)
            raise TailDamagedError(
                f"{path} has {there} bytes; {size_bytes} were verified",
                hint="Put back a newer copy of the collector's folder.",
            )
        os.ftruncate(self._descriptor, size_bytes)

    def append(self, data: bytes) -> None:
        """Add verified lines; they count once ``sync`` has returned."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, self.size_bytes)
            self.size_bytes += written
            view = view[written:]

    def sync(self) -> None:
        """Make what was added durable."""
        os.fsync(self._descriptor)

    def clear(self) -> None:
        """Start over, for the next segment."""
        os.ftruncate(self._descriptor, 0)
        self.size_bytes = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
