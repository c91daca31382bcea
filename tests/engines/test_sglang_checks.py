"""The checks that every engine must meet, with a real SGLang: ``kvrun engine check``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("sglang", reason="runs in scripts/sglang-venv.sh's environment")

from kvrun.conformance.run import NAMES

pytestmark = [
    pytest.mark.long,
    pytest.mark.real("checks of SGLang"),
    pytest.mark.timeout(3600),
]


def test_sglang_meets_every_check() -> None:
    played = subprocess.run(
        [sys.executable, "-m", "kvrun", "engine", "check", "--engine", "sglang", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = json.loads(played.stdout)["rows"]
    assert [row for row in rows if not row["met"]] == []
    assert [row["check"] for row in rows] == list(NAMES)
    assert played.returncode == 0
