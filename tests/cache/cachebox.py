"""A small store on a clock that the test moves, writing only when told to."""

from dataclasses import dataclass, field
from pathlib import Path

from kvrun.cache import CacheEvent, CacheSession, CacheStore, DiskTier, MemoryTier, Tier
from kvrun.cache.order import Sharing
from kvrun.cache.placement import Basis

CELL = 256


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def content(number: int, size: int = CELL) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


@dataclass
class TierGate:
    """A policy that may refuse one tier, with a rule for each."""

    revision: str = "r1"
    refused: Tier | None = None

    def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
        return tier is not self.refused

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
        return 0.0 if tier is self.refused else None

    def settled(self, tenant_ref: str, session_ref: str, tier: Tier) -> Basis | None:
        return None if tier is self.refused else self.basis(tenant_ref, tier, "allowed")

    def basis(self, tenant_ref: str, tier: Tier, why: str) -> Basis:
        return Basis(f"residency: {why} {tier.name.lower()}", self.revision)


@dataclass
class Box:
    """A store with everything a test wants to reach."""

    root: Path | None
    cells: int = 8
    max_bytes: int = 1 << 20
    allowed: bool = True
    queue_bytes: int = 1 << 30
    time: float = 1000.0
    sharing: Sharing | None = None
    ttl: float | None = None
    rule: str = ""
    events: list[CacheEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        slab_bytes = max(4096, self.cells * CELL)
        self.memory = MemoryTier(slab_bytes, lock=False, sharing=self.sharing)
        self.disk = (
            DiskTier(
                self.root,
                max_bytes=self.max_bytes,
                now=self.now,
                wall=self.now,
                sharing=self.sharing,
            )
            if self.root is not None
            else None
        )
        self.store = CacheStore(
            memory=self.memory,
            disk=self.disk,
            on_event=self.events.append,
            gate=self,
            now=self.now,
            wall=self.now,
            queue_bytes=self.queue_bytes,
            background=False,
        )
        # The smallest slab is one page, so the cell is made as long as leaves the wanted count.
        self.cell_bytes = self.memory.slab_bytes // self.cells
        assert self.store.carve(self.cell_bytes) is False
        assert self.memory.cells == self.cells

    def now(self) -> float:
        return self.time

    def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
        return self.allowed

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
        return self.ttl

    def settled(self, tenant_ref: str, session_ref: str, tier: Tier) -> Basis | None:
        return None if self.ttl == 0 else self.basis(tenant_ref, tier, "allowed")

    def basis(self, tenant_ref: str, tier: Tier, why: str) -> Basis:
        return Basis(f"residency: {why} {self.rule}", "r1") if self.rule else Basis()

    def restart(self, *, clean: bool = True) -> None:
        if clean:
            assert self.store.close()
        elif self.disk is not None:
            self.disk.close()
        self.start()

    def put(
        self,
        session: CacheSession,
        number: int,
        size: int = CELL,
        *,
        continues: int | None = None,
    ) -> bool:
        before = None if continues is None else name(continues)
        reservation = session.reserve(name(number), size, continues=before)
        if reservation is None:
            return False
        reservation.view[:] = content(number, size)
        return reservation.commit()

    def get(self, session: CacheSession, number: int) -> tuple[bytes, int] | None:
        with session.read(name(number)) as sealed:
            return None if sealed is None else (bytes(sealed.view), int(sealed.tier))

    def files(self, area: str = "kv") -> list[Path]:
        assert self.root is not None
        return sorted(p for p in (self.root / area).rglob("*") if p.is_file())

    def kinds(self) -> dict[str, int]:
        self.store.deliver_events()
        totals: dict[str, int] = {}
        for event in self.events:
            totals[event.kind] = totals.get(event.kind, 0) + event.blocks
        return totals
