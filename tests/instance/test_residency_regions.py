"""Two regions: an EU user's blocks are never in the American one, whatever happens in whichever
order: stores, evictions, restores, restarts, crashes, new, damaged, vanished and old policies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvrun.cache import CacheStore, DiskTier, MemoryTier, Tier
from kvrun.instance.residency import Residency
from kvrun.instance.sweeping import Sweep
from kvrun.policy.bundle import ActivePolicy, Origin, PolicyFolder, SyncOutcome, TenantEntry
from kvrun.policy.matching import InstanceFacts

CELL, CELLS = 256, 16
REGIONS = {"eu": "eu-west-1", "us": "us-east-1"}
TENANTS = {"eu": "e" * 32, "us": "a" * 32, "new": "f" * 32}
SESSION = "5" * 32
DOCUMENT = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {{name: {name}}}
match:
  classes: [{name}]
allow:
  tiers: [{tiers}]
  regions: ["{name}-*"]
"""
TIERS = ("gpu, memory, disk, object", "gpu, memory", "gpu", "memory, disk")
MAX_AGE_S = 1000.0
BOTH = {"eu", "us"}


class Site:
    """One region: a cache in a folder of its own, and the policy that decides about it."""

    def __init__(self, folder: Path, name: str, now: list[float]) -> None:
        self.folder = folder / name
        self.name = name
        self.now = now
        self.files = PolicyFolder(self.folder / "residency")
        self.open()

    def open(self) -> None:
        journal = SimpleNamespace(policy_revision="", policy_event=lambda *_: None)
        self.residency = Residency(
            self.files,
            InstanceFacts(region=REGIONS[self.name]),
            cast(Any, journal),
            connected=True,
            max_age_s=MAX_AGE_S,
            now=lambda: self.now[0],
            clock=lambda: 0.0,
        )
        memory = MemoryTier[Any](CELL * CELLS, lock=False)
        self.disk = DiskTier(self.folder / "bucket", max_bytes=1 << 20)
        self.store = CacheStore(
            memory=memory,
            disk=self.disk,
            on_event=lambda _: None,
            gate=self.residency,
            now=lambda: self.now[0],
            background=False,
        )
        self.store.carve(memory.slab_bytes // CELLS)
        instance = SimpleNamespace(cache=self.store, residency=self.residency, handles=[])
        self.sweep = Sweep(cast(Any, instance))
        self.residency.on_new_table = self.sweep.begin

    def settle(self) -> None:
        """What the daemon does every second."""
        self.residency.refresh()
        while not self.sweep.report().done:
            self.sweep.run()

    def put(self, tenant_ref: str, number: int) -> bool:
        """What a request of the tenant does, as the daemon lets it."""
        placement = self.residency.placement(tenant_ref)
        if not placement.allows(0) or not placement.allows(Tier.MEMORY):
            return False
        session = self.store.session(tenant_ref, SESSION, epoch=1)
        reservation = session.reserve(number.to_bytes(16, "big"), CELL)
        if reservation is None:
            return False
        reservation.view[:] = bytes([number]) * CELL
        return reservation.commit()

    def get(self, tenant_ref: str, number: int) -> None:
        placement = self.residency.placement(tenant_ref)
        session = self.store.session(tenant_ref, SESSION, epoch=1)
        code = session.match([number.to_bytes(16, "big")])[0]
        if code and placement.allows(code):
            with session.read(number.to_bytes(16, "big")) as sealed:
                assert sealed is None or bytes(sealed.view) == bytes([number]) * CELL

    def holds(self, tenant_ref: str) -> int:
        """Blocks of a tenant here."""
        return sum(self.by_tier(tenant_ref))

    def by_tier(self, tenant_ref: str) -> tuple[int, int]:
        """Blocks of a tenant here: in memory, and as files."""
        files = [p for p in (self.folder / "bucket").rglob("*") if p.is_file()]
        on_disk = sum(tenant_ref in str(path) for path in files)
        return self.store.measure(tenant_ref, SESSION).memory_blocks, on_disk


class Regions(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvr-"))
        self.now = [1_000_000.0]
        self.revision = 0
        self.sites = {name: Site(self.folder, name, self.now) for name in REGIONS}
        self.labels({"eu", "us"})
        self.new_policy({"eu", "us"}, TIERS[0])

    @rule(
        site=st.sampled_from(sorted(REGIONS)),
        tenant=st.sampled_from(sorted(TENANTS)),
        numbers=st.lists(st.integers(0, 40), max_size=12),
    )
    def request(self, site: str, tenant: str, numbers: list[int]) -> None:
        for number in numbers:
            self.sites[site].put(TENANTS[tenant], number)
        if len(numbers) % 2:
            self.sites[site].store.flush()

    @rule(
        site=st.sampled_from(sorted(REGIONS)),
        tenant=st.sampled_from(sorted(TENANTS)),
        number=st.integers(0, 40),
    )
    def restore(self, site: str, tenant: str, number: int) -> None:
        self.sites[site].get(TENANTS[tenant], number)

    @rule(site=st.sampled_from(sorted(REGIONS)))
    def persist(self, site: str) -> None:
        self.sites[site].store.flush()

    @rule(site=st.sampled_from(sorted(REGIONS)), clean=st.booleans())
    def restart(self, site: str, clean: bool) -> None:
        here = self.sites[site]
        if clean:
            here.store.close()
        else:
            here.disk.close()
        here.open()
        here.settle()

    @rule(names=st.sampled_from([BOTH, BOTH, {"eu"}, {"us"}, set()]), tiers=st.sampled_from(TIERS))
    def new_policy(self, names: set[str], tiers: str) -> None:
        self.revision += 1
        texts = {f"p/{n}.yaml": DOCUMENT.format(name=n, tiers=tiers) for n in sorted(names)}
        texts = texts or {"p/x.yaml": DOCUMENT.format(name="nobody", tiers=tiers)}
        for site in self.sites.values():
            site.files.activate(
                ActivePolicy(
                    origin=Origin(revision=f"{self.revision:040x}"),
                    activated_at=self.now[0],
                    files=texts,
                )
            )
            outcome = SyncOutcome(at=self.now[0], outcome="activated")
            site.files.note(outcome, confirmed=True)
            site.settle()

    @rule(known=st.sets(st.sampled_from(["eu", "us"])))
    def labels(self, known: set[str]) -> None:
        for site in self.sites.values():
            site.files.put_tenants(
                [TenantEntry(tenant_ref=TENANTS[name], tenant_class=name) for name in known]
            )
            site.settle()

    @rule(damage=st.booleans(), site=st.sampled_from(sorted(REGIONS)))
    def lose_the_policy(self, damage: bool, site: str) -> None:
        here = self.sites[site]
        if here.files.active_file.exists():
            if damage:
                here.files.active_file.write_bytes(b"[]")
            else:
                here.files.active_file.unlink()
        here.settle()

    @rule()
    def time_passes(self) -> None:
        self.now[0] += MAX_AGE_S + 1
        for site in self.sites.values():
            site.settle()

    @invariant()
    def nobody_is_where_nobody_may_be(self) -> None:
        if hasattr(self, "sites"):
            assert self.sites["us"].holds(TENANTS["eu"]) == 0
            assert self.sites["eu"].holds(TENANTS["us"]) == 0
            assert not any(site.holds(TENANTS["new"]) for site in self.sites.values())
            for site in self.sites.values():
                for tenant_ref in TENANTS.values():
                    allowed = site.residency.placement(tenant_ref)
                    in_memory, on_disk = site.by_tier(tenant_ref)
                    assert not in_memory or allowed.allows(Tier.MEMORY)
                    assert not on_disk or allowed.allows(Tier.DISK)

    def teardown(self) -> None:
        if hasattr(self, "sites"):
            for site in self.sites.values():
                site.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TestRegions = Regions.TestCase
TestRegions.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)


def test_the_same_user_has_blocks_in_the_own_region() -> None:
    machine = Regions()
    machine.begin()
    machine.labels({"eu", "us"})
    machine.new_policy({"eu", "us"}, TIERS[0])
    for site in REGIONS:
        for tenant in TENANTS:
            machine.request(site, tenant, list(range(3)))
        machine.persist(site)
    held = {(s, t): machine.sites[s].holds(TENANTS[t]) for s in REGIONS for t in TENANTS}
    assert {pair for pair, blocks in held.items() if blocks} == {("eu", "eu"), ("us", "us")}
    machine.new_policy({"us"}, TIERS[0])
    assert machine.sites["eu"].holds(TENANTS["eu"]) == 0
    assert machine.sites["us"].holds(TENANTS["us"]) == 6
    machine.teardown()
