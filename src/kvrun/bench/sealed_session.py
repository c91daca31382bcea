"""One session's sealed blocks for benchmarks of the tiers below memory, and keys that open them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kvrun.cache.memory import MemoryTier
from kvrun.cache.pack import index_context
from kvrun.cache.session import NAME_BYTES, CacheSession
from kvrun.cache.state import BlockOwner
from kvrun.directread import DIRECT_ALIGN
from kvrun.seal import (
    KEY_BYTES,
    SALT_BYTES,
    BlockIdentity,
    BlockSealer,
    ContextEncoder,
    SessionContext,
    plain_size,
    sealed_size,
)


class SealedSession:
    """``blocks`` blocks of ``block_bytes``, opened by ``threads`` threads into memory of theirs."""

    fingerprint = bytes(32)
    generation = 1

    def __init__(self, blocks: int, block_bytes: int, threads: int) -> None:
        self.blocks = blocks
        self.threads = threads
        self.sealed_bytes = sealed_size(block_bytes)
        self.names = [number.to_bytes(NAME_BYTES, "big") for number in range(blocks)]
        self._sealer = BlockSealer(bytearray(os.urandom(KEY_BYTES)), generation=self.generation)
        session = SessionContext("bench", "bench", "tenant", "session", self.fingerprint, 1)
        self._encoder = ContextEncoder(session)
        self._plain = os.urandom(block_bytes)
        self._out = [bytearray(block_bytes) for _ in range(threads)]

    @property
    def total_bytes(self) -> int:
        """The sealed bytes of all blocks."""
        return self.blocks * self.sealed_bytes

    def seal_into(self, number: int, out: memoryview) -> None:
        """Seals block ``number``."""
        salt = os.urandom(SALT_BYTES)
        self._sealer.seal_into(self._context(number), self._plain, out, salt=salt)

    def open_all(self, session: CacheSession) -> None:
        """Reads and opens every block of the session, shared out among the threads."""

        def open_share(thread: int) -> None:
            for number in range(thread, self.blocks, self.threads):
                with session.read(self.names[number]) as block:
                    assert block is not None, f"block {number} did not come"
                    self._sealer.open_into(self._context(number), block.view, self._out[thread])

        self._share_out(open_share)

    def read_all(self, session: CacheSession) -> None:
        """Reads every block into memory in the same way, and opens none."""

        def read_share(thread: int) -> None:
            for number in range(thread, self.blocks, self.threads):
                with session.read(self.names[number]) as block:
                    assert block is not None, f"block {number} did not come"

        self._share_out(read_share)

    def open_alone(self) -> float:
        """Bytes a second of opening alone, out of memory and with all threads."""
        sealed = bytearray(self.sealed_bytes)
        self.seal_into(0, memoryview(sealed))

        def open_share(thread: int) -> None:
            for _ in range(thread, self.blocks, self.threads):
                self._sealer.open_into(self._context(0), sealed, self._out[thread])

        began = time.perf_counter()
        self._share_out(open_share)
        return self.total_bytes / (time.perf_counter() - began)

    def seal_index(self, name: str, plain: bytes) -> bytes:
        """As a session's keys do for its packs."""
        sealed = bytearray(sealed_size(len(plain)))
        salt = os.urandom(SALT_BYTES)
        self._sealer.seal_into(_index_context(name), plain, sealed, salt=salt)
        return bytes(sealed)

    def open_index(self, name: str, sealed: memoryview) -> bytes:
        """As a session's keys do for its packs."""
        plain = bytearray(plain_size(len(sealed)))
        self._sealer.open_into(_index_context(name), sealed, plain)
        return bytes(plain)

    def _share_out(self, work: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(work, range(self.threads)))

    def _context(self, number: int) -> bytes:
        return self._encoder.encode(
            BlockIdentity(number.to_bytes(32, "big"), 0, 0, 1, "0-27", number * 256, 256)
        )


def memory_for(sealed: SealedSession, times: int = 1) -> MemoryTier[BlockOwner]:
    """A memory tier with room for all blocks so many times."""
    return MemoryTier[BlockOwner](
        (sealed.sealed_bytes + DIRECT_ALIGN) * sealed.blocks * times, lock=False
    )


def _index_context(name: str) -> bytes:
    return index_context("bench", "bench", "tenant", "session", 1, name)
