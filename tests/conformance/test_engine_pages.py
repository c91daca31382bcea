"""The engines' pages say what the records of their checks hold, and the console's statement too."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import kvrun.engines.checked as checked
from kvrun.conformance.page import PAGES, checks_section, with_checks
from kvrun.conformance.run import ALL, NAMES
from kvrun.engines.checked import LOG_CHECK, CheckRecord, CheckRow, produces_log, recorded
from kvrun.errors import KvrunError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LABEL = "interface-checked, not yet run on TensorRT-LLM"
RECORDS = sorted((DOCS / "engine-checks").glob("*.json"))


def record(**met: bool) -> CheckRecord:
    rows = tuple(CheckRow("x", name.replace("_", "-"), each, "") for name, each in met.items())
    return CheckRecord(
        engine="x", version="x 1", date="2026-11-30", commit="c", machine="m", rows=rows
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_the_records_hold(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert with_checks(text, PAGES[page]) == text, "run scripts/write_pages.py"


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_a_record_is_of_its_engine_and_of_checks_that_exist(file: Path) -> None:
    kept = recorded(file.stem)
    assert kept is not None
    assert {kept.engine} | {row.engine for row in kept.rows} == {file.stem}
    assert {row.check for row in kept.rows} <= set(NAMES)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", kept.date)


def test_both_engines_that_kvrun_starts_have_a_record() -> None:
    assert {file.stem for file in RECORDS} >= {"vllm", "llama.cpp"}


def test_a_check_that_was_not_run_or_not_met_is_never_shown_as_met() -> None:
    section = checks_section([("vllm", record(restart=False, log_verifies=True)), ("sglang", None)])
    results = {
        line.split("`")[1]: [cell.strip() for cell in line.split("|")[3:5]]
        for line in section.splitlines()
        if line.startswith("| `")
    }
    assert list(results) == list(NAMES)
    assert results["restart"] == ["**not met**", "not run"]
    assert results[LOG_CHECK] == ["met", "not run"]
    assert results["daemon-gone"] == ["not run", "not run"]
    assert f"1 of {len(NAMES)} checks met, {len(NAMES) - 2} not run. Commit" in section


@pytest.mark.parametrize(
    ("kept", "collectable"),
    [
        (record(log_verifies=True), True),
        (record(log_verifies=False), False),
        (record(restart=True), False),
        (None, False),
    ],
)
def test_a_log_is_promised_only_where_the_check_was_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: CheckRecord | None, collectable: bool
) -> None:
    monkeypatch.setattr(checked, "_HERE", tmp_path)
    if kept is not None:
        (tmp_path / "x.json").write_bytes(msgspec.json.encode(kept))
    recorded.cache_clear()
    try:
        assert produces_log("x") is collectable
    finally:
        recorded.cache_clear()


def test_a_file_that_is_no_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_HERE", tmp_path)
    (tmp_path / "broken.json").write_text('{"engine": "broken"}')
    with pytest.raises(KvrunError, match="no record"):
        recorded("broken")


def test_whatever_names_tensorrt_llm_says_that_it_was_not_run_there() -> None:
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "scripts" / "trtllm-acceptance"]
    told = {page: " ".join(page.read_text(encoding="utf-8").split()).lower() for page in pages}
    naming = {page.name for page, text in told.items() if "tensorrt" in text}
    assert "engines-tensorrt-llm.md" in naming
    assert [
        page for page, text in told.items() if "tensorrt" in text and LABEL.lower() not in text
    ] == []


def test_every_check_says_what_must_hold() -> None:
    for check in ALL.values():
        assert check.__doc__
