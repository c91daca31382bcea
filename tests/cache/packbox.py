"""Keys for packs, and a store over a folder that plays the bucket, on a clock that tests move."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cachebox import content, name

from kvrun.cache import CacheEvent, CacheSession, CacheStore, DiskTier, MemoryTier
from kvrun.cache.object_tier import ObjectSettings, ObjectTier
from kvrun.cache.pack import index_context
from kvrun.seal import BlockSealer, plain_size, sealed_size
from kvrun.storage import Storage, open_storage

CELL = 4096
PREFIX = "w-1/deployments/d-1"


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


@dataclass
class Gate:
    allowed: bool = True

    def allows(self, tenant_ref: str, session_ref: str, tier: object) -> bool:
        return self.allowed

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: object) -> float | None:
        return None


@dataclass
class PackBox:
    """One instance: memory, maybe a disk, and packs in ``bucket``, written when told to."""

    bucket: Path
    disk: Path | None = None
    cells: int = 256
    time: float = 1000.0
    pack_bytes: int = 16 * CELL
    storage: Storage | None = None
    undeleted: Path | None = None
    settings: ObjectSettings | None = None
    events: list[CacheEvent] = field(default_factory=list)
    gate: Gate = field(default_factory=Gate)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        storage = self.storage or open_storage(f"file://{self.bucket}")
        self.objects = ObjectTier(
            storage,
            storage,
            PREFIX,
            undeleted=self.undeleted,
            settings=self.settings or ObjectSettings(pack_bytes=self.pack_bytes, load_wait_s=20),
            now=lambda: self.time,
            sleep=self.advance,
            jitter=lambda: 0.5,
        )
        self.memory = MemoryTier(self.cells * CELL, lock=False)
        self.store = CacheStore(
            memory=self.memory,
            disk=DiskTier(self.disk, max_bytes=1 << 30) if self.disk is not None else None,
            objects=self.objects,
            on_event=self.events.append,
            gate=self.gate,
            now=lambda: self.time,
            wall=lambda: self.time,
            background=False,
        )
        self.store.carve(CELL)

    def advance(self, seconds: float) -> None:
        self.time += seconds

    def restart(self) -> None:
        self.store.close()
        self.start()

    def session(self, keys: Keys | None = None, session_ref: str = "s1") -> CacheSession:
        """Opened, with its packs looked for."""
        return self.store.session("t1", session_ref, epoch=1, packs=keys or KEYS)

    def put(self, session: CacheSession, *numbers: int, size: int = CELL) -> int:
        stored = 0
        for number in numbers:
            reservation = session.reserve(name(number), size)
            if reservation is not None:
                reservation.view[:] = content(number, size)
                stored += reservation.commit()
        return stored

    def get(self, session: CacheSession, number: int) -> tuple[bytes, int] | None:
        with session.read(name(number)) as sealed:
            return None if sealed is None else (bytes(sealed.view), int(sealed.tier))

    def tiers(self, session: CacheSession, *numbers: int) -> list[int]:
        return list(session.match([name(number) for number in numbers]))

    def packs(self) -> list[Path]:
        return sorted(p for p in self.bucket.rglob("*") if p.is_file())

    def kinds(self) -> dict[tuple[str, int], int]:
        self.store.deliver_events()
        totals: dict[tuple[str, int], int] = {}
        for event in self.events:
            key = (str(event.kind), int(event.tier))
            totals[key] = totals.get(key, 0) + event.blocks
        return totals


KEYS = Keys()
