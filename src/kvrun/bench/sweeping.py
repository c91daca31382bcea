"""How long a stricter policy takes to have misplaced blocks taken away: real files, small ones."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kvrun.cache.disk import DiskTier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.store import CacheStore
from kvrun.instance.residency import Residency
from kvrun.instance.sweeping import Sweep
from kvrun.policy.bundle import PolicyFolder
from kvrun.policy.matching import InstanceFacts

_CELL_BYTES = 64
_SESSIONS = 100


def seconds_to_sweep(blocks: int, pause_s: float) -> float:
    """Seconds in which one pass takes ``blocks`` blocks away, each in memory and on disk.

    Between two sessions it waits ``pause_s``, as the daemon does.
    """
    with tempfile.TemporaryDirectory() as folder:
        memory = MemoryTier[Any](max(4096, 2 * blocks * _CELL_BYTES), lock=False)
        disk = DiskTier(Path(folder) / "cache", max_bytes=2**50)
        store = CacheStore(memory=memory, disk=disk, on_event=lambda _: None, background=False)
        store.carve(_CELL_BYTES)
        for number in range(blocks):
            session = store.session(f"{number % _SESSIONS:032x}", "0" * 32, epoch=1)
            reservation = session.reserve(number.to_bytes(16, "big"), _CELL_BYTES)
            assert reservation is not None
            reservation.commit()
            if number % 1000 == 999:
                store.flush()
        store.flush()
        journal = SimpleNamespace(policy_revision="", policy_event=lambda *_: None)
        residency = Residency(
            PolicyFolder(Path(folder) / "none"),
            InstanceFacts(),
            cast(Any, journal),
            connected=True,  # without a policy nothing is allowed
        )
        instance = SimpleNamespace(cache=store, residency=residency, handles=())
        sweep = Sweep(cast(Any, instance), lambda: time.sleep(pause_s))
        began = time.perf_counter()
        taken = sweep.run()
        took = time.perf_counter() - began
        assert taken == 2 * blocks
        store.close()
    return took
