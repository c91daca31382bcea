"""What a benchmark prints, for programs and for people."""

import io
import json

import pytest
from rich.console import Console

from kvrun.bench.paired import Comparison, Goal, Refusal
from kvrun.bench.report import Report, Row, print_report, ratio_row, render, to_json

STEADY = Comparison(
    pairs=15, ratio=0.951, low=0.94, high=0.96, iqr=0.012, candidate=9.3, baseline=9.8
)
GOAL = Goal(0.9)


def report(*rows: Row) -> Report:
    return Report(bench="seal", machine="a CPU [x86], 2 CPUs", commit="0123456789ab", rows=rows)


def printed(content: Report, *, as_json: bool, width: int = 200) -> str:
    file = io.StringIO()
    print_report(content, Console(file=file, width=width), as_json=as_json)
    return file.getvalue()


def test_the_json_object_has_exactly_the_agreed_keys():
    row = ratio_row("seal", STEADY, unit="x", against="raw", goal=GOAL)
    content = json.loads(printed(report(row), as_json=True))
    assert list(content) == ["bench", "machine", "commit", "rows"]
    assert list(content["rows"][0]) == ["metric", "value", "unit", "against", "goal", "met"]
    assert content["rows"][0]["value"] == 0.951
    assert content["rows"][0]["goal"] == ">= 0.9"
    assert content["rows"][0]["met"] is True


def test_json_output_is_one_line_and_nothing_else():
    text = printed(report(Row(metric="m" * 300, value=1.0, unit="x")), as_json=True, width=40)
    assert text.count("\n") == 1
    assert text.strip() == to_json(report(Row(metric="m" * 300, value=1.0, unit="x")))


def test_a_value_that_is_not_known_is_null_and_has_no_verdict():
    row = ratio_row("seal", Refusal("too noisy"), unit="x", against="raw", goal=GOAL)
    assert (row.value, row.met, row.goal) == (None, None, ">= 0.9")
    assert "too noisy" in row.against
    assert not report(row).missed


def test_a_goal_inside_the_interval_has_a_value_and_no_verdict():
    row = ratio_row("seal", STEADY, unit="x", against="raw", goal=Goal(0.95))
    assert (row.value, row.met) == (0.951, None)
    assert "inside the interval" in row.against
    assert not report(row).missed


def test_one_missed_goal_marks_the_report():
    good = ratio_row("seal", STEADY, unit="x", against="raw", goal=GOAL)
    bad = ratio_row("seal", STEADY, unit="x", against="raw", goal=Goal(0.99))
    assert bad.met is False
    assert not report(good).missed
    assert report(good, bad).missed


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_is_never_wider_than_100_columns(width):
    rows = [
        ratio_row(
            "a metric with a long name " * 4, STEADY, unit="GB/s", against="b " * 90, goal=GOAL
        ),
        Row(metric="n", value=123456789.0, unit="tokens"),
    ]
    lines = printed(report(*rows), as_json=False, width=width).splitlines()
    assert max(map(len, lines)) <= min(width, 100)


def test_the_table_shows_every_cell_and_where_it_was_measured():
    row = ratio_row("seal [1 MiB]", STEADY, unit="x", against="raw", goal=Goal(0.99))
    text = " ".join(printed(report(row), as_json=False, width=100).split())
    for part in ("seal [1 MiB]", "0.951", ">= 0.99", "NO", "a CPU [x86], 2 CPUs", "0123456789ab"):
        assert part in text


def test_a_row_without_a_goal_shows_no_verdict():
    table = render(
        report(
            Row(metric="m", value=1.0, unit="x"), Row(metric="n", value=None, unit="x", goal=">= 1")
        )
    )
    assert [str(cell) for cell in table.columns[5].cells] == ["", "?"]
    assert [str(cell) for cell in table.columns[1].cells] == ["1", "-"]


@pytest.mark.parametrize(
    ("interval", "met"), [((0.91, 1.4), True), ((0.4, 0.89), False), ((0.8, 1.4), None)]
)
def test_a_spread_too_wide_for_a_figure_still_judges_a_goal_outside_it(interval, met):
    row = ratio_row("seal", Refusal("wide", interval), unit="x", against="raw", goal=Goal(0.9))
    assert (row.value, row.met) == (None, met)
    assert ("no verdict" in row.against) is (met is None)
