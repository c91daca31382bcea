"""The statistics of times to first token: leaks are found, no leak is a measurement."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrun.isolation.timing import MIN_ROUNDS, MOST_LEAK, Round, Seen, judge

HIT, MISS = 10_000, 50_000


def rounds(seed: int, leak: float, *, count: int = 20, noise: float = 0.05) -> list[Round]:
    """Rounds in which a stranger has this share of a hit's saving."""
    source = random.Random(seed)

    def vary(value: float) -> int:
        return max(1, round(value * source.gauss(1, noise)))

    other = MISS - leak * (MISS - HIT)
    return [Round(vary(HIT), vary(other), vary(MISS)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_a_full_leak_is_found_and_none_is_measured_as_none(seed: int) -> None:
    leaky = judge(rounds(seed, 1.0), seed)
    assert leaky.seen is Seen.LEAK
    assert leaky.leak.low < leaky.leak.value < leaky.leak.high
    assert leaky.cliffs_delta.value == -1
    none = judge(rounds(seed, 0.0), seed)
    assert none.seen is Seen.NO_LEAK
    assert none.leak.low < 0.1 < none.minimum_detectable_leak + 0.1 < MOST_LEAK
    assert 0.9 < none.ratio.low <= none.ratio.value <= none.ratio.high < 1.1


def test_half_a_leak_is_a_leak() -> None:
    assert judge(rounds(1, 0.5), 1).seen is Seen.LEAK


def test_noise_is_never_taken_for_proof_of_no_leak() -> None:
    for seed in range(10):
        assert judge(rounds(seed, 0.6, noise=0.8, count=MIN_ROUNDS), seed).seen is not Seen.NO_LEAK


def test_without_a_saving_nothing_is_shown() -> None:
    flat = [Round(MISS, MISS, MISS) for _ in range(20)]
    assert judge(flat, 1).seen is Seen.INCONCLUSIVE
    backwards = [Round(MISS, HIT, HIT) for _ in range(20)]
    assert judge(backwards, 1).seen is Seen.INCONCLUSIVE


def test_too_few_rounds_are_refused_and_the_same_seed_gives_the_same() -> None:
    with pytest.raises(ValueError, match="too few"):
        judge(rounds(1, 0, count=MIN_ROUNDS - 1), 1)
    assert judge(rounds(1, 0.2), 7) == judge(rounds(1, 0.2), 7)


_times = st.integers(1, 10**9)


@settings(max_examples=10)
@given(st.lists(st.builds(Round, _times, _times, _times), min_size=8, max_size=12))
def test_whatever_was_measured_gives_ordered_finite_numbers(found: list[Round]) -> None:
    result = judge(found, 1)
    for effect in (result.ratio, result.cliffs_delta, result.leak):
        assert effect.low <= effect.high
    assert -1 <= result.cliffs_delta.value <= 1
    assert result.minimum_detectable_leak >= 0
