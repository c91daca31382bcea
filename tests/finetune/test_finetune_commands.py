"""``kvrun finetune`` as people and scripts type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import finetune_rig as rig
import pytest

from kvrun.finetune.gate import check_served
from kvrun.keys.signing import SigningRing

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment's folder with a base model and data in it."""
    folder = tmp_path_factory.mktemp("home")
    rig.make_site(folder)
    (folder / "kvrun.toml").write_text('[instance]\ndata_dir = "d"\n')
    lines = "".join(json.dumps(line) + "\n" for line in rig.pairs())
    (folder / "train.jsonl").write_text(lines)
    return folder


def run(home: Path, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kvrun", "finetune", *arguments],
        cwd=home, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if status == 2 else done.stdout


@pytest.mark.long
def test_from_data_to_a_verified_model_and_away_again(home: Path) -> None:
    made = json.loads(
        run(home, "create", "--base", "base", "--data", "train.jsonl", "--epochs", "1",
            "--max-tokens", "64", "--json")
    )  # fmt: skip
    folder = Path(made["folder"])
    assert folder == home / "d" / "finetunes" / "base-train"
    ring = SigningRing(home / "d" / "signing", now=lambda: 2e9)
    assert check_served(folder, ring.public_keys(), "") is not None
    listed = json.loads(run(home, "list", "--json"))
    assert [item["name"] for item in listed["finetunes"]] == ["base-train"]
    assert "verified" in run(home, "verify", "base-train")
    assert "exact matches" in run(home, "show", "base-train")
    with (folder / "config.json").open("a") as file:
        file.write(" ")
    assert "changed: config.json" in run(home, "verify", str(folder), status=1)
    run(home, "delete", "base-train")
    assert "no fine-tune" in run(home, "list")
    assert "deleted" in run(home, "list", "--all")
    run(home, "verify", "base-train", status=2)


def test_bad_lines_are_said_before_anything_is_loaded(home: Path) -> None:
    (home / "bad.jsonl").write_text('{"prompt": "a"}\n')
    said = run(home, "create", "--base", "base", "--data", "bad.jsonl", status=2)
    assert "line 1" in said
    run(home, "cancel", "base-bad", status=2)
