"""``kvrun bench policy`` runs small and reports its goals."""

from __future__ import annotations

import threading

import pytest

from kvrun.bench.policy import _beside, run_policy_bench
from kvrun.bench.sweeping import longest_wait_ms
from kvrun.instance.sweeping import LONGEST_WAIT_S, REST_WHILE_ASKED, Pacer


def test_it_reports_decisions_activation_sweep_and_what_requests_notice() -> None:
    report = run_policy_bench(20, 100, 1000, ttft_ms=500.0)
    rows = {row.metric: row for row in report.rows}
    assert [(row.unit, row.goal) for row in report.rows] == [
        ("us", "<= 1"),
        ("s", "<= 2"),
        ("ms", "<= 50"),
        ("s for 1,000,000 blocks", "<= 60"),
        ("us", None),
        ("ratio", None),
        ("ratio", "<= 1.05"),
        ("s for 1,000,000 blocks", "<= 60"),
    ]
    measured = [row for row in report.rows if row.unit != "ratio" and "beside" not in row.metric]
    assert all(row.value is not None for row in measured)
    assert "20 policies" in rows["activation"].against


def test_without_a_ttft_the_part_in_the_daemon_has_to_meet_the_goal_alone() -> None:
    pairs = [(10.5, 10.0)] * 7
    (alone,) = _beside(pairs, None)
    part, ttft = _beside(pairs, 100.0)
    assert (alone.value, alone.goal, alone.met) == (pytest.approx(1.05), "<= 1.05", True)
    assert (part.value, part.goal, part.met) == (pytest.approx(1.05), None, None)
    assert (ttft.value, ttft.met) == (pytest.approx(1.005), True)
    assert _beside([(20.0, 10.0)] * 7, 100.0)[1].met is False


def test_the_longest_wait_is_the_one_for_an_answer_that_was_held_up() -> None:
    now, steps, enough = [0.0], [0.001, 0.030, 0.001], threading.Event()

    def ask() -> None:
        if steps:
            now[0] += steps.pop()
        else:
            enough.set()

    waited, asked = longest_wait_ms(ask, enough.wait, clock=lambda: now[0])
    assert waited == pytest.approx(30)
    assert asked >= 4


def test_the_pacer_waits_for_a_share_of_the_work() -> None:
    now, slept = [0.0], []
    pace = Pacer(0.5, clock=lambda: now[0], sleep=slept.append)
    pace()
    assert slept == []
    now[0] = 0.010
    pace()
    assert slept == [0.005]
    now[0] = 5.0
    pace()
    assert slept == [0.005, LONGEST_WAIT_S]


def test_the_pacer_waits_much_longer_while_requests_ask_for_blocks() -> None:
    now, asked, slept = [0.0], [0], []
    pace = Pacer(0.5, asked=lambda: asked[0], clock=lambda: now[0], sleep=slept.append)
    for at, count in ((0.004, 0), (0.008, 7), (0.012, 7)):
        now[0], asked[0] = at, count
        pace()
    assert slept == pytest.approx([0.002, 0.004 * REST_WHILE_ASKED, 0.002])
