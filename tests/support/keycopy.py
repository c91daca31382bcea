"""A session's keys as a search of memory needs them: from a copy of the key folder and its root."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from kvrun.keys import FileRoot, KeyLimits, KeyService
from support.sha512 import hmac_state


@dataclass(frozen=True, slots=True)
class KeyTraces:
    """``keys`` are a session's own, ``states`` what its sealing key leaves as a hash state."""

    keys: tuple[bytes, ...]
    states: tuple[bytes, ...]

    @property
    def needles(self) -> list[bytes]:
        """All of them."""
        return [*self.keys, *self.states]


def key_traces(data: Path, scratch: Path, tenant: str, session: str = "default") -> KeyTraces:
    """Those of a session of the deployment ``default`` whose data folder this is.

    The process that runs on the folder is not asked, and learns of nothing.
    """
    copy = scratch / f"keys-of-{tenant}-{session}"
    shutil.copytree(data / "keys", copy / "keys")
    shutil.copytree(data.with_name(f"{data.name}-root"), copy / "root")
    service = KeyService.open(
        copy / "keys",
        FileRoot(copy / "root", create=False),
        workspace="default",
        deployment="default",
        limits=KeyLimits(),
        now=time.time,
    )
    try:
        entry = service._ring.find(tenant, session)
        assert entry is not None
        with service._ring.opened(entry) as opened:
            keys = bytes(opened.dek), bytes(opened.name_key), bytes(opened.salt_seed)
    finally:
        service.close()
        shutil.rmtree(copy)
    return KeyTraces(keys, tuple(hmac_state(keys[0], pad) for pad in (0x36, 0x5C)))
