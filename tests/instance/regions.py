"""Instances in two regions over two buckets, all of whose changes a test can cut short."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kvrun.cache import CacheEvent, CacheEventKind, CacheStore, DiskTier, MemoryTier, Tier
from kvrun.cache.object_tier import ObjectSettings, ObjectTier
from kvrun.cache.order import Sharing
from kvrun.cache.session import CacheSession
from kvrun.instance.residency import Residency, allowed_tiers
from kvrun.instance.sweeping import Sweep
from kvrun.policy.bundle import PolicyFolder
from kvrun.policy.document import Tier as PolicyTier
from kvrun.policy.matching import InstanceFacts, Place
from kvrun.storage import StorageError, StoredObject, open_storage
from support.packkeys import Keys

CELL, CELLS, ON_DISK = 256, 16, 24
"""Bytes of a block, and how many blocks have room in memory and on disk."""
MAX_AGE_S = 1000.0
SESSION = "5" * 32
REGIONS = {"eu": "eu-west-1", "us": "us-east-1"}
SITES = {"eu": ("eu", "eu"), "us": ("us", "us"), "away": ("eu", "us")}
"""Where an instance is and where its bucket: ``away`` computes in Europe and stores in America."""


class Crash(BaseException):
    """The instance ends here, as at a power cut."""


@dataclass
class Interruptions:
    """What happens at the next changes to disk or bucket of one instance."""

    crash_in: int | None = None
    crash_after: bool = False
    meanwhile: Callable[[], None] | None = None
    dead: bool = False

    def change(self, make: Callable[[], None]) -> None:
        """Make a change, unless the instance ends before it."""
        if self.dead:
            raise Crash
        crash = self.crash_in == 0
        if self.crash_in is not None:
            self.crash_in -= 1
        if crash and not self.crash_after:
            self.dead = True
            raise Crash
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if self.dead:
            raise Crash
        make()
        if crash:
            self.dead = True
            raise Crash


class Bucket:
    """A bucket as one instance reaches it; it can be away."""

    def __init__(self, folder: Path, cut: Interruptions) -> None:
        self._storage = open_storage(f"file://{folder}")
        self._cut = cut
        self.away = False

    def create(self, name: str, data: memoryview) -> None:
        self._cut.change(lambda: self._reached().create(name, data))

    def delete(self, name: str) -> None:
        self._cut.change(lambda: self._reached().delete(name))

    def get_part(self, name: str, offset: int, size_bytes: int) -> memoryview:
        return self._reached().get_part(name, offset, size_bytes)

    def find(self, name: str) -> StoredObject | None:
        return self._reached().find(name)

    def list(self, folder: str) -> Iterator[StoredObject]:
        return self._reached().list(folder)

    def entries(self, folder: str) -> tuple[tuple[str, ...], tuple[StoredObject, ...]]:
        return self._reached().entries(folder)

    def _reached(self):
        if self.away:
            raise StorageError("the bucket is away")
        return self._storage


@dataclass
class Clock:
    """The time of day, which tests move."""

    wall: float = 1_000_000.0


@dataclass
class Site:
    """One instance: a cache over a disk and a bucket, and the policy that decides about it."""

    root: Path
    name: str
    clock: Clock
    keys: dict[str, Keys] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.region, self.bucket_name = SITES[self.name]
        self.folder = self.root / self.name
        self.files = PolicyFolder(self.folder / "residency")
        self.is_away = False
        self.uptime_s = 0.0
        self.happened: Counter[tuple[CacheEventKind, Tier]] = Counter()
        self._writing = False
        self.open()

    def open(self) -> None:
        """Start, from what is on disk and in the bucket."""
        clock = self.clock
        self.cut = Interruptions()
        journal = SimpleNamespace(policy_revision="", policy_event=lambda *_: None)
        place = Place(REGIONS[self.bucket_name])
        self.residency = Residency(
            self.files,
            InstanceFacts(region=REGIONS[self.region], places={PolicyTier.OBJECT: place}),
            cast(Any, journal),
            connected=True,
            max_age_s=MAX_AGE_S,
            now=lambda: clock.wall,
            clock=lambda: 0.0,
        )
        self.bucket = Bucket(self.root / f"bucket-{self.bucket_name}", self.cut)
        self.objects = ObjectTier(
            cast(Any, self.bucket),
            cast(Any, self.bucket),
            self.name,
            undeleted=self.folder / "undeleted.json",
            cap_of=self.residency.cap_of(Tier.OBJECT),
            settings=ObjectSettings(pack_bytes=8 * CELL, load_wait_s=1.0, relist_s=1e12),
            now=lambda: self.uptime_s,
            sleep=lambda _: None,
            jitter=lambda: 0.5,
        )
        on_disk = Sharing(cap_of=self.residency.cap_of(Tier.DISK))
        self.disk = DiskTier(self.folder / "disk", max_bytes=ON_DISK * CELL, sharing=on_disk)
        write = self.disk.folder.write
        cast(Any, self.disk.folder).write = lambda *a: self.cut.change(lambda: write(*a))
        for name in ("set_aside", "empty_outgoing"):
            setattr(self.disk.folder, name, self._cut_short(getattr(self.disk.folder, name)))
        in_memory = Sharing(cap_of=self.residency.cap_of(Tier.MEMORY))
        self.store = CacheStore(
            memory=MemoryTier[Any](CELL * CELLS, lock=False, sharing=in_memory),
            disk=self.disk,
            objects=self.objects,
            on_event=self._count,
            gate=self.residency,
            now=lambda: self.uptime_s,
            wall=lambda: clock.wall,
            background=False,
        )
        self.store.carve(CELL)
        instance = SimpleNamespace(cache=self.store, residency=self.residency, handles=[])
        self.sweep = Sweep(cast(Any, instance))
        self.residency.on_new_table = self.sweep.begin
        self.go(away=self.is_away)

    def go(self, *, away: bool) -> None:
        """The bucket cannot be reached any more, or again."""
        self.is_away = self.bucket.away = away
        if away:
            self.objects.turn_off("the bucket is away")
        else:
            self.uptime_s += 120.0
            self.objects.probe()

    def surviving(self, step: Callable[[], object]) -> None:
        """Do something; where the instance ends in the middle of it, it starts anew."""
        cut = self.cut
        try:
            step()
        except Crash:
            if self.cut is cut:
                self.crash()

    def crash(self) -> None:
        """End without a word, and start again."""
        self._writing = False
        self.cut.dead = True
        self.disk.close()
        self.objects.close()
        self.open()
        self.settle()

    def rebuild(self, *, with_policy: bool) -> None:
        """Another box takes over: nothing but the bucket is left, and the policy maybe."""
        self.cut.dead = True
        self.disk.close()
        self.objects.close()
        for path in self.folder.iterdir():
            if path.name == "residency" and with_policy:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.open()
        self.settle()

    def settle(self) -> None:
        """What the daemon does every second."""
        self.surviving(self._settle)

    def _settle(self) -> None:
        self.residency.refresh()
        while not self.sweep.report().done:
            before = self.sweep.report().passes
            self.sweep.run()
            if self.is_away and before > 2:
                break  # goes on when the bucket is back
        if not self._writing:  # one thread writes packs, and deletes what is left when it is idle
            self.objects.probe()
            self.objects.retry_deletions()

    def flush(self) -> None:
        """Everything that waits goes to the disk and into the bucket."""
        self._writing = True
        self.surviving(self.store.flush)
        self._writing = False
        self.settle()

    def session(self, tenant_ref: str) -> CacheSession:
        keys = self.keys.setdefault(tenant_ref, Keys())
        return self.store.session(tenant_ref, SESSION, epoch=1, packs=keys)

    def put(self, tenant_ref: str, number: int) -> bool:
        """What a request of the tenant does, as the daemon lets it."""
        placement = self.residency.placement(tenant_ref)
        if not placement.allows(0) or not placement.allows(Tier.MEMORY):
            return False
        reservation = self.session(tenant_ref).reserve(number.to_bytes(16, "big"), CELL)
        if reservation is None:
            return False
        reservation.view[:] = bytes([number]) * CELL
        return reservation.commit()

    def get(self, tenant_ref: str, number: int) -> bool:
        """Whether a request finds a block; what it finds is right."""
        placement = self.residency.placement(tenant_ref)
        if not placement.allows(0):
            return False
        name, session = number.to_bytes(16, "big"), self.session(tenant_ref)
        if not allowed_tiers(placement, session.match([name]))[0]:
            return False
        with session.read(name) as sealed:
            assert sealed is None or bytes(sealed.view) == bytes([number]) * CELL
            return sealed is not None

    def by_tier(self, tenant_ref: str) -> dict[Tier, int]:
        """What of a tenant is in this instance's tiers: blocks in memory, files, packs."""
        return {
            Tier.MEMORY: self.store.measure(tenant_ref, SESSION).memory_blocks,
            Tier.DISK: len(_files(self.folder / "disk", tenant_ref)),
            Tier.OBJECT: len(self._packs(tenant_ref)),
        }

    def bytes_by_tier(self, tenant_ref: str) -> dict[Tier, int]:
        """The same in bytes."""
        return {
            Tier.MEMORY: self.store.measure(tenant_ref, SESSION).memory_bytes,
            Tier.DISK: _size(_files(self.folder / "disk", tenant_ref)),
            Tier.OBJECT: _size(self._packs(tenant_ref)),
        }

    def found_in(self, tenant_ref: str, number: int) -> Tier:
        """Where a request would find a block."""
        return Tier(self.session(tenant_ref).match([number.to_bytes(16, "big")])[0])

    def _count(self, event: CacheEvent) -> None:
        self.happened[event.kind, event.tier] += event.blocks

    def _cut_short(self, change: Callable[[str, str], int]) -> Callable[[str, str], int]:
        def make(tenant_ref: str, session_ref: str) -> int:
            answers: list[int] = []
            self.cut.change(lambda: answers.append(change(tenant_ref, session_ref)))
            return answers[0]

        return make

    def _packs(self, tenant_ref: str) -> list[Path]:
        packs = in_bucket(self.root, self.bucket_name, tenant_ref)
        return [path for path in packs if f"/{self.name}/kv/" in str(path)]


def in_bucket(root: Path, name: str, tenant_ref: str) -> list[Path]:
    """Every object of a tenant in a bucket, whichever instance wrote it."""
    return _files(root / f"bucket-{name}", tenant_ref)


def _files(folder: Path, tenant_ref: str) -> list[Path]:
    found = folder.rglob("*") if folder.exists() else ()
    return [path for path in found if path.is_file() and tenant_ref in str(path)]


def _size(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)
