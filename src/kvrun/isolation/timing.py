"""What times to first token tell: whether a stranger's look like a hit's or like a miss's. Pure.

Each round takes three times for prompts of one length, in random order: of the session that sent
the prompt before (a hit), of a stranger who sends the same prompt, and of that stranger with a
prompt that nobody sent (a miss). The *leak* is the share of a hit's saving that the stranger had:
0 where nothing is shared, 1 where everything is. A verdict needs an interval that is narrow enough:
"no difference" is a measurement here and not a failure to look.
"""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_ROUNDS = 8
RESAMPLES = 1000
CONFIDENCE = 0.95
MOST_LEAK = 0.25
"""A leak is excluded where its interval ends below this."""
SURE_LEAK = 0.10
"""A leak is found where its interval begins above this."""
_POWER_FACTOR = 2.8
"""Two-sided 5 %, power 80 %: 1.96 + 0.84 standard errors."""


class Seen(StrEnum):
    """What the times show."""

    NO_LEAK = "no_leak"
    LEAK = "leak"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Round:
    """One round's times to first token in microseconds."""

    same_us: int
    other_us: int
    cold_us: int


@dataclass(frozen=True, slots=True)
class Effect:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TimingResult:
    """``ratio``: median of other over cold, 1 for no difference. ``cliffs_delta``: from -1 (the
    stranger always faster than cold) to 1. ``minimum_detectable_leak``: what these rounds would
    have found four times out of five."""

    seen: Seen
    why: str
    ratio: Effect
    cliffs_delta: Effect
    leak: Effect
    minimum_detectable_leak: float


def judge(rounds: Sequence[Round], seed: int) -> TimingResult:
    """What the rounds show; ``seed`` decides the bootstrap's draws. ValueError for too few."""
    if len(rounds) < MIN_ROUNDS:
        raise ValueError(f"{len(rounds)} rounds are too few; at least {MIN_ROUNDS} are needed")
    source = random.Random(seed)  # noqa: S311 - resampling, nothing secret
    draws = [source.choices(rounds, k=len(rounds)) for _ in range(RESAMPLES)]
    ratio, _ = _estimate(_ratio, rounds, draws)
    delta, _ = _estimate(_cliffs_delta, rounds, draws)
    leak, leak_error = _estimate(_leak, rounds, draws)
    saving, _ = _estimate(_saving, rounds, draws)
    seen, why = _verdict(saving, leak)
    return TimingResult(seen, why, ratio, delta, leak, _POWER_FACTOR * leak_error)


def _verdict(saving: Effect, leak: Effect) -> tuple[Seen, str]:
    if saving.low <= 0:
        return Seen.INCONCLUSIVE, "a hit is not faster than a miss here, so times can show nothing"
    told = f"a stranger had {leak.value:.0%} of a hit's saving ({leak.low:.0%} to {leak.high:.0%})"
    if leak.low > SURE_LEAK:
        return Seen.LEAK, told
    if leak.high < MOST_LEAK:
        return Seen.NO_LEAK, told
    return Seen.INCONCLUSIVE, f"{told}: too wide to tell; take more rounds or longer prompts"


def _estimate(
    statistic: Callable[[Sequence[Round]], float],
    rounds: Sequence[Round],
    draws: Sequence[Sequence[Round]],
) -> tuple[Effect, float]:
    """The statistic with its percentile interval, and its standard error."""
    values = sorted(statistic(draw) for draw in draws)
    tail = (1 - CONFIDENCE) / 2
    low = values[math.floor(tail * len(values))]
    high = values[math.ceil((1 - tail) * len(values)) - 1]
    return Effect(statistic(rounds), low, high), statistics.pstdev(values)


def _ratio(rounds: Sequence[Round]) -> float:
    return statistics.median(item.other_us / max(1, item.cold_us) for item in rounds)


def _cliffs_delta(rounds: Sequence[Round]) -> float:
    colds = sorted(item.cold_us for item in rounds)
    total = 0
    for item in rounds:
        slower = bisect_left(colds, item.other_us)
        faster = len(colds) - bisect_right(colds, item.other_us)
        total += slower - faster
    return total / (len(rounds) * len(rounds))


def _saving(rounds: Sequence[Round]) -> float:
    return statistics.median(item.cold_us - item.same_us for item in rounds)


def _leak(rounds: Sequence[Round]) -> float:
    saving = _saving(rounds)
    had = statistics.median(item.cold_us - item.other_us for item in rounds)
    # Without a saving there is no share of it; such a draw must not narrow the interval.
    return had / saving if saving > 0 else math.copysign(1.0, had) if had else 0.0
