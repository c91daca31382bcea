"""``kvrun doctor isolation`` where nothing runs, and what it shows of the last result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvrun.config import load_config
from kvrun.control.plane import ControlPlane
from kvrun.isolation.report import (
    Check,
    IsolationPredicate,
    Outcome,
    object_name,
    sign_result,
)
from kvrun.keys.signing import KeyPurpose, SigningRing

ISSUED = "2026-01-31T12:00:00.250000Z"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvrun", "doctor", "isolation", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "kvrun.toml").write_text(
        '[instance]\ndata_dir = "d"\n[gateway]\napi_keys_file = "keys.json"\n'
    )
    (tmp_path / "keys.json").write_text('{"keys": []}')
    (tmp_path / "keys.json").chmod(0o600)
    return tmp_path


def test_without_a_running_deployment_nothing_is_tested_and_no_key_is_left(home: Path) -> None:
    done = run(home, "--rounds", "0")
    assert done.returncode == 3
    assert "no instance daemon runs" in done.stderr
    assert json.loads((home / "keys.json").read_text()) == {"keys": []}
    assert run(home, "--last").returncode == 3
    assert run(home, "--rounds", "3").returncode == 2


def test_the_last_result_is_shown_with_who_signed_it_and_a_status_that_says_it(
    home: Path,
) -> None:
    config = load_config(home / "kvrun.toml", {})
    result = IsolationPredicate(
        issued_at=ISSUED,
        started_at=ISSUED,
        workspace="default",
        deployment="default",
        engine="vllm 0.32.0",
        version="0.0.0",
        prompt_tokens=900,
        restarted=False,
        outcome=Outcome.FAIL,
        checks=[Check(name="engine memory", outcome=Outcome.FAIL, detail="it [red]leaks[/]")],
        timing=None,
        erased=[],
    )
    ring = SigningRing(config.layout.signing_keys, now=lambda: 1.7e9)
    data = sign_result(result, b"", ring.load_or_create(KeyPurpose.EVIDENCE))
    name = f"default/deployments/default/{object_name(result)}"
    ControlPlane(config).storage().create(name, data)
    told = run(home.parent, "--last", "--json", "--config", str(home / "kvrun.toml"))
    assert told.returncode == 1, told.stderr
    answer = json.loads(told.stdout)
    assert (answer["stored"], answer["signer"]) == (name, "trusted")
    assert answer["result"]["outcome"] == "fail"
    shown = run(home, "--last")
    assert shown.returncode == 1
    assert "it [red]leaks[/]" in shown.stdout
