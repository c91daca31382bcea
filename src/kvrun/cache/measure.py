"""An index filled without content, for benchmarks of what it takes in memory and time."""

import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvrun.cache.disk import DiskTier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.object_tier import ObjectTier
from kvrun.cache.pack import PackEntry, PackIndex
from kvrun.cache.packtable import packed_at
from kvrun.cache.session import NAME_BYTES, CacheSession
from kvrun.cache.state import BlockOwner
from kvrun.cache.store import CacheStore
from kvrun.storage import open_storage

_CELL_BYTES = 64
_PACK_BLOCKS = 1024
# The allocator hands out multiples of 16 bytes; a 16-byte name asks for 49 and gets 64.
_NAME_PADDING = 15


@contextmanager
def filled_store(sessions: int, blocks: int) -> Iterator[CacheStore]:
    """A store in which each of ``sessions`` sessions lists ``blocks`` blocks in every tier.

    The sessions are those of the tenant ``tenant`` named ``s0``, ``s1`` and so on, of epoch 1; the
    blocks have the names 0, 1 and so on. Nothing of the blocks is written.
    """
    count = sessions * blocks
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(f"file://{folder}/storage")
        store = CacheStore(
            memory=MemoryTier[BlockOwner](max(4096, count * _CELL_BYTES), lock=False),
            disk=DiskTier(Path(folder) / "cache", max_bytes=2**50),
            objects=ObjectTier(storage, storage, "measured"),
            on_event=lambda event: None,
            background=False,
        )
        store.carve(_CELL_BYTES)
        for number in range(sessions):
            session = store.session("tenant", f"s{number}", epoch=1)
            for first in range(0, blocks, _PACK_BLOCKS):
                _index_pack(session, range(first, min(blocks, first + _PACK_BLOCKS)))
        yield store
        store.close()


def measure_index_bytes(blocks: int) -> float:
    """Bytes of index a block when ``blocks`` blocks are in memory, on disk and in packs.

    Counts names, the session's dictionary, cells, slots and places in packs as Python allocates
    them; the slab and file contents are not part of it. Nothing of the blocks is written anywhere.
    """
    if blocks <= 0:
        raise ValueError(f"blocks is {blocks}; it must be positive")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with filled_store(1, blocks):
            after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / blocks + _NAME_PADDING


def _index_pack(session: CacheSession, numbers: range) -> None:
    entries = tuple(PackEntry(n.to_bytes(NAME_BYTES, "big"), _CELL_BYTES) for n in numbers)
    assert session.packs is not None
    index = PackIndex(bytes(32), numbers.start, entries)
    number = session.packs.table.add(str(numbers.start), index)
    assert number is not None
    for position, entry in enumerate(entries):
        session.index_for_measuring(entry.name, entry.size, packed_at(number, position))
