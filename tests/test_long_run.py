"""docs/long-run.md says what docs/long-run.json holds, and what pytest wrote gets there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
XML = """<testsuites><testsuite name="pytest" tests="3">
<testcase classname="tests.x" name="test_one[a]" time="61.04" />
<testcase classname="tests.x" name="test_two" time="2.0"><failure message="no" /></testcase>
<testcase classname="tests.x" name="test_three" time="0.1"><skipped /></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("long_run", ROOT / "scripts/write_long_run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_the_record_holds(script: ModuleType) -> None:
    results = script.known_results()
    assert script.PAGE.read_text(encoding="utf-8") == script.page(results)
    assert {result.file for result in results if not (ROOT / result.file).is_file()} == set()


def test_results_replace_what_was_known_of_their_part_only(
    script: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "x.xml").write_text(XML)

    def read(part: str, date: str) -> list[object]:
        found: list[object] = script.read_results(
            tmp_path / "x.xml", part, date, "c", "m, load 3.1"
        )
        return found

    known = script.merged([], "tests/b.py", read("tests/b.py", "1"))
    known = script.merged(known, "tests/a.py", read("tests/a.py", "2"))
    known = script.merged(known, "tests/a.py", [])
    one = script.Result("tests/b.py::test_two", "passed", 3.0, "3", "d", "m, load 1.0")
    known = script.merged(known, one.test, [one])
    text = script.page(known)
    assert "tests/a.py" not in text
    assert "| `tests/b.py` | 2 passed, 1 skipped | 64 | 1, 3 | c, d | 1.0, 3.1 |" in text
    assert "**skipped**: `tests/b.py::test_three`" in text
    assert "* m\n" in text


def test_a_run_that_was_cut_off_is_recorded_as_that(script: ModuleType, tmp_path: Path) -> None:
    (result,) = script.read_results(tmp_path / "none.xml", "tests/a.py", "1", "c", "m")
    assert (result.test, result.outcome) == ("tests/a.py", "broken off")
    assert "**broken off**: `tests/a.py`" in script.page([result])
