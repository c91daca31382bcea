"""docs/claims.md: each sentence of the product documents has a row; what a row names exists."""

import ast
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
def named_in(file: Path) -> frozenset[str]:
    """The names of the tests in ``file``, found without running it; empty where it is not there."""
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, functions) and node.name.startswith("test_")
    )


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


def test_every_sentence_has_exactly_one_row() -> None:
    assert sorted(row.sentence for row in ROWS) == sorted(SENTENCES)
    assert len(SENTENCES) == len(set(SENTENCES)) > 60


@pytest.mark.parametrize("name", NAMED)
def test_what_a_row_names_is_there(name: str) -> None:
    assert exists(name), f"docs/claims.md names {name}, which is no test and no command"


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
