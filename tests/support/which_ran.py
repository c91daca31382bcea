"""The last lines of a run say which real engines and demos it ran, and which it left out.

A plugin that ``conftest.py`` registers. A test says with the marker ``real(what)`` what it runs;
what is marked ``engine`` alone runs vLLM. With ``KVRUN_WHICH_RAN`` set the lines are added to that
file too, for whoever sums up several runs.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

_PROPERTY = "real"
_left: set[str] = set()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """What a test runs goes into its report, which also comes back from other processes."""
    for item in items:
        item.user_properties.extend((_PROPERTY, what) for what in _runs(item))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember what is left out."""
    _left.update(what for item in items for what in _runs(item))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that it works for."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_PROPERTY] = sorted(_left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker left out."""
    _left.update(getattr(node, "workeroutput", {}).get(_PROPERTY, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what ran and what did not."""
    lines = summary(_results(terminalreporter), _left | _without_an_environment())
    for line in lines:
        terminalreporter.write_line(line)
    if os.environ.get("KVRUN_WHICH_RAN"):
        with Path(os.environ["KVRUN_WHICH_RAN"]).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def summary(results: Iterable[tuple[str, str]], left: Iterable[str]) -> list[str]:
    """The lines. ``results`` are pairs of what a test ran and how it went."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for what, outcome in results:
        counts[what][outcome] += 1
    ran = [
        f"{what} ({', '.join(f'{number} {outcome}' for outcome, number in sorted(each.items()))})"
        for what, each in sorted(counts.items())
    ]
    missing = sorted({*left} - {*counts})
    return [
        *([f"real engines ran: {', '.join(ran)}"] if ran else []),
        *([f"left out here: {', '.join(missing)} (make test-long)"] if ran and missing else []),
    ]


def _results(reporter: pytest.TerminalReporter) -> Iterable[tuple[str, str]]:
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in reporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    yield str(value), outcome


def _runs(item: pytest.Item) -> set[str]:
    named = {str(marker.args[0]) for marker in item.iter_markers(_PROPERTY)}
    return named or ({"vLLM"} if item.get_closest_marker("engine") else set())


def _without_an_environment() -> set[str]:
    """What is not even collected where it is not installed."""
    sglang = {"SGLang", "checks of SGLang"} if importlib.util.find_spec("sglang") is None else set()
    stock = set() if "KVRUN_LLAMA_SERVER" in os.environ else {"a stock llama-server"}
    return sglang | stock
