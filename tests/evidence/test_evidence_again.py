"""A closed period's bundle is the same whenever it is made, and whatever cut its making short."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from evidence_world import JANUARY, WORKSPACE_ID, World, moment, quarter, set_to
from typer.testing import CliRunner

from kvrun.cli.main import app
from kvrun.durable import replace_private_file
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.job import Job, JobState, JobStore
from kvrun.evidence.anchor import scope_anchor
from kvrun.evidence.check import check_bundle
from kvrun.evidence.export import Request, Step, export_bundle
from kvrun.evidence.jobs import Asked, EvidenceJob, EvidenceJobs
from kvrun.evidence.jobs import JobState as BundleState
from kvrun.evidence.period import parse_period
from kvrun.evidence.populations import Population
from kvrun.evidence.report import BundleCheck
from kvrun.finetune.store import FineTunes

REQUEST = "0b" * 12
ASKED = Request(JANUARY, sample=5)
KILLED = """
import os, signal, sys
from kvrun.cli.main import app
from kvrun.evidence import export

whole = export.export_bundle

def killed(*arguments, on_step, **more):
    def step(found):
        on_step(found)
        if found.what.startswith(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
    return whole(*arguments, on_step=step, **more)

export.export_bundle = killed
app(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return quarter(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def bundle(world: World) -> Path:
    return world.export("january.zip", ASKED)


def requests_in(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        lines = archive.read(Population.ERASURE_REQUESTS.file).decode().splitlines()
    return [row["request_id"] for row in csv.DictReader(lines)]


def test_nothing_that_happens_later_changes_a_byte(tmp_path: Path) -> None:
    world = quarter(tmp_path)
    jobs = JobStore(world.layout.erasure / "jobs")
    job = Job(
        id=REQUEST,
        kind=RequestKind.SESSION,
        workspace="acme",
        deployment="chat",
        requester="dpo",
        reference="DSAR-123",
        legal_basis="GDPR Art. 17(1)(b)",
        requested_at=moment("2026-01-20") + 60,
        commitments=[],
    )
    jobs.save(job)
    world.alert("2026-01-21")
    world.evaluation("early", "2026-01-15")
    first = world.export("first.zip", ASKED)
    assert requests_in(first) == ["er-1", REQUEST, "er-2"]

    # A request of the period is answered, and engines confirm late what was certified in it.
    jobs.save(msgspec.structs.replace(job, state=JobState.CERTIFIED))
    world.erase(REQUEST, "2026-01-20", "2026-03-02")
    world.erase(f"{REQUEST}-1", "2026-01-20", "2026-03-03", request=REQUEST)
    world.erase("er-1-1", "2026-01-11", "2026-03-04", request="er-1")
    (waiting,) = (alert for alert in world.plane.alerts.all() if alert.acknowledged_at is None)
    world.plane.alerts.acknowledge(waiting.id, "seen in March", moment("2026-03-05"))
    FineTunes(world.layout.finetunes).delete("early", "2026-03-05T00:00:00.000000Z")
    world.self_test("2026-03-05")
    world.day("2026-03-06")
    world.collect()
    (site,) = world.scope.sites
    deleted = replace(world.scope, sites=(replace(site, deleted_at=moment("2026-03-07")),))
    again = export_bundle(deleted, ASKED, world.root / "again.zip", now=world.clock)
    assert requests_in(again) == requests_in(first)
    assert again.read_bytes() == first.read_bytes()

    march = world.export("march.zip", Request(parse_period("2026-03-01", "2026-04-01")))
    assert requests_in(march) == ["er-1", REQUEST, REQUEST]
    report = check_bundle(march, anchor=world.anchor, now=moment("2026-04-02"))
    assert report.exit_code == 0, report.failed


def test_pruning_older_records_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    for day in ("2025-11-20", "2026-01-05", "2026-02-10"):
        world.day(day, set_to(strict="no"), sealed=14)
        world.collect()
    asked = Request(JANUARY, sample=5, full=True)
    first = world.export("first.zip", asked)
    world.file.write_text(world.file.read_text() + "[audit]\nretention_days = 60\n")
    world.day("2026-02-20")
    world.collect()
    assert list(world.layout.storage_root.rglob("*.tombstone"))
    again = world.export("again.zip", asked)
    assert again.read_bytes() == first.read_bytes()
    november = world.export("november.zip", Request(parse_period("2025-11-01", "2025-12-01")))
    with zipfile.ZipFile(november) as archive:
        assert [name for name in archive.namelist() if name.endswith(".tombstone")]
    for path in (again, november):
        report = check_bundle(path, anchor=world.anchor, now=moment("2026-02-21"))
        assert report.exit_code == 0, report.failed


def test_a_command_that_is_killed_goes_on_with_what_was_finished(
    world: World, bundle: Path
) -> None:
    path, config = world.root / "killed.zip", str(world.file)
    command = ["evidence", "export", "--from", "2026-01-01", "--to", "2026-02-01", "-c", config]
    made: set[int] = set()
    for what in ("sample of", "packing"):
        arguments = [sys.executable, "-c", KILLED, what, *command, "-o", str(path)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not path.exists()
        (noted,) = path.with_name("killed.zip.parts").glob("parts/a-*.json")
        made.add(noted.stat().st_mtime_ns)
    assert len(made) == 1, "the logs were read once"
    for name in ("killed.zip", "whole.zip"):
        run = CliRunner().invoke(app, [*command, "-o", str(world.root / name)])
        assert run.exit_code == 0, run.output
    assert path.read_bytes() == (world.root / "whole.zip").read_bytes()
    assert not path.with_name("killed.zip.parts").exists()


def test_what_a_control_plane_left_unfinished_says_so_and_goes_on(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    asked = Asked(WORKSPACE_ID, "", ASKED, "u-1")
    parts = tmp_path / asked.id / "parts"

    def stop(step: Step) -> None:
        if step.what.startswith("packing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_bundle(
            world.scope, ASKED, tmp_path / "x.zip", now=world.clock, on_step=stop, folder=parts
        )
    running = EvidenceJob(
        id=asked.id,
        workspace_id=WORKSPACE_ID,
        deployment_id="",
        since=JANUARY.since,
        until=JANUARY.until,
        sample=ASKED.sample,
        seed=ASKED.seed,
        full=False,
        asked_by="u-1",
        asked_at=world.clock(),
    )
    replace_private_file(tmp_path / asked.id / "job.json", msgspec.json.encode(running))
    jobs = EvidenceJobs(tmp_path, world.clock)
    assert jobs.get(asked.id).state is BundleState.INTERRUPTED
    jobs.start(asked, lambda: world.scope)
    jobs.wait(60)
    assert jobs.get(asked.id).state is BundleState.DONE
    assert jobs.bundle(asked.id).read_bytes() == bundle.read_bytes()
    assert not parts.exists()


def test_it_is_checked_where_nothing_else_is_known(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    """A process of its own, with an empty home folder and no configuration."""
    (tmp_path / "evidence.zip").write_bytes(bundle.read_bytes())
    (tmp_path / "anchor.json").write_bytes(scope_anchor(world.scope))
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}

    def verify(*more: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "kvrun", "verify", "evidence.zip", *more],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
            env={**kept, "HOME": str(tmp_path), "COLUMNS": "100"},
        )
        return done.returncode, done.stdout

    status, said = verify("--trust", "anchor.json")
    assert status == 0, said
    assert "self-asserted" not in said
    for check in BundleCheck:
        rows = [line for line in said.splitlines() if line.startswith(f"{check.value} ")]
        assert len(rows) == 1, check
    status, said = verify()
    assert status == 2
    assert said.splitlines()[-1] == "signer: self-asserted"
    assert {path.name for path in tmp_path.iterdir()} == {"evidence.zip", "anchor.json"}
