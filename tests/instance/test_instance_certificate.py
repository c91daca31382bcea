"""What a running daemon certifies holds before every verifier, with the anchor that it exports."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from test_instance_requests import stored
from typer.testing import CliRunner

from kvrun.cli.main import app
from support import standalone
from support.byhand import HandEngine
from support.daemon import Daemon

OTHER = standalone.load()


@pytest.fixture
def certified(daemon: Daemon, engine: HandEngine, tmp_path: Path) -> dict[str, Path]:
    stored(daemon, engine, "alice", count=2)
    answer = daemon.admin("erase", kind="session", tenant="alice", session="default")
    assert isinstance(answer, dict)
    opening = tmp_path / "opening.json"
    opening.write_text(answer["opening"])
    exported = run("trust", "export", "--config", daemon.config)
    anchor = tmp_path / "anchor.json"
    anchor.write_text(exported)
    return {"certificate": Path(answer["certificate"]), "opening": opening, "anchor": anchor}


def run(*arguments: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(app, [str(item) for item in arguments])
    assert done.exit_code == status, done.output
    return done.stdout


def test_kvrun_verify_accepts_it_and_knows_whom_it_is_about(certified: dict[str, Path]) -> None:
    opened = ("--trust", certified["anchor"], "--opening", certified["opening"])
    shown = run("verify", certified["certificate"], *opened, "--subject", "default", "--json")
    report = json.loads(shown)
    codes = {item["check"]: item["code"] for item in report["checks"]}
    assert codes["signer"] == "trusted"
    assert codes["log"] == "included"
    assert codes["subject"] == "opened"
    assert codes["erasure"] in {"complete", "logical_only", "not_yet_complete"}
    wrong = run("verify", certified["certificate"], *opened, "--subject", "bob", status=1)
    assert "other_subject" in wrong
    assert run("verify", certified["certificate"], status=2).endswith("signer: self-asserted\n")


def test_the_stand_alone_verifier_says_the_same(certified: dict[str, Path]) -> None:
    opened = ("--trust", certified["anchor"], "--opening", certified["opening"])
    report = json.loads(run("verify", certified["certificate"], *opened, "--json"))
    checks = OTHER.check_certificate(
        certified["certificate"].read_bytes(),
        anchor=OTHER.read_anchor(certified["anchor"].read_bytes()),
        now=time.time(),
        opening=certified["opening"].read_bytes(),
    )
    assert [item[2] for item in checks] == [item["code"] for item in report["checks"]]


def test_no_id_of_a_person_is_in_it(certified: dict[str, Path]) -> None:
    report = json.loads(run("verify", certified["certificate"], "--json", status=2))
    assert "alice" not in json.dumps(report["statement"])
    assert "alice" in certified["opening"].read_text()


def test_it_can_be_read_as_a_page(certified: dict[str, Path], tmp_path: Path) -> None:
    html, pdf = tmp_path / "page.html", tmp_path / "page.pdf"
    views = ("--html", html, "--pdf", pdf, "--trust", certified["anchor"])
    run("certificate", "view", certified["certificate"], *views)
    assert html.read_text().startswith("<!doctype html>")
    assert pdf.read_bytes().startswith(b"%PDF-")
