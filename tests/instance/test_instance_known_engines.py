"""An engine that runs but is not connected holds plaintext: certificates name it, it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvrun.config import load_config
from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.erasure.job import JobStore
from kvrun.instance.known_engines import EnginesFileError, KnownEngines, process_start
from kvrun.instance.protocol import Scrub, Scrubbed
from kvrun.launch.erasing import erase as erase_from_here
from support.byhand import HandEngine, wait_for
from support.client import eventually, grant
from support.daemon import Daemon

SAYS_HELLO = """
import sys
from pathlib import Path
from support.byhand import HandEngine
HandEngine(Path(sys.argv[1]), sys.argv[2], scrubs=True)
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def erase(daemon: Daemon, tenant: str) -> tuple[dict[str, Any], ErasureStatement]:
    done = daemon.admin("erase", kind="session", tenant=tenant, session="default")
    assert isinstance(done, dict)
    return done, stated(done["certificate"])


def stated(certificate: str) -> ErasureStatement:
    return decode_statement(payload_of(parse_certificate(Path(certificate).read_bytes())))


def confirmed(daemon: Daemon, erasure_id: str) -> bool:
    job = JobStore(daemon.data / "erasure" / "jobs").load(erasure_id)
    return job is not None and job.addenda == 1 and not job.unacknowledged


def test_an_idle_engine_is_named_after_a_restart_and_asked_when_it_comes_back(
    daemon: Daemon,
) -> None:
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True):
        grant(daemon, "alice")
    daemon.kill()
    daemon.start()
    done, statement = erase(daemon, "alice")
    assert [f"process {os.getpid()}" in name for name in statement.unacknowledged] == [True]
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
        asked = wait_for(engine.scheduler, Scrub)
        assert isinstance(asked, Scrub)
        assert len(asked.owners) == 1
        assert engine.scheduler.send(Scrubbed(asked.call, 3, 3, 0))
        eventually(lambda: confirmed(daemon, done["id"]), "an addendum is issued")


def test_an_engine_that_lost_its_connection_is_named_without_a_restart(daemon: Daemon) -> None:
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True):
        grant(daemon, "alice")
    _, statement = erase(daemon, "alice")
    assert len(statement.unacknowledged) == 1


def test_an_engine_that_ended_is_not_named(daemon: Daemon) -> None:
    arguments = (str(daemon.socket), daemon.engine_token)
    engine = subprocess.Popen(
        [sys.executable, "-c", SAYS_HELLO, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert engine.stdout is not None
    assert engine.stdout.readline() == b"connected\n"
    grant(daemon, "alice")
    daemon.kill()
    engine.communicate()
    daemon.start()
    _, statement = erase(daemon, "alice")
    assert statement.unacknowledged == []


def test_an_erasure_in_place_of_a_stopped_daemon_names_the_engine_that_runs(
    daemon: Daemon,
) -> None:
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True):
        grant(daemon, "alice")
    daemon.stop()
    asked_for = {"kind": "session", "tenant": "alice", "session": "default"}
    done = erase_from_here(load_config(daemon.config, {}), asked_for, offline=True)
    statement = stated(done.certificate)
    assert [f"process {os.getpid()}" in name for name in statement.unacknowledged] == [True]
    daemon.start()
    with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
        asked = wait_for(engine.scheduler, Scrub)
        assert isinstance(asked, Scrub)
        assert engine.scheduler.send(Scrubbed(asked.call, 1, 1, 0))
        eventually(lambda: confirmed(daemon, done.id), "an addendum is issued")


class TestFile:
    """What is written down about engines."""

    def test_it_is_private_and_outlives_who_wrote_it(self, tmp_path: Path) -> None:
        path = tmp_path / "erasure" / "engines.json"
        KnownEngines(path).add(os.getpid(), "vllm", scrubs=True)
        assert path.stat().st_mode & 0o777 == 0o600
        assert [engine.pid for engine in KnownEngines(path).running()] == [os.getpid()]

    def test_another_process_of_the_same_id_is_not_taken_for_it(self, tmp_path: Path) -> None:
        path = tmp_path / "engines.json"
        KnownEngines(path).add(os.getpid(), "vllm", scrubs=True)
        started = process_start(os.getpid())
        path.write_text(path.read_text().replace(started, started + "1"))
        assert KnownEngines(path).running() == []

    @pytest.mark.parametrize("content", ["", "{}", '{"version":2,"engines":[]}', "[" * 5000])
    def test_a_damaged_file_is_not_taken_for_no_engine(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "engines.json"
        path.write_text(content)
        with pytest.raises(EnginesFileError):
            KnownEngines(path)
