"""What every benchmark prints: a table for people, one JSON object for programs.

The JSON object is ``{"bench", "machine", "commit", "rows"}``; a row is ``{"metric", "value",
"unit", "against", "goal", "met"}``. ``value`` is null when nothing can be stated, ``goal`` is null
for a row that only informs, and ``met`` is null where there is no goal or no verdict. ``against``
says what the value was compared with, its spread, and why there is no verdict if there is none.
"""

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvrun.bench.paired import Comparison, Goal, Refusal, judge

MAX_COLUMNS = 100


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value, and the goal it was held to."""

    metric: str
    value: float | None
    unit: str
    against: str = ""
    goal: str | None = None
    met: bool | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one benchmark run, on which machine and which state of the code."""

    bench: str
    machine: str
    commit: str
    rows: tuple[Row, ...]

    @property
    def missed(self) -> bool:
        """Whether a goal was missed. A row without a verdict misses nothing."""
        return any(row.met is False for row in self.rows)


def ratio_row(
    metric: str, result: Comparison | Refusal, *, unit: str, against: str, goal: Goal | None = None
) -> Row:
    """The row of a paired comparison, held to ``goal`` if there is one.

    Without a figure or a verdict ``against`` says why.
    """
    met = judge(result, goal) if goal is not None else None
    value: float | None = None
    text = against
    if isinstance(result, Refusal):
        lacking = "figure" if goal is None or met is not None else "verdict"
        text += f"; no {lacking}: {result.reason}"
    else:
        value = result.ratio
        text += f"; 95 % interval {result.low:.3g} to {result.high:.3g}, "
        text += f"IQR {result.iqr:.2g}, {result.pairs} pairs"
        if goal is not None and met is None:
            text += "; no verdict: the goal lies inside the interval"
    wanted = str(goal) if goal is not None else None
    return Row(metric=metric, value=value, unit=unit, against=text, goal=wanted, met=met)


def to_json(report: Report) -> str:
    """The report as one JSON object on one line."""
    return msgspec.json.encode(report).decode()


def render(report: Report) -> Table:
    """The report as a table for a terminal."""
    table = Table(
        title=Text(f"kvrun bench {report.bench}"),
        caption=Text(f"{report.machine}\ncommit {report.commit}"),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("metric", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", overflow="fold")
    table.add_column("against", overflow="fold")
    table.add_column("goal", no_wrap=True)
    table.add_column("met", no_wrap=True)
    for row in report.rows:
        # Text, not markup: a metric or a machine may hold square brackets.
        cells = (row.metric, _number(row.value), row.unit, row.against, row.goal or "", _met(row))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def print_report(report: Report, console: Console, *, as_json: bool) -> None:
    """Print the report to ``console``: one JSON object, or a table of at most 100 columns."""
    if as_json:
        console.file.write(to_json(report) + "\n")
    else:
        console.print(render(report), width=min(console.width, MAX_COLUMNS))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _met(row: Row) -> str:
    if row.met is not None:
        return "yes" if row.met else "NO"
    return "" if row.goal is None else "?"
