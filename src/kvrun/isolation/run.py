"""The self-test's course: paired checks by tier, times to first token, side doors, erasure.

Every check is paired: the session that sealed a prompt must reuse it, and nobody else may. Where
the first does not hold, the second shows nothing, and the check is inconclusive.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from kvrun.errors import KvrunError
from kvrun.isolation.report import Check, Outcome, TimingEntry, timing_entry
from kvrun.isolation.target import CANARY_PREFIX, Canary, Facts, Reply, SelfTestError, Target
from kvrun.isolation.timing import MIN_ROUNDS, Round, Seen, judge

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD_LETTERS = 5
_LASTING = ("disk", "object")
AFTER_RESTART = "after a restart"
_SEEN = {
    Seen.NO_LEAK: Outcome.PASS,
    Seen.LEAK: Outcome.FAIL,
    Seen.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class Options:
    """``rounds`` of timing (0: none), and the length of prompts in made-up words."""

    rounds: int = 20
    words: int = 300
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a self-test found."""

    facts: Facts
    checks: list[Check]
    timing: TimingEntry | None
    prompt_tokens: int
    restarted: bool
    erased: list[str]


def run_self_test(
    target: Target,
    options: Options,
    random_bytes: Callable[[int], bytes],
    say: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Found:
    """Try everything, and erase the canaries whatever happens.

    ``stopped`` is asked before each step. Raises KvrunError where the deployment cannot be reached;
    SelfTestError where it cannot be tested at all, or was stopped.
    """
    if options.rounds and options.rounds < MIN_ROUNDS:
        raise ValueError(f"{options.rounds} rounds are too few; at least {MIN_ROUNDS}, or none")
    facts = target.facts()
    test = _SelfTest(target, facts, options, random_bytes, say, stopped)
    try:
        test.run()
    except BaseException:
        test.erase()
        raise
    erased = test.erase()
    return Found(facts, test.checks, test.timing, test.prompt_tokens, test.restarted, erased)


class _SelfTest:
    def __init__(
        self,
        target: Target,
        facts: Facts,
        options: Options,
        random_bytes: Callable[[int], bytes],
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.checks: list[Check] = []
        self.timing: TimingEntry | None = None
        self.prompt_tokens = 0
        self.restarted = False
        self._target, self._facts, self._options = target, facts, options
        self._tell, self._stopped = say, stopped
        self._seed = int.from_bytes(random_bytes(6), "big")
        self._words = random.Random(random_bytes(16))  # noqa: S311 - prompts, nothing secret
        mark = random_bytes(8).hex()
        user = f"{CANARY_PREFIX}{mark}-a" if facts.many_users else ""
        self._owner = Canary(user, f"{CANARY_PREFIX}{mark}-1")
        self._session = Canary(user, f"{CANARY_PREFIX}{mark}-2")
        self._user = (
            Canary(f"{CANARY_PREFIX}{mark}-b", f"{CANARY_PREFIX}{mark}-1")
            if facts.many_users
            else None
        )

    def run(self) -> None:
        if not self._facts.many_users:
            self._note(
                "another user",
                Outcome.SKIPPED,
                "this deployment serves a single tenant; sessions are compared instead",
            )
        self._gpu()
        self._time()
        self._doors()
        for tier in ("memory", "disk", "object"):
            self._tier(tier)
        self._after_restart()

    def erase(self) -> list[str]:
        self._tell("erasing the canary users")
        canaries = [self._owner, self._session, *([self._user] if self._user else [])]
        return list(self._target.erase(canaries))

    def _gpu(self) -> None:
        self._say("engine memory")
        prompt = self._prompt()
        first = self._target.ask(self._owner, prompt)
        self._target.seal(first)
        self.prompt_tokens = first.prompt_tokens
        if self._facts.stateless:
            again = self._target.ask(self._owner, prompt)
            kept = self._target.reused(again).total or again.cached_tokens
            self._note(
                "nothing is kept",
                Outcome.FAIL if kept else Outcome.PASS,
                f"this deployment is stateless; the same session reused {kept} tokens",
            )
        if self._facts.keeps_pages or self._facts.stateless:
            self._pair("engine memory", "gpu", prompt, first)
        else:
            self._nothing_kept(prompt, first)

    def _tier(self, tier: str) -> None:
        name = f"{tier} tier"
        if tier not in self._facts.tiers:
            self._note(name, Outcome.SKIPPED, "this deployment has no such tier")
            return
        self._say(name)
        prompt = self._prompt()
        first = self._target.ask(self._owner, prompt)
        self._target.seal(first)
        if self._facts.keeps_pages and not self._target.release_pages(self._owner):
            self._note(name, Outcome.SKIPPED, "the engine did not let go of the pages")
            return
        self._target.release_above(self._owner, tier)
        self._pair(name, tier, prompt, first)

    def _after_restart(self) -> None:
        """One prompt for each tier that lasts, so that none has what another one brought up."""
        lasting = [tier for tier in _LASTING if tier in self._facts.tiers]
        if not lasting:
            self._note(
                AFTER_RESTART, Outcome.SKIPPED, "no tier of this deployment outlives a restart"
            )
            return
        if not (self._options.restart and self._facts.can_restart):
            self._note(AFTER_RESTART, Outcome.SKIPPED, "needs a restart (--restart)")
            return
        sent: list[tuple[str, str, Reply]] = []
        for tier in lasting:
            prompt = self._prompt()
            first = self._target.ask(self._owner, prompt)
            self._target.seal(first)
            sent.append((tier, prompt, first))
        self._say("restarting the deployment")
        self._target.restart()
        self.restarted = True
        for tier, prompt, first in sent:
            self._say(f"{AFTER_RESTART}, {tier} tier")
            self._target.release_above(self._owner, tier)
            self._pair(f"{AFTER_RESTART}, {tier} tier", tier, prompt, first)

    def _pair(self, name: str, tier: str, prompt: str, first: Reply) -> None:
        """Strangers ask first, while only the owner's blocks exist; then the owner does."""
        leaked, texts = self._strangers(prompt, first)
        again = self._target.ask(self._owner, prompt)
        tokens = self._target.reused(again)
        from_tier = getattr(tokens, tier)
        detail = (
            f"the same session reused {from_tier} of {again.prompt_tokens} prompt tokens from"
            f" there, strangers reused {leaked}"
        )
        if not texts or again.text != first.text:
            self._note(name, Outcome.FAIL, f"{detail}; answers to one prompt differ")
        elif leaked:
            self._note(name, Outcome.FAIL, detail)
        elif self._facts.stateless:
            self._note(name, Outcome.PASS, f"stateless: {detail}")
        elif from_tier < again.prompt_tokens // 2:
            self._note(name, Outcome.INCONCLUSIVE, f"{detail}: that nobody else did shows nothing")
        else:
            self._note(name, Outcome.PASS, detail)

    def _nothing_kept(self, prompt: str, first: Reply) -> None:
        """An engine that forgets after each request: nobody reuses of it, not even the owner.

        That the owner reuses from the tiers below shows that there was something to reuse.
        """
        name = "engine memory"
        leaked, texts = self._strangers(prompt, first)
        again = self._target.ask(self._owner, prompt)
        tokens = self._target.reused(again)
        below = tokens.total - tokens.gpu
        kept = max(tokens.gpu, again.cached_tokens - below)
        detail = (
            f"this engine keeps nothing between requests: the same session reused {kept} of"
            f" {again.prompt_tokens} prompt tokens from there and {below} from the tiers below,"
            f" strangers reused {leaked}"
        )
        if not texts or again.text != first.text:
            self._note(name, Outcome.FAIL, f"{detail}; answers to one prompt differ")
        elif leaked or kept:
            self._note(name, Outcome.FAIL, detail)
        elif below < again.prompt_tokens // 2:
            self._note(name, Outcome.INCONCLUSIVE, f"{detail}: that nobody else did shows nothing")
        else:
            self._note(name, Outcome.PASS, detail)

    def _strangers(self, prompt: str, first: Reply) -> tuple[int, bool]:
        """What strangers reused of a prompt, and whether their answers are the owner's."""
        leaked, same = 0, True
        for canary in (self._user, self._session):
            if canary is None:
                continue
            reply = self._target.ask(canary, prompt)
            leaked += max(reply.cached_tokens, self._target.reused(reply).total)
            same = same and reply.text == first.text
        return leaked, same

    def _time(self) -> None:
        if not self._options.rounds or self._facts.stateless:
            why = "stateless: there is no hit to compare with" if self._facts.stateless else "off"
            self._note("times to first token", Outcome.SKIPPED, why)
            return
        rounds = []
        for number in range(self._options.rounds):
            self._say(f"times to first token: round {number + 1} of {self._options.rounds}")
            rounds.append(self._round())
        result = judge(rounds, self._seed)
        self.timing = timing_entry(rounds, result, self._seed)
        detail = (
            f"{result.why}; Cliff's delta {result.cliffs_delta.value:+.2f}"
            f" ({result.cliffs_delta.low:+.2f} to {result.cliffs_delta.high:+.2f}), a leak of"
            f" {result.minimum_detectable_leak:.0%} would have been found four times out of five"
        )
        self._note("times to first token", _SEEN[result.seen], detail)

    def _round(self) -> Round:
        sent, fresh = self._prompt(), self._prompt()
        stranger = self._user or self._session
        self._target.seal(self._target.ask(self._owner, sent))
        todo = [("same", self._owner, sent), ("other", stranger, sent), ("cold", stranger, fresh)]
        self._words.shuffle(todo)
        times = {what: self._target.ask(canary, text).ttft_us for what, canary, text in todo}
        return Round(times["same"], times["other"], times["cold"])

    def _doors(self) -> None:
        self._say("side doors")
        prompt = self._prompt()
        self._target.seal(self._target.ask(self._owner, prompt))
        try:
            self.checks += self._target.doors(self._owner, prompt)
        except (OSError, KvrunError) as error:
            self._note("side doors", Outcome.INCONCLUSIVE, f"they could not be tried: {error}")

    def _prompt(self) -> str:
        return " ".join(
            "".join(self._words.choices(_LETTERS, k=_WORD_LETTERS))
            for _ in range(self._options.words)
        )

    def _say(self, step: str) -> None:
        if self._stopped():
            raise SelfTestError("the self-test was stopped")
        self._tell(step)

    def _note(self, name: str, outcome: Outcome, detail: str) -> None:
        self.checks.append(Check(name=name, outcome=outcome, detail=detail))
