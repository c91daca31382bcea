"""The erasure benchmark erases for real and judges no slow disk."""

from __future__ import annotations

from kvrun.bench.erase import EraseBenchSettings, _row, run_erase_bench
from kvrun.bench.paired import Goal


def test_it_reports_both_goals_and_the_disk() -> None:
    report = run_erase_bench(
        EraseBenchSettings(sessions=6, blocks=24, erasures=3, engine_deadline_s=1, lease_s=3)
    )
    assert [row.metric for row in report.rows] == [
        "request to signed certificate, p50",
        "request to signed certificate, p99",
        "disk alone, p50",
        "request to signed certificate, silent engine",
        "request to signed certificate, silent engine and stopped daemon",
    ]
    silent, both = report.rows[-2:]
    assert (both.goal, both.met) == ("<= 35000", True)
    assert "names 2 that did not confirm" in both.against
    assert silent.value is not None
    assert silent.value >= 1000
    assert (silent.goal, silent.met) == ("<= 35000", True)
    assert all(row.value is not None and row.value > 0 for row in report.rows)
    assert "6 sessions and 24 indexed blocks, class" in report.rows[0].against


def test_a_miss_on_a_disk_that_is_too_slow_itself_is_no_verdict() -> None:
    goal = Goal(300.0, at_most=True)
    assert _row("m", 299.0, goal, "", disk=500.0).met is True
    assert _row("m", 301.0, goal, "", disk=10.0).met is False
    slow = _row("m", 301.0, goal, "", disk=200.0)
    assert (slow.met, "no verdict" in slow.against) == (None, True)
