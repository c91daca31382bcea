"""The same named checks for every engine: ``kvrun engine check``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvrun.conformance.run import NAMES, run_checks

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]
FEW = ("statistics-true", "context-bound", "log-verifies", "erase-reaches-live-copies")


@pytest.mark.real("checks of llama.cpp")
def test_llama_cpp_meets_the_checks_that_take_seconds() -> None:
    pytest.importorskip("xllamacpp")
    rows = run_checks("llama.cpp", "demo", FEW)
    assert [row for row in rows if not row.met] == []
    assert {row.check for row in rows} == set(FEW)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("llama.cpp", marks=pytest.mark.real("checks of llama.cpp")),
        pytest.param("vllm", marks=pytest.mark.real("checks of vLLM")),
    ],
)
def test_an_engine_meets_every_check(engine: str) -> None:
    played = subprocess.run(
        [sys.executable, "-m", "kvrun", "engine", "check", "--engine", engine, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = json.loads(played.stdout)["rows"]
    assert [row for row in rows if not row["met"]] == []
    assert [row["check"] for row in rows] == list(NAMES)
    assert played.returncode == 0
