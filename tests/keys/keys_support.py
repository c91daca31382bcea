"""Shared by the key tests: a clock to turn, a disk that loses what was not synced, a service."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kvrun.keys import FileRoot, KeyLimits, KeyService, Root, SessionInfo
from kvrun.keys.listing import SessionsAsked, TenantsAsked
from kvrun.keys.slots import OS_IO, OsSlotIO, SlotIO
from kvrun.keys.source import SessionKeySource

WORKSPACE = "acme"
DEPLOYMENT = "chat"


class PowerCutError(OSError):
    """The simulated machine stopped."""


@dataclass
class Clock:
    time: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time


@dataclass
class LossyDisk(OsSlotIO):
    """Writes reach the file at once, but until they are synced ``crash`` may lose or tear them."""

    fail_at_sync: int | None = None
    syncs: int = 0
    off: bool = False
    _pending: list[tuple[str, int, bytes, int]] = field(default_factory=list)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        if self.off:
            raise PowerCutError("no power")
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        before = os.pread(descriptor, len(data), offset).ljust(len(data), b"\0")
        self._pending.append((path, offset, before, len(data)))
        super().pwrite(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        if self.off or self.syncs == self.fail_at_sync:
            self.off = True
            raise PowerCutError("no power")
        self.syncs += 1
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        self._pending = [item for item in self._pending if item[0] != path]

    def crash(self, random: Random) -> None:
        """Keep, lose or tear each write that was not synced; the last write first."""
        for path, offset, before, length in reversed(self._pending):
            fate = random.choice(("kept", "lost", "torn"))
            start = {"kept": length, "lost": 0, "torn": random.randrange(length + 1)}[fate]
            with Path(path).open("r+b") as file:
                file.seek(offset + start)
                file.write(before[start:])
        self._pending = []


def open_service(
    base: Path,
    clock: Clock | None = None,
    *,
    limits: KeyLimits | None = None,
    io: SlotIO = OS_IO,
    root: Root | None = None,
) -> KeyService:
    """A service with folders ``keys`` and ``root`` below ``base``."""
    own_root = root is None
    root = root or FileRoot(base / "root", io=io)
    try:
        return KeyService.open(
            base / "keys",
            root,
            workspace=WORKSPACE,
            deployment=DEPLOYMENT,
            limits=limits or KeyLimits(),
            now=clock or Clock(),
            io=io,
        )
    except BaseException:
        if own_root:
            root.close()
        raise


def abandon(service: KeyService) -> None:
    """What kill -9 leaves: nothing is written any more, locks and files are let go."""
    service._ring.close()
    service._root.close()


def listed(keys: SessionKeySource) -> list[SessionInfo]:
    """Every session with its ids, each as its slot says it."""
    found = []
    for row in keys.listing.tenants(TenantsAsked(begins="")).rows:
        page = keys.listing.sessions(SessionsAsked(ref=row.tenant_ref, named=True))
        assert page.total == len(page.rows) == len(row.session_refs)
        found += page.rows
    return found
