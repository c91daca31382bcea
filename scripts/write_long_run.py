"""Keeps what the long run showed: scripts/write_long_run.py [PART RESULTS.xml]

PART is a file with long tests, from the repository's root, or FILE::TEST; RESULTS.xml is what
pytest wrote of it with --junitxml. docs/long-run.json keeps the last result of each test, and
docs/long-run.md, which is written anew, says it a line a file. scripts/test-long.sh calls this.
"""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvrun.bench.machine import describe_commit, describe_machine

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "long-run.json", DOCS / "long-run.md"
HEAD = """# The recorded long run

What takes too long for `make test` runs in `make test-long`: the demos, the checks of the engines,
kills of daemons under load, fine-tunes from beginning to end, and SGLang in an environment of its
own. `scripts/test-long.sh FILE` runs one file of it. Each run leaves its results in
[long-run.json](long-run.json), from which this page is written; a file that is not in the table has
no recorded run. The commit is the one that ran; it may have been rebased before it was published.
A commit with `+` had changes that were not committed. The load says how busy the machine was at the
end.

"""


@dataclass(frozen=True, slots=True)
class Result:
    """The last run of one test."""

    test: str
    outcome: str
    seconds: float
    date: str
    commit: str
    machine: str

    @property
    def file(self) -> str:
        """The file that the test is in."""
        return self.test.partition("::")[0]


def read_results(results: Path, part: str, date: str, commit: str, machine: str) -> list[Result]:
    """What pytest wrote; where it did not get to write, the part itself as broken off."""
    file = part.partition("::")[0]
    try:
        cases = ElementTree.parse(results).getroot().iter("testcase")  # noqa: S314 - our own file
    except (OSError, ElementTree.ParseError):
        return [Result(part, "broken off", 0.0, date, commit, machine)]
    return [
        Result(
            f"{file}::{case.get('name')}",
            _outcome(case),
            round(float(case.get("time", "0")), 1),
            date,
            commit,
            machine,
        )
        for case in cases
    ]


def merged(known: list[Result], part: str, new: list[Result]) -> list[Result]:
    """``known`` with a part's results in the place of what was known of it."""
    tests = {result.test for result in new}
    kept = [result for result in known if part not in (result.test, result.file)]
    return sorted([r for r in kept if r.test not in tests] + new, key=lambda r: r.test)


def page(results: list[Result]) -> str:
    """The page, a line a file; tests that did not pass by their names."""
    lines = ["| file | tests | seconds | when | commit | load |", f"|{' --- |' * 6}"]
    for file in sorted({result.file for result in results}):
        of_file = [result for result in results if result.file == file]
        outcomes = Counter(result.outcome for result in of_file)
        cells = (
            f"`{file}`",
            ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in sorted(outcomes)),
            f"{sum(result.seconds for result in of_file):.0f}",
            _each(result.date for result in of_file),
            _each(result.commit for result in of_file),
            _each(_load(result.machine) for result in of_file),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [""]
    lines += [
        f"* **{result.outcome}**: `{result.test}`"
        for result in results
        if result.outcome != "passed"
    ]
    lines += [f"* {machine}" for machine in sorted({_without_load(r.machine) for r in results})]
    return HEAD + "\n".join(lines) + "\n"


def known_results() -> list[Result]:
    """What docs/long-run.json holds."""
    return [Result(**row) for row in json.loads(RECORD.read_text(encoding="utf-8"))]


def main(arguments: list[str]) -> None:
    """Take in one part's results if there are any, and write the page."""
    known = known_results() if RECORD.exists() else []
    if arguments:
        part, results = arguments
        today = datetime.now(UTC).date().isoformat()
        new = read_results(Path(results), part, today, describe_commit(), describe_machine())
        known = merged(known, part, new)
    rows = ",\n".join(json.dumps(asdict(result)) for result in known)
    RECORD.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    PAGE.write_text(page(known), encoding="utf-8")


def _outcome(case: ElementTree.Element) -> str:
    names = {child.tag for child in case}
    if names & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in names else "passed"


def _each(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))


def _load(machine: str) -> str:
    found = re.search(r", load ([0-9.]+)", machine)
    return found[1] if found else ""


def _without_load(machine: str) -> str:
    return re.sub(r", load [0-9.]+", "", machine)


if __name__ == "__main__":
    main(sys.argv[1:])
