"""The demo itself, with the real model: the recorded long run plays it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.timeout(3600)]


def test_every_step_of_the_demo_holds_with_the_real_model(short_folder: Path) -> None:
    played = subprocess.run(
        [sys.executable, "-m", "kvrun", "demo", "--json", "--folder", str(short_folder / "demo")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr[-4000:]
    rows = json.loads(played.stdout)["rows"]
    reused = {row["step"]: row["reused_tokens"] for row in rows}
    tiers = {row["step"]: row["tier"] for row in rows}
    assert reused["1 cold"] == reused["3 bob"] == reused["8 erased"] == 0
    assert tiers["2 again"] == "engine memory"
    assert tiers["5 engine restart"] == "memory"
    assert tiers["6 both restart"] == "disk"
    assert reused["4 turn two"] > reused["2 again"] > 2000
