"""A store over a folder that plays the bucket, on a clock that tests move."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cachebox import content, name

from kvrun.cache import CacheEvent, CacheSession, CacheStore, DiskTier, MemoryTier
from kvrun.cache.object_tier import ObjectSettings, ObjectTier
from kvrun.cache.placement import Basis
from kvrun.cache.served import ServedModels
from kvrun.storage import Storage, open_storage
from support.packkeys import Keys as Keys

CELL = 4096
PREFIX = "w-1/deployments/d-1"


@dataclass
class Gate:
    allowed: bool = True

    def allows(self, tenant_ref: str, session_ref: str, tier: object) -> bool:
        return self.allowed

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: object) -> float | None:
        return None

    def settled(self, tenant_ref: str, session_ref: str, tier: object) -> Basis | None:
        return Basis()

    def basis(self, tenant_ref: str, tier: object, why: str) -> Basis:
        return Basis()


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
    cap: int | None = None
    settings: ObjectSettings | None = None
    served: Path | None = None
    alone: bool = True
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
            cap_of=lambda _: self.cap,
            settings=self.settings or ObjectSettings(pack_bytes=self.pack_bytes, load_wait_s=20),
            now=lambda: self.time,
            sleep=self.advance,
            jitter=lambda: 0.5,
        )
        self.memory = MemoryTier(self.cells * CELL, lock=False)
        self.store = CacheStore(
            memory=self.memory,
            disk=DiskTier(self.disk, max_bytes=1 << 30, wall=lambda: self.time)
            if self.disk is not None
            else None,
            objects=self.objects,
            on_event=self.events.append,
            gate=self.gate,
            now=lambda: self.time,
            wall=lambda: self.time,
            served=ServedModels(self.served),
            alone=self.alone,
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
