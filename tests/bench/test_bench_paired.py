"""Paired comparison: right on steady ratios, honest about noise."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.bench.paired import (
    MIN_PAIRS,
    Comparison,
    Goal,
    Refusal,
    compare_pairs,
    judge,
    measure_pairs,
)


def rng() -> random.Random:
    return random.Random(1)


def noisy(ratio: float, noise: float, pairs: int = 21) -> list[tuple[float, float]]:
    source = random.Random(2)
    return [(ratio * source.uniform(1 - noise, 1 + noise), 1.0) for _ in range(pairs)]


def test_drift_that_hits_both_does_not_change_the_ratio():
    pairs = [(0.9 * speed, speed) for speed in (10, 9, 7, 4, 3, 2, 1)]
    result = compare_pairs(pairs, rng=rng())
    assert result.ratio == pytest.approx(0.9)
    assert result.spread == pytest.approx(0, abs=1e-9)
    assert result.iqr == pytest.approx(0, abs=1e-9)
    assert (result.candidate, result.baseline, result.pairs) == (pytest.approx(3.6), 4, 7)


def test_a_few_disturbed_pairs_do_not_move_the_median():
    result = compare_pairs([*noisy(0.95, 0.01, 18), (0.1, 1), (9, 1), (0.2, 1)], rng=rng())
    assert result.ratio == pytest.approx(0.95, abs=0.01)


@given(st.floats(0.1, 10), st.floats(0.001, 0.05), st.integers(0, 1000))
def test_the_interval_holds_the_median_and_lies_within_the_ratios(ratio, noise, seed):
    pairs = noisy(ratio, noise)
    result = compare_pairs(pairs, rng=random.Random(seed))
    ratios = [a / b for a, b in pairs]
    assert isinstance(result, Comparison)
    assert min(ratios) <= result.low <= result.ratio <= result.high <= max(ratios)


def test_the_same_random_source_gives_the_same_interval():
    assert compare_pairs(noisy(1, 0.1), rng=rng()) == compare_pairs(noisy(1, 0.1), rng=rng())


def test_a_spread_that_swamps_the_comparison_is_refused_with_its_numbers():
    result = compare_pairs(noisy(1, 0.9), rng=rng())
    assert isinstance(result, Refusal)
    assert "swamps" in result.reason
    assert "at most 25%" in result.reason
    assert isinstance(compare_pairs(noisy(1, 0.9), rng=rng(), max_spread=9), Comparison)


@pytest.mark.parametrize("count", [0, 1, MIN_PAIRS - 1])
def test_too_few_pairs_are_refused(count):
    result = compare_pairs([(1.0, 1.0)] * count, rng=rng())
    assert isinstance(result, Refusal)
    assert f"{count} pairs" in result.reason
    assert isinstance(compare_pairs([(1.0, 1.0)] * MIN_PAIRS, rng=rng()), Comparison)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_measurement_that_is_no_positive_number_is_refused(value, side):
    pairs = [(1.0, 1.0)] * 6 + [(value, 1.0) if side == 0 else (1.0, value)]
    result = compare_pairs(pairs, rng=rng())
    assert isinstance(result, Refusal)
    assert "positive" in result.reason


@pytest.mark.parametrize(
    ("bound", "at_most", "verdict"),
    [
        (0.80, False, True),
        (0.95, False, None),
        (1.10, False, False),
        (0.80, True, False),
        (0.95, True, None),
        (1.10, True, True),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side_of_the_goal(bound, at_most, verdict):
    result = Comparison(pairs=21, ratio=0.96, low=0.94, high=1.0, iqr=0.02, candidate=1, baseline=1)
    assert judge(result, Goal(bound, at_most=at_most)) is verdict


def test_a_value_equal_to_the_bound_meets_the_goal():
    result = Comparison(pairs=7, ratio=0.9, low=0.9, high=0.9, iqr=0, candidate=1, baseline=1)
    assert judge(result, Goal(0.9)) is True
    assert judge(result, Goal(0.9, at_most=True)) is True


def test_pairs_are_interleaved_in_alternating_order():
    calls: list[str] = []

    def measured(name: str, value: float) -> float:
        calls.append(name)
        return value

    pairs = measure_pairs(lambda: measured("a", 1), lambda: measured("b", 2), 4)
    assert "".join(calls) == "abbaabba"
    assert pairs == [(1, 2)] * 4
