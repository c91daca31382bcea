"""Puts what benches printed into docs/benchmarks.md: scripts/write_benchmarks.py FOLDER

FOLDER holds files such as ``seal.json``, made with ``kvrun bench seal --json > seal.json``; options
are part of the name: ``ttft-tokens-4000.json``. A file replaces machine, commit and table of its
command's section, or adds them to one that has none; the text around them stays.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
SECTION = re.compile(r"(## `kvrun bench ([^`\n]+)`\n)(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^[^\n]*; commit [^\n]*\n\n(?:\|[^\n]*\n)+", re.MULTILINE)


def main(folder: Path) -> None:
    """Replace the tables of the benches that have a file."""

    def section(match: re.Match[str]) -> str:
        heading, command, text = match.groups()
        file = folder / f"{re.sub('[^a-z0-9]+', '-', command)}.json"
        if not file.is_file():
            return match[0]
        table = _table(json.loads(file.read_text()))
        if not TABLE.search(text):
            return f"{heading}{text.rstrip()}\n\n{table}\n"
        return heading + TABLE.sub(lambda _: table, text, count=1)

    PAGE.write_text(SECTION.sub(section, PAGE.read_text()))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['machine']}; commit {report['commit']}", ""]
    lines += ["| metric | value | goal | met | against |", "| --- | --- | --- | --- | --- |"]
    for row in report["rows"]:
        value = "-" if row["value"] is None else f"{_short(row['value'])} {row['unit']}"
        met = {True: "yes", False: "**no**", None: "?" if row["goal"] else ""}[row["met"]]
        lines.append(
            f"| {row['metric']} | {value} | {row['goal'] or ''} | {met} | {row['against']} |"
        )
    return "\n".join(lines) + "\n"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
