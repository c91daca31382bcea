"""How much memory the index takes, measured, for the bench table."""

import tempfile
import tracemalloc
from pathlib import Path

from kvrun.cache.disk import DiskTier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.session import NAME_BYTES
from kvrun.cache.state import BlockOwner
from kvrun.cache.store import CacheStore

_CELL_BYTES = 64
# The allocator hands out multiples of 16 bytes; a 16-byte name asks for 49 and gets 64.
_NAME_PADDING = 15


def measure_index_bytes(blocks: int) -> float:
    """Bytes of index a block when ``blocks`` blocks are both in memory and on disk.

    Counts names, the session's dictionary, cells and slots as Python allocates them; the slab
    and file contents are not part of it. Nothing of the blocks is written to disk.
    """
    if blocks <= 0:
        raise ValueError(f"blocks is {blocks}; it must be positive")
    with tempfile.TemporaryDirectory() as folder:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            memory = MemoryTier[BlockOwner](max(4096, blocks * _CELL_BYTES), lock=False)
            disk = DiskTier(Path(folder) / "cache", max_bytes=2**50)
            store = CacheStore(
                memory=memory, disk=disk, on_event=lambda event: None, background=False
            )
            store.carve(_CELL_BYTES)
            session = store.session("tenant", "session", epoch=1)
            for number in range(blocks):
                session.index_for_measuring(number.to_bytes(NAME_BYTES, "big"), _CELL_BYTES)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        store.close()
    return (after - before) / blocks + _NAME_PADDING
