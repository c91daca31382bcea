"""Collecting as an operator does it: from a running daemon, on demand, with alerts and reasons."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import Trust
from kvrun.config import load_config
from kvrun.control.plane import ControlPlane
from support.client import eventually, grant
from support.daemon import Daemon

SMALL = '[audit]\nsegment_bytes = 65536\n[gateway]\nport = 1\n[engine]\ntransport = "unix"\n'


@pytest.fixture
def daemon(short_folder: Path) -> Iterator[Daemon]:
    running = Daemon(short_folder, settings=SMALL)
    running.start()
    (running.socket.parent / "admin.token").write_text(running.admin_token)
    yield running
    running.stop()


def kvrun(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvrun", *arguments, "--config", str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("KVRUN_")},
    )


def fill(daemon: Daemon) -> None:
    """Sessions until a segment has closed."""
    for number in range(1000):
        grant(daemon, f"tenant-{number}")
        if number % 20 == 0 and list(daemon.data.glob("audit/*.manifest.json")):
            return


def test_a_running_daemons_log_is_collected_verified_released_and_watched(
    daemon: Daemon, tmp_path: Path
) -> None:
    fill(daemon)
    done = kvrun(daemon, "audit", "collect", "--once", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["logs"][0]
    assert report["outcome"] == "collected"
    assert report["stored_size"] > 0
    assert report["freed_bytes"] > 0
    assert len(list(daemon.data.glob("audit/*.jsonl"))) == 1
    (folder,) = daemon.data.glob("storage/default/deployments/default/audit/*")
    size = report["stored_size"]
    trust = Trust(
        keys=read_keys(daemon.data / "audit/signer.vkey"),
        witnesses=read_keys(daemon.data / "control/collector.vkey"),
        remembered=((folder / f"checkpoint-{size:016d}").read_bytes(),),
    )
    verdict = verify_files([folder], trust)
    assert verdict.exit_code == 0, verdict.findings
    assert verdict.verdict(Aspect.WITNESSED) is Verdict.PASS
    assert verdict.next_seq == size
    early = tmp_path / "early"
    daemon.stop()
    shutil.copytree(daemon.data / "audit", early)
    assert kvrun(daemon, "audit", "collect", "--once").returncode == 0
    shutil.rmtree(daemon.data / "audit")
    shutil.copytree(early, daemon.data / "audit")
    again = kvrun(daemon, "audit", "collect", "--once", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["logs"][0]["outcome"] == "unchanged"
    for path in (daemon.data / "audit").iterdir():
        path.unlink()
    lost = kvrun(daemon, "audit", "collect", "--once")
    assert lost.returncode == 1
    assert "log_missing" in lost.stdout
    alerts = kvrun(daemon, "audit", "alerts", "--json")
    assert alerts.returncode == 1
    (alert,) = json.loads(alerts.stdout)
    assert (alert["kind"], alert["log"]) == ("log_missing", report["log"])
    shown = json.loads(kvrun(daemon, "status", "--json").stdout)["collected"]
    assert shown["alerts"] == 1
    assert shown["logs"][0]["stored"] == size
    assert Path(alert["evidence"], "remembered-checkpoint").read_text().startswith(report["log"])
    done = kvrun(daemon, "audit", "acknowledge", report["log"], "--reason", "disk replaced")
    assert done.returncode == 0, done.stderr
    assert kvrun(daemon, "audit", "alerts").returncode == 0
    done = kvrun(daemon, "instance", "retire", report["log"], "--reason", "disk lost", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reason"] == "disk lost"
    last = kvrun(daemon, "audit", "collect", "--once", "--json")
    assert json.loads(last.stdout)["logs"][0]["outcome"] == "retired"


def test_the_collector_goes_on_until_it_is_stopped_and_outlives_the_daemon(
    daemon: Daemon,
) -> None:
    plane = ControlPlane(load_config(daemon.config, {}))
    arguments = ["audit", "collect", "--every", "1", "--json", "--config", str(daemon.config)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvrun", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: bool(plane.memory.all()), "a first collection", 60)
        first = plane.memory.all()[0].seen.size
        daemon.stop()
        daemon.start()
        (daemon.socket.parent / "admin.token").write_text(daemon.admin_token)
        eventually(lambda: plane.memory.all()[0].seen.size > first, "a later collection", 60)
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert plane.alerts.all() == []
