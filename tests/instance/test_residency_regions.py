"""Two regions as two buckets: an EU user's blocks are never in the American one, nor on a machine
there, whatever happens in whichever order: stores, evictions, restores, packs, restarts, crashes in
the middle of a write, rebuilt boxes, buckets that are away, new, damaged, vanished and old
policies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from regions import CELL, CELLS, MAX_AGE_S, ON_DISK, SITES, Clock, Site, in_bucket

from kvrun.cache import CacheEventKind, Tier
from kvrun.policy.bundle import ActivePolicy, Origin, SyncOutcome, TenantEntry

TENANTS = {"eu": "e" * 32, "us": "a" * 32, "new": "f" * 32}
DOCUMENT = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {{name: {name}}}
match:
  classes: [{name}]
allow:
  tiers: [{tiers}]
  regions: ["{name}-*"]
{cap}"""
ALL = "gpu, memory, disk, object"
TIERS = (ALL, ALL, "gpu, memory, object", "gpu, memory", "gpu", "gpu, disk", "memory, disk")
BOTH = {"eu", "us"}
NAMES = st.sampled_from(sorted(SITES))
WHO = st.sampled_from(sorted(TENANTS))


class Regions(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="kvr-", dir=memory if memory.is_dir() else None))
        self.clock = Clock()
        self.revision = 0
        self.cap: int | None = None
        self.sites = {name: Site(self.folder, name, self.clock) for name in SITES}
        self.label({"eu", "us"}, "")
        self.new_policy(BOTH, ALL)

    @rule(site=NAMES, tenant=WHO, numbers=st.lists(st.integers(0, 40), max_size=12))
    def request(self, site: str, tenant: str, numbers: list[int]) -> None:
        here = self.sites[site]
        for number in numbers:
            here.put(TENANTS[tenant], number)
        if len(numbers) % 2:
            here.flush()

    @rule(site=NAMES, tenant=WHO, numbers=st.lists(st.integers(0, 40), max_size=6))
    def restore(self, site: str, tenant: str, numbers: list[int]) -> None:
        for number in numbers:
            self.sites[site].get(TENANTS[tenant], number)

    @rule(site=NAMES, tenant=WHO)
    def evict(self, site: str, tenant: str) -> None:
        """More comes than memory and disk have room for: what is oldest is in Storage alone."""
        for number in range(100, 104 + ON_DISK):
            self.sites[site].put(TENANTS[tenant], number)
            if number % 4 == 3:
                self.sites[site].flush()

    @rule(site=NAMES)
    def persist(self, site: str) -> None:
        self.sites[site].flush()

    @rule(site=NAMES, tenant=WHO, tiers=st.sampled_from(TIERS), relabel=st.booleans())
    def another_policy_while_it_is_persisted(
        self, site: str, tenant: str, tiers: str, relabel: bool
    ) -> None:
        here = self.sites[site]
        for number in range(4):
            here.put(TENANTS[tenant], number)
        here.cut.meanwhile = (
            (lambda: self.label(set(), "")) if relabel else lambda: self.new_policy(BOTH, tiers)
        )
        here.flush()
        here.cut.meanwhile = None

    @rule(site=NAMES, changes=st.integers(0, 6), after=st.booleans())
    def end_soon(self, site: str, changes: int, after: bool) -> None:
        cut = self.sites[site].cut
        cut.crash_in, cut.crash_after = changes, after

    @rule(site=NAMES, clean=st.booleans())
    def restart(self, site: str, clean: bool) -> None:
        here = self.sites[site]
        cut = here.cut
        if not clean:
            here.crash()
            return
        here.surviving(here.store.close)
        if here.cut is cut:
            here.open()
            here.settle()

    @rule(site=NAMES, with_policy=st.booleans())
    def rebuild(self, site: str, with_policy: bool) -> None:
        self.sites[site].rebuild(with_policy=with_policy)

    @rule(site=NAMES, away=st.booleans())
    def reach_the_bucket(self, site: str, away: bool) -> None:
        self.sites[site].go(away=away)
        self.sites[site].settle()

    @rule(names=st.sampled_from([BOTH, BOTH, {"eu"}, {"us"}, set()]), tiers=st.sampled_from(TIERS))
    def new_policy(self, names: set[str], tiers: str) -> None:
        self.revision += 1
        cap = "" if self.cap is None else f"  max_bytes: {self.cap}\n"
        texts = {
            f"p/{name}.yaml": DOCUMENT.format(name=name, tiers=tiers, cap=cap)
            for name in sorted(names) or ["nobody"]
        }
        for site in self.sites.values():
            site.files.activate(
                ActivePolicy(
                    origin=Origin(revision=f"{self.revision:040x}"),
                    activated_at=self.clock.wall,
                    files=texts,
                )
            )
            outcome = SyncOutcome(at=self.clock.wall, outcome="activated")
            site.files.note(outcome, confirmed=True)
            site.settle()

    @rule(cap=st.sampled_from([None, 0, CELL, 3 * CELL]))
    def bound(self, cap: int | None) -> None:
        """Nobody may have more bytes than these in a tier; what waits to be written is not cut."""
        for site in self.sites.values():
            site.flush()
        self.cap = cap
        self.new_policy(BOTH, ALL)

    @rule(known=st.sets(st.sampled_from(["eu", "us"])), new=st.sampled_from(["", "eu", "us"]))
    def label(self, known: set[str], new: str) -> None:
        """Say who is of which class; the third user moves from one region to the other."""
        classes = {name: name for name in known} | ({"new": new} if new else {})
        for site in self.sites.values():
            site.files.put_tenants(
                [
                    TenantEntry(tenant_ref=TENANTS[name], tenant_class=tenant_class)
                    for name, tenant_class in classes.items()
                ]
            )
            site.settle()

    @rule(damage=st.booleans(), site=NAMES)
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
        self.clock.wall += MAX_AGE_S + 1
        for site in self.sites.values():
            site.settle()

    @invariant()
    def nobody_is_where_nobody_may_be(self) -> None:
        if not hasattr(self, "sites"):
            return
        assert in_bucket(self.folder, "us", TENANTS["eu"]) == []
        assert in_bucket(self.folder, "eu", TENANTS["us"]) == []
        assert not any(self.sites["us"].by_tier(TENANTS["eu"]).values())
        assert not any(self.sites["eu"].by_tier(TENANTS["us"]).values())
        for site in self.sites.values():
            for tenant_ref in TENANTS.values():
                allowed = site.residency.placement(tenant_ref)
                for tier, held in site.by_tier(tenant_ref).items():
                    # What was allowed in a bucket that is away now leaves it when it is back.
                    waits = tier is Tier.OBJECT and site.is_away
                    assert not held or waits or allowed.allows(tier), (site.name, tier)
                for tier, size_bytes in site.bytes_by_tier(tenant_ref).items():
                    waits = tier is Tier.OBJECT and site.is_away
                    cap = allowed.row[tier].max_bytes
                    assert cap is None or waits or size_bytes <= cap, (site.name, tier)

    def teardown(self) -> None:
        if hasattr(self, "sites"):
            for site in self.sites.values():
                site.cut.dead = False
                site.cut.crash_in = None
                site.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TestRegions = Regions.TestCase
TestRegions.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)


def test_the_steps_do_what_they_are_called() -> None:
    machine = Regions()
    machine.begin()
    here, eu = machine.sites["eu"], TENANTS["eu"]
    machine.evict("eu", "eu")
    first, last = 100, 103 + ON_DISK
    assert here.happened[CacheEventKind.EVICTED, Tier.MEMORY] >= 4 + ON_DISK - CELLS
    assert here.happened[CacheEventKind.EVICTED, Tier.DISK] >= 4
    assert (here.found_in(eu, first), here.found_in(eu, last)) == (Tier.OBJECT, Tier.MEMORY)
    assert here.get(eu, first), "a restore from Storage"
    machine.restart("eu", clean=False)
    assert here.found_in(eu, last) is Tier.DISK
    machine.restore("eu", "eu", [last])
    assert here.found_in(eu, last) is Tier.MEMORY
    machine.rebuild("eu", with_policy=True)
    assert here.found_in(eu, last) is Tier.OBJECT
    assert here.get(eu, last)
    for after in (False, True):
        before = here.cut
        machine.end_soon("eu", 1, after)
        machine.request("eu", "eu", [1, 2, 3])
        assert before.dead, "it ended in the middle of the writes"
        assert here.cut is not before, "and started anew"
        machine.nobody_is_where_nobody_may_be()
    machine.another_policy_while_it_is_persisted("eu", "eu", "gpu, memory", relabel=False)
    assert here.by_tier(eu)[Tier.MEMORY] > 0
    assert not here.by_tier(eu)[Tier.DISK]
    assert not here.by_tier(eu)[Tier.OBJECT]
    machine.new_policy({"us"}, ALL)
    assert not any(here.by_tier(eu).values())
    machine.nobody_is_where_nobody_may_be()
    machine.teardown()


def test_the_same_user_has_blocks_in_the_own_region_and_its_bucket_only() -> None:
    machine = Regions()
    machine.begin()
    for site in SITES:
        for tenant in TENANTS:
            machine.request(site, tenant, list(range(3)))
        machine.persist(site)
    held = {
        (site, tenant): tuple(machine.sites[site].by_tier(TENANTS[tenant]).values())
        for site in SITES
        for tenant in TENANTS
    }
    # Who computes in Europe and stores in America keeps EU users on its own disk.
    assert {pair: tiers for pair, tiers in held.items() if any(tiers)} == {
        ("eu", "eu"): (3, 3, 1),
        ("us", "us"): (3, 3, 1),
        ("away", "eu"): (3, 3, 0),
    }
    machine.rebuild("eu", with_policy=True)
    assert all(machine.sites["eu"].get(TENANTS["eu"], number) for number in range(3))
    machine.new_policy({"us"}, ALL)
    assert not any(machine.sites["eu"].by_tier(TENANTS["eu"]).values())
    assert in_bucket(machine.folder, "eu", TENANTS["eu"]) == []
    assert tuple(machine.sites["us"].by_tier(TENANTS["us"]).values()) == (3, 3, 1)
    machine.nobody_is_where_nobody_may_be()
    machine.teardown()


def test_a_user_who_moves_to_the_other_region_leaves_the_bucket_of_the_first() -> None:
    machine = Regions()
    machine.begin()
    machine.label(BOTH, "eu")
    machine.request("eu", "new", [1, 2, 3])
    assert machine.sites["eu"].by_tier(TENANTS["new"])[Tier.OBJECT] == 1
    machine.sites["eu"].go(away=True)
    machine.label(BOTH, "us")
    assert machine.sites["eu"].by_tier(TENANTS["new"])[Tier.OBJECT] == 1
    machine.sites["eu"].crash()
    machine.reach_the_bucket("eu", away=False)
    assert in_bucket(machine.folder, "eu", TENANTS["new"]) == []
    machine.request("us", "new", [1, 2, 3])
    assert len(in_bucket(machine.folder, "us", TENANTS["new"])) == 1
    machine.teardown()


@pytest.mark.parametrize("tier", ["disk", "object"])
def test_what_is_being_written_when_a_stricter_policy_comes_does_not_stay(tier: str) -> None:
    machine = Regions()
    machine.begin()
    machine.new_policy(BOTH, f"gpu, memory, {tier}")
    here = machine.sites["eu"]
    for number in range(3):
        here.put(TENANTS["eu"], number)
    here.cut.meanwhile = lambda: machine.new_policy(BOTH, "gpu, memory")
    assert here.store.flush()
    assert here.cut.meanwhile is None, "nothing was written"
    assert here.by_tier(TENANTS["eu"]) == {Tier.MEMORY: 3, Tier.DISK: 0, Tier.OBJECT: 0}
    machine.teardown()


def test_what_the_disk_may_hold_and_memory_may_not_is_read_and_not_kept_there() -> None:
    machine = Regions()
    machine.begin()
    here = machine.sites["eu"]
    machine.request("eu", "eu", [1, 2, 3])
    machine.new_policy(BOTH, "gpu, disk")
    here.residency.refusals.take()
    assert here.get(TENANTS["eu"], 1)
    refused = [(item.tier, item.code) for item in here.residency.refusals.take()[0]]
    assert refused == [("memory", "tier_not_allowed eu")], "that it is not kept is on record"
    assert here.by_tier(TENANTS["eu"]) == {Tier.MEMORY: 0, Tier.DISK: 3, Tier.OBJECT: 0}
    machine.teardown()


def test_a_smaller_bound_lets_the_oldest_blocks_go_and_holds_for_what_comes() -> None:
    machine = Regions()
    machine.begin()
    here = machine.sites["eu"]
    for number in range(6):
        assert here.put(TENANTS["eu"], number)
        here.flush()
    assert here.bytes_by_tier(TENANTS["eu"])[Tier.DISK] == 6 * CELL
    machine.bound(3 * CELL)
    assert here.by_tier(TENANTS["eu"]) == {Tier.MEMORY: 3, Tier.DISK: 3, Tier.OBJECT: 0}
    assert [here.get(TENANTS["eu"], number) for number in range(6)] == [False] * 3 + [True] * 3
    for number in range(10, 16):
        assert here.put(TENANTS["eu"], number)
        here.flush()
        machine.nobody_is_where_nobody_may_be()
    assert here.by_tier(TENANTS["eu"])[Tier.MEMORY] == 3
    assert here.by_tier(TENANTS["eu"])[Tier.OBJECT] >= 1
    assert machine.sites["us"].put(TENANTS["us"], 1)
    machine.bound(0)
    assert not here.put(TENANTS["eu"], 20)
    assert not any(here.by_tier(TENANTS["eu"]).values())
    machine.teardown()
