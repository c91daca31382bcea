"""Another policy engine, with a language of its own, takes the place of the one that kvrun has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import pytest
from policies import EU, US, revision

from kvrun.cache.events import Tier as CacheTier
from kvrun.instance.journal import Journal
from kvrun.instance.residency import Mode, Residency, Standing
from kvrun.policy.bundle import ActivePolicy, Origin, PolicyFolder, SyncOutcome, TenantEntry
from kvrun.policy.compile import CompiledRevision, Decision, PolicyTable, Row
from kvrun.policy.diff import UNKNOWN, diff_decisions
from kvrun.policy.document import TIER_NAMES, Tier
from kvrun.policy.engine import Decider
from kvrun.policy.errors import PolicyError
from kvrun.policy.matching import InstanceFacts, Tenant, Why
from kvrun.policy.observed import Observed
from kvrun.policy.simulate import RecordedPlacement, simulate

HERE = InstanceFacts(region="eu-west-1")
TENANTS = {"e": Tenant("eu"), "u": Tenant("us"), "n": Tenant()}
LINES = "eu eu- gpu memory disk object\nus us- gpu memory\n"
"""The language: a class, how its regions begin, and its tiers."""


@dataclass(frozen=True)
class LinesEngine:
    """Decides by lines; who is of no class that it knows gets GPU memory where any line is."""

    busy: ClassVar[bool] = False
    revision: str
    lines: tuple[tuple[str, ...], ...]
    facts: InstanceFacts

    @staticmethod
    def compile(
        active: ActivePolicy, facts: InstanceFacts, clock: Callable[[], float]
    ) -> LinesEngine:
        text = "".join(active.files.values())
        lines = tuple(tuple(line.split()) for line in text.splitlines())
        if any(len(line) < 3 for line in lines):
            raise PolicyError("a line has a class, a region and tiers")
        return LinesEngine(active.origin.revision, lines, facts)

    def row(self, tenant: Tenant) -> Row:
        gpu, memory, disk, object_ = (self._decide(tenant, tier) for tier in Tier)
        return gpu, memory, disk, object_

    def table(self, tenants: Mapping[str, Tenant]) -> PolicyTable:
        if self.busy:
            raise PolicyError("it takes too long")
        rows = {ref: self.row(tenant) for ref, tenant in tenants.items()}
        return PolicyTable(self.revision, self.row(Tenant()), rows)

    def at(self, facts: InstanceFacts) -> LinesEngine:
        return LinesEngine(self.revision, self.lines, facts)

    def _decide(self, tenant: Tenant, tier: Tier) -> Decision:
        place = self.facts.place(tier)
        for name, regions, *tiers in self.lines:
            is_here = place.region.startswith(regions)
            if tenant.tenant_class == name:
                allowed = is_here and TIER_NAMES[tier] in tiers
                why = Why.ALLOWED if allowed else Why.TIER if is_here else Why.REGION
                return Decision(allowed=allowed, why=why, rule=name)
            if not tenant.tenant_class and tier is Tier.GPU and is_here:
                return Decision(allowed=True, rule=name)
        why = Why.NO_MATCH if tenant.tenant_class else Why.UNKNOWN_TENANT
        return Decision(allowed=False, why=why)


class Events:
    """What a residency puts on record."""

    policy_revision = ""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def policy_event(self, event: str, revision: str, reason: str) -> None:
        self.said.append((str(event), revision))

    def refused(self, refusals: object, unrecorded: int) -> None:
        return None


def lines(text: str, name: str = "r1") -> ActivePolicy:
    return ActivePolicy(origin=Origin(revision=name), activated_at=1.0, files={"rules": text})


class Times:
    """The time of day, and how long it runs; in seconds."""

    day = 50.0
    running = 0.0


def follow(
    folder: PolicyFolder, mode: Mode = Mode.ENFORCE, times: Times | None = None
) -> tuple[Residency, Events]:
    events, times = Events(), times or Times()
    made = Residency(
        folder,
        HERE,
        cast(Journal, events),
        mode=mode,
        connected=True,
        regions_elsewhere=("us-east-1", "eu-central-1"),
        compiler=LinesEngine.compile,
        max_age_s=100.0,
        now=lambda: times.day,
        clock=lambda: times.running,
    )
    return made, events


@pytest.fixture
def folder(tmp_path: Path) -> PolicyFolder:
    made = PolicyFolder(tmp_path / "residency")
    made.put_tenants(
        [TenantEntry(tenant_ref=ref, tenant_class=t.tenant_class) for ref, t in TENANTS.items()]
    )
    put(made, LINES)
    return made


def put(folder: PolicyFolder, text: str, name: str = "r1", confirmed_at: float = 1.0) -> None:
    folder.activate(lines(text, name))
    outcome = SyncOutcome(at=confirmed_at, outcome="activated", revision=name)
    folder.note(outcome, confirmed=True)


def test_both_engines_decide_the_same_about_everybody_in_every_tier() -> None:
    one = CompiledRevision(revision(EU, US), HERE).table(TENANTS)
    other = LinesEngine.compile(lines(LINES), HERE, lambda: 0.0).table(TENANTS)
    for ref in (*TENANTS, UNKNOWN):
        assert [d.allowed for d in one.row(ref)] == [d.allowed for d in other.row(ref)], ref
    flips = diff_decisions(one, other, TENANTS)
    assert all(flip.before.allowed == flip.after.allowed for flip in flips)
    made = [
        RecordedPlacement(1.0, ref, (tier,), 1, 1, True, "r0") for ref in TENANTS for tier in Tier
    ]
    assert simulate(one, made).refused == simulate(other, made).refused > 0


def test_a_daemon_enforces_what_another_engine_decides(folder: PolicyFolder) -> None:
    residency, events = follow(folder)
    assert residency.revision == "r1"
    assert residency.allows("e", "s", CacheTier.DISK)
    assert not residency.allows("n", "s", CacheTier.MEMORY)
    assert [residency.may_serve(ref, "s") for ref in TENANTS] == [True, False, True]
    assert residency.elsewhere.regions("u") == ("us-east-1",)
    assert ("policy_activated", "r1") in events.said

    put(folder, LINES.replace("disk object", ""), "r2")
    assert residency.refresh()
    assert residency.revision == "r2"
    assert not residency.allows("e", "s", CacheTier.DISK)
    assert residency.allows("e", "s", CacheTier.MEMORY)


def test_what_another_engine_cannot_read_leaves_the_last_good_one_in_force(
    folder: PolicyFolder,
) -> None:
    residency, _ = follow(folder)
    put(folder, "nonsense\n", "r2")
    residency.refresh()
    assert residency.revision == "r1"
    assert residency.allows("e", "s", CacheTier.DISK)
    assert "a class, a region and tiers" in residency.state().error


def test_age_and_warnings_hold_for_another_engine_too(folder: PolicyFolder) -> None:
    warned, _ = follow(folder, Mode.WARN)
    assert warned.allows("n", "s", CacheTier.DISK)
    assert warned.refusals.total == 1
    put(folder, LINES, confirmed_at=-100.0)
    aged, _ = follow(folder)
    assert aged.may_serve("e", "s")
    assert not aged.allows("e", "s", CacheTier.MEMORY)


def kept(residency: Residency, ref: str) -> list[CacheTier]:
    below = (CacheTier.MEMORY, CacheTier.DISK, CacheTier.OBJECT)
    return [tier for tier in below if residency.allows(ref, "s", tier)]


def test_a_revision_that_cannot_decide_when_the_daemon_starts_leaves_gpu_memory(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinesEngine, "busy", True)
    residency, events = follow(folder)
    assert residency.standing is Standing.MISSING
    assert not any(kept(residency, ref) for ref in (*TENANTS, "somebody"))
    assert residency.may_serve("e", "s")
    assert residency.elsewhere.regions("u") == ()
    assert events.said == [("policy_activated", "none")]
    assert "too long" in residency.state().error

    # A tenant who belongs elsewhere comes to be known.
    folder.put_tenants([TenantEntry(tenant_ref="far", region="us-east-1")])
    assert residency.refresh()
    assert not residency.may_serve("far", "s")
    assert not residency.refresh()
    assert "too long" in residency.state().error

    monkeypatch.setattr(LinesEngine, "busy", False)
    put(folder, LINES, "r2")
    assert residency.refresh()
    assert not residency.refresh()
    assert (residency.revision, residency.state().error) == ("r2", "")


def test_what_cannot_decide_about_a_new_tenant_leaves_what_is_in_force_and_is_asked_again(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Times()
    residency, _ = follow(folder, times=times)
    monkeypatch.setattr(LinesEngine, "busy", True)
    put(folder, LINES.replace("disk object", ""), "r2")
    assert not residency.refresh()
    assert residency.allows("e", "s", CacheTier.DISK)
    assert residency.revision == "r1"
    monkeypatch.setattr(LinesEngine, "busy", False)
    assert not residency.refresh()
    times.running += 60.0
    assert residency.refresh()
    assert residency.revision == "r2"
    assert not residency.allows("e", "s", CacheTier.DISK)
    assert not residency.refresh()
    assert residency.state().error == ""


def test_what_cannot_decide_and_is_too_old_leaves_gpu_memory(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Times()
    residency, _ = follow(folder, times=times)
    assert residency.allows("e", "s", CacheTier.DISK)
    monkeypatch.setattr(LinesEngine, "busy", True)
    times.day += 1000.0
    assert residency.refresh()
    assert residency.standing is Standing.AGED
    assert not any(kept(residency, ref) for ref in TENANTS)
    assert [residency.may_serve(ref, "s") for ref in TENANTS] == [True, False, True]


def test_what_cannot_decide_for_where_the_instance_is_seen_leaves_gpu_memory(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    residency, events = follow(folder)
    assert residency.allows("e", "s", CacheTier.DISK)
    monkeypatch.setattr(LinesEngine, "busy", True)
    residency.observed(Observed(instance="us-east-1"))
    assert residency.standing is Standing.MISSING
    assert not any(kept(residency, ref) for ref in TENANTS)
    assert events.said[-1] == ("policy_activated", "none")


def test_it_is_a_decider() -> None:
    decider: Decider = LinesEngine.compile(lines(LINES), HERE, lambda: 0.0)
    assert decider.at(InstanceFacts(region="us-east-1")).row(Tenant("us"))[Tier.GPU].allowed
