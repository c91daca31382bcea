"""The demo itself, with the real model and each engine: the recorded long run plays it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("engine", "warm"),
    [
        pytest.param("vllm", "engine memory", marks=pytest.mark.real("demo with vLLM")),
        pytest.param("llama.cpp", "memory", marks=pytest.mark.real("demo with llama.cpp")),
    ],
)
def test_every_step_of_the_demo_holds_with_the_real_model(
    short_folder: Path, engine: str, warm: str
) -> None:
    played = subprocess.run(
        [
            sys.executable, "-m", "kvrun", "demo", "--engine", engine, "--json",
            "--folder", str(short_folder / "demo"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr[-4000:]
    rows = json.loads(played.stdout)["rows"]
    reused = {row["step"]: row["reused_tokens"] for row in rows}
    tiers = {row["step"]: row["tier"] for row in rows}
    assert reused["1 cold"] == reused["3 bob"] == reused["8 erased"] == 0
    assert tiers["2 again"] == warm
    assert tiers["5 engine restart"] == "memory"
    assert tiers["6 both restart"] == "disk"
    assert reused["4 turn two"] > reused["2 again"] > 2000
