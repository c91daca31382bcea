"""A deployment with a cache by tier and times that follow from it; made to leak where told to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from kvrun.isolation.report import Check, Outcome
from kvrun.isolation.target import Canary, Facts, Reply, SelfTestError, TierTokens

HIT_US, MISS_US = 8_000, 60_000
TIERS = ("gpu", "memory", "disk", "object")


@dataclass
class SimulatedDeployment:
    """``shared``: tiers whose blocks everybody finds. ``by_user``: sessions of a user share.

    ``noise``: share by which times vary. ``lies``: answers do not say what they reused.
    ``saves``: whether a hit is faster than a miss at all. ``forgets``: the engine keeps nothing
    of a request that ended; ``hoards``: it says so and does all the same.
    """

    shared: frozenset[str] = frozenset()
    by_user: bool = False
    reuses: bool = True
    noise: float = 0.05
    lies: bool = False
    saves: bool = True
    wrong_answers: bool = False
    stateless: bool = False
    many_users: bool = True
    tiers: tuple[str, ...] = ("memory", "disk", "object")
    forgets: bool = False
    hoards: bool = False
    fail_after: int = 1_000_000
    can_restart: bool = True
    held: dict[str, dict[str, set[str]]] = field(
        default_factory=lambda: {tier: {} for tier in TIERS}
    )
    erased: list[Canary] = field(default_factory=list)
    asked: list[tuple[Canary, str]] = field(default_factory=list)
    restarts: int = 0

    def __post_init__(self) -> None:
        self.times = random.Random(1)
        self.counts: dict[str, TierTokens] = {}

    def facts(self) -> Facts:
        return Facts(
            "w", "d", "simulated 1", self.stateless, self.many_users, self.tiers, self.can_restart,
            keeps_pages=not self.forgets,
        )  # fmt: skip

    def ask(self, canary: Canary, prompt: str) -> Reply:
        self.asked.append((canary, prompt))
        if len(self.asked) > self.fail_after:
            raise SelfTestError("it went away")
        tokens = len(prompt.split()) * 3
        found = self._tier_of(canary, prompt)
        counted = TierTokens(**{found: tokens - 7}) if found else TierTokens()
        request_id = f"r{len(self.asked)}"
        self.counts[request_id] = TierTokens() if self.lies else counted
        if not self.stateless:
            keeps = ("gpu",) if self.hoards or not self.forgets else ()
            for tier in (*keeps, *self.tiers):
                self.held[tier].setdefault(prompt, set()).add(self._scope(canary))
        base = HIT_US if found and self.saves else MISS_US
        said = 0 if self.lies else counted.total
        text = sha256(prompt.encode()).hexdigest()
        if self.wrong_answers and found:
            text = "someone else's answer"
        return Reply(text, tokens, said, round(base * self.times.gauss(1, self.noise)), request_id)

    def reused(self, reply: Reply) -> TierTokens:
        return self.counts[reply.request_id]

    def seal(self, reply: Reply) -> None:
        return

    def release_pages(self, canary: Canary) -> bool:
        assert not self.forgets, "there are no pages to let go of"
        self._release("gpu", canary)
        return True

    def release_above(self, canary: Canary, tier: str) -> None:
        for above in TIERS[1 : TIERS.index(tier)]:
            self._release(above, canary)

    def restart(self) -> None:
        self.restarts += 1
        for tier in ("gpu", "memory"):
            self.held[tier].clear()

    def doors(self, canary: Canary, prompt: str) -> Sequence[Check]:
        return [Check(name="doors", outcome=Outcome.PASS, detail="")]

    def erase(self, canaries: Sequence[Canary]) -> list[str]:
        self.erased += canaries
        return [f"c{number}" for number in range(len(canaries))]

    def _release(self, tier: str, canary: Canary) -> None:
        for owners in self.held[tier].values():
            owners.discard(self._scope(canary))
            if tier in self.shared:
                owners.clear()

    def _tier_of(self, canary: Canary, prompt: str) -> str:
        if not self.reuses:
            return ""
        for tier in TIERS:
            owners = self.held[tier].get(prompt, set())
            if self._scope(canary) in owners or (owners and tier in self.shared):
                return tier
        return ""

    def _scope(self, canary: Canary) -> str:
        return canary.user if self.by_user else f"{canary.user}/{canary.session}"
