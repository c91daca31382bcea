"""Remembering that a deployment has served a named tenant.

From then on a request without a tenant is a mistake, not a single tenant. The memory outlives a
restart, or the first request after one would land in the shared default tenant.
"""

import os
from pathlib import Path
from typing import Protocol

from kvrun.gateway.errors import GatewayConfigError


class SeenTenant(Protocol):
    """Whether a tenant was ever named."""

    @property
    def seen(self) -> bool:
        """Whether one was named, now or before a restart."""

    def mark(self) -> None:
        """A tenant was named. Cheap after the first time."""


class MemorySeenTenant:
    """Remembers until the process ends."""

    def __init__(self) -> None:
        self.seen = False

    def mark(self) -> None:
        """A tenant was named."""
        self.seen = True


class FileSeenTenant:
    """Remembers by an empty file in ``folder`` (0700). Raises GatewayConfigError at start."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tenant-seen"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.seen = self._path.exists()
        except OSError as error:
            raise GatewayConfigError(f"cannot use state_dir {folder}: {error.strerror}") from None

    def mark(self) -> None:
        """A tenant was named; durable when this returns. Raises OSError where it cannot be."""
        if self.seen:
            return
        self.seen = True
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.fsync(descriptor)
        os.close(descriptor)
