"""Comparing two things on a machine that is not quiet.

Candidate and baseline are measured in pairs, one right after the other and in alternating order,
so that whatever disturbs the machine disturbs both. The result is the median of the pairs' ratios
with its bootstrap interval (95 %, percentile method). When that interval is too wide to say
anything, the comparison is refused with the reason instead of reported as a number.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_PAIRS = 7
MAX_SPREAD = 0.25
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate divided by baseline.

    ``ratio`` is the median over ``pairs`` pairs, ``low`` to ``high`` its 95 % interval, ``iqr`` the
    distance between the quartiles of the ratios. ``candidate`` and ``baseline`` are the medians of
    what was measured, in its own unit.
    """

    pairs: int
    ratio: float
    low: float
    high: float
    iqr: float
    candidate: float
    baseline: float

    @property
    def spread(self) -> float:
        """The width of the interval as a share of the ratio."""
        return (self.high - self.low) / self.ratio


@dataclass(frozen=True, slots=True)
class Refusal:
    """No comparison can be stated, and why; ``interval`` is known where only its width is."""

    reason: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a value: at least ``bound``, or at most where ``at_most`` is set."""

    bound: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"

    def holds(self, value: float) -> bool:
        """Whether ``value`` is on the right side of the bound."""
        return value <= self.bound if self.at_most else value >= self.bound


def measure_pairs(
    candidate: Callable[[], float], baseline: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """Measure both ``pairs`` times, in the order AB, BA, AB, ...

    Each callable does its work once and returns what it measured (seconds, bytes a second, ...).
    """
    measured: list[tuple[float, float]] = []
    for index in range(pairs):
        if index % 2 == 0:
            first = candidate()
            measured.append((first, baseline()))
        else:
            first = baseline()
            measured.append((candidate(), first))
    return measured


def compare_pairs(
    pairs: Sequence[tuple[float, float]],
    *,
    rng: random.Random,
    max_spread: float = MAX_SPREAD,
    resamples: int = RESAMPLES,
) -> Comparison | Refusal:
    """Compare (candidate, baseline) pairs; ``rng`` draws the bootstrap samples.

    Refused are fewer than ``MIN_PAIRS`` pairs, measurements that are not positive numbers, and an
    interval wider than ``max_spread`` times the ratio.
    """
    if len(pairs) < MIN_PAIRS:
        return Refusal(f"{len(pairs)} pairs were measured; at least {MIN_PAIRS} are needed")
    for pair in pairs:
        for value in pair:
            if not (math.isfinite(value) and value > 0):
                return Refusal(f"a measurement is {value}, not a positive number")
    ratios = [candidate / baseline for candidate, baseline in pairs]
    low, high = _median_interval(ratios, rng, resamples)
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive")
    result = Comparison(
        pairs=len(pairs),
        ratio=statistics.median(ratios),
        low=low,
        high=high,
        iqr=quartiles[2] - quartiles[0],
        candidate=statistics.median(candidate for candidate, _ in pairs),
        baseline=statistics.median(baseline for _, baseline in pairs),
    )
    if result.spread > max_spread:
        return Refusal(
            f"the spread swamps the comparison: the ratio lies between {low:.3g} and {high:.3g} "
            f"({result.spread:.0%} of it; at most {max_spread:.0%} is reported)",
            (low, high),
        )
    return result


def judge(result: Comparison | Refusal, goal: Goal) -> bool | None:
    """Whether the ratio meets the goal; None when the goal lies inside its interval.

    An interval too wide for a figure can still lie on one side of a goal.
    """
    if isinstance(result, Refusal):
        values: tuple[float, ...] = result.interval or ()
    else:
        values = (result.low, result.high, result.ratio)
    sides = {goal.holds(value) for value in values}
    return sides.pop() if len(sides) == 1 else None


def _median_interval(
    values: Sequence[float], rng: random.Random, resamples: int
) -> tuple[float, float]:
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples)
    )
    last = len(medians) - 1
    return medians[round(0.025 * last)], medians[round(0.975 * last)]
