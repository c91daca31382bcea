"""Keys that seal and open the indexes of packs, for tests without a key hierarchy."""

from __future__ import annotations

from kvrun.cache.pack import index_context
from kvrun.seal import BlockSealer, plain_size, sealed_size


class Keys:
    """One session's pack keys; another ``seed`` is another session's or deployment's."""

    def __init__(self, seed: int = 1, fingerprint: bytes = b"f" * 32) -> None:
        self.fingerprint = fingerprint
        self.generation = 1
        self._sealer = BlockSealer(bytearray(seed.to_bytes(32, "big")), generation=1)
        self._salts = 0

    def seal_index(self, name: str, plain: bytes) -> bytes:
        self._salts += 1
        sealed = bytearray(sealed_size(len(plain)))
        salt = self._salts.to_bytes(24, "big")
        self._sealer.seal_into(_context(name), plain, sealed, salt=salt)
        return bytes(sealed)

    def open_index(self, name: str, sealed: memoryview) -> bytes:
        plain = bytearray(plain_size(len(sealed)))
        self._sealer.open_into(_context(name), sealed, plain)
        return bytes(plain)


def _context(name: str) -> bytes:
    return index_context("w-1", "d-1", "alice", "chat", 1, name)
