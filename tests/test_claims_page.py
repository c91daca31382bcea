"""docs/claims.md: each sentence of the product documents has a row; what a row names exists.

What runs in the long run only has passed there, by its record.
"""

import ast
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from kvrun.cli.main import app

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "claims.md"
RECORD = TESTS.parent / "docs" / "long-run.json"
SENTENCES = (TESTS / "vectors" / "product-claims.txt").read_text(encoding="utf-8").splitlines()
STATES = ("held", "limited", "not yet", "not ours")


@dataclass(frozen=True)
class Row:
    """A sentence of the product documents, how far it holds, and what shows it."""

    sentence: str
    state: str
    detail: str
    shown_by: tuple[str, ...]


def rows_of(page: str) -> list[Row]:
    """The rows of every table of ``page``. Raises ValueError for one of another form."""
    rows = []
    for line in page.splitlines():
        if not line.startswith("| ") or line.startswith(("| sentence |", "| --- |")):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3:
            raise ValueError(f"not three cells: {line}")
        sentence, status, shown_by = cells
        state = re.fullmatch(r"\*\*([a-z ]+)\*\*:?\s*(.*)", status)
        if state is None or state[1] not in STATES:
            raise ValueError(f"no known status: {status}")
        named = tuple(re.findall(r"`([^`]+)`", shown_by))
        if shown_by != ", ".join(f"`{name}`" for name in named):
            raise ValueError(f"not a list of tests and commands: {shown_by}")
        rows.append(Row(sentence, state[1], state[2], named))
    return rows


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))
NAMED = sorted({name for row in ROWS for name in row.shown_by})


@cache
def named_in(file: Path) -> dict[str, bool]:
    """The tests in ``file``, and whether all of each is marked long; found without running it."""
    if not file.is_file():
        return {}
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    marks = [
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for mark in (node.value.elts if isinstance(node.value, ast.List) else [node.value])
    ]
    return {
        node.name: "pytest.mark.long" in map(ast.unparse, marks + node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, functions) and node.name.startswith("test_")
    }


@cache
def root_command() -> Any:
    """The command line, built once."""
    return typer.main.get_command(app)


def is_command(words: list[str]) -> bool:
    """Whether ``kvrun`` has the command (or group) that ``words`` name, word by word."""
    here = root_command()
    for word in words:
        here = getattr(here, "commands", {}).get(word)
    return bool(words) and here is not None


def exists(name: str) -> bool:
    """Whether the test (``folder/test_file.py::test_name``) or command (``kvrun ...``) is there."""
    if name.startswith("kvrun "):
        return is_command(name.split()[1:])
    file, _, test = name.partition("::")
    return test in named_in(TESTS / file)


def is_long(name: str) -> bool:
    """Whether ``name`` is a test that runs in the long run only."""
    file, _, test = name.partition("::")
    return named_in(TESTS / file).get(test, False)


def recorded(name: str, record: list[dict[str, Any]]) -> set[str]:
    """How the last run of the test ``name`` in ``record`` ended, with each of its parameters."""
    return {row["outcome"] for row in record if row["test"].partition("[")[0] == f"tests/{name}"}


def test_every_sentence_has_exactly_one_row() -> None:
    assert sorted(row.sentence for row in ROWS) == sorted(SENTENCES)
    assert len(SENTENCES) == len(set(SENTENCES)) > 60


@pytest.mark.parametrize("name", NAMED)
def test_what_a_row_names_is_there(name: str) -> None:
    assert exists(name), f"docs/claims.md names {name}, which is no test and no command"


@pytest.mark.parametrize("name", [name for name in NAMED if is_long(name)])
def test_what_is_too_long_for_every_run_has_passed_in_the_recorded_one(name: str) -> None:
    outcomes = recorded(name, json.loads(RECORD.read_text(encoding="utf-8")))
    assert outcomes == {"passed"}, f"run scripts/test-long.sh tests/{name}"


@pytest.mark.parametrize(
    ("name", "long"),
    [
        (
            "engines/test_vllm_object.py::test_answers_are_the_same_cold_and_from_the_bucket_alone",
            True,
        ),
        (
            "console/test_console_chromium.py::test_the_demo_story_with_a_real_engine_in_chromium",
            True,
        ),
        ("console/test_console_chromium.py::test_the_demo_story_in_chromium", False),
        ("test_claims_page.py::test_that_was_taken_away", False),
        ("kvrun verify", False),
    ],
)
def test_the_mark_of_a_file_and_of_a_test_is_seen(name: str, long: bool) -> None:
    assert is_long(name) is long


def test_a_record_counts_by_file_and_name_with_every_parameter() -> None:
    rows = [
        ("a.py::test_x[1]", "passed"),
        ("a.py::test_x[2]", "skipped"),
        ("a.py::test_xy", "failed"),
    ]
    record = [{"test": f"tests/{test}", "outcome": outcome} for test, outcome in rows]
    assert recorded("a.py::test_x", record) == {"passed", "skipped"}
    assert recorded("b.py::test_x", record) == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence[:60])
def test_a_status_is_never_claimed_without_its_reason(row: Row) -> None:
    if row.state in ("held", "limited"):
        assert row.shown_by, "nothing shows it"
    if row.state == "limited" or (row.state == "not yet" and row.shown_by):
        assert row.detail, "the limit, or what is missing, is not said"


@pytest.mark.parametrize(
    "name",
    [
        "test_claims_page.py::test_that_was_taken_away",
        "nowhere/test_nothing.py::test_what_a_row_names_is_there",
        "test_claims_page.py",
        "kvrun erase everything",
        "kvrun certify",
        "make demo",
    ],
)
def test_what_is_gone_is_noticed(name: str) -> None:
    assert not exists(name)


@pytest.mark.parametrize(
    "line",
    [
        "| A sentence. | **held** |",
        "| A sentence. | **perhaps** | `kvrun verify` |",
        "| A sentence. | held | `kvrun verify` |",
        "| A sentence. | **held** | the tests |",
    ],
)
def test_a_row_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not|no known"):
        rows_of(line)
