"""A failed test of whole processes shows what those processes said."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import e2e_rig
import pytest

_LINES = 40
_TELLING = ("kvrun", "without the cache", "WARNING", "ERROR", "Traceback")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the running stacks' process logs to the report of a failure."""
    report = yield
    if report.failed:
        for stack in e2e_rig.STACKS:
            for log in sorted(stack.config.layout.logs.glob("*.log*")):
                report.sections.append((f"{log.name}", _end_of(log)))
    return report


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if any(word in line for word in _TELLING)][-_LINES:])
