"""Daemons of one deployment that lease their keys from one key service."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.erasure.job import JobState, JobStore
from kvrun.errors import KvrunError
from kvrun.instance.protocol import Scrub, Scrubbed
from kvrun.keys.signing import KeyPurpose, SigningRing
from support.byhand import BLOCK_BYTES, HandEngine, wait_for
from support.client import eventually, grant
from support.daemon import Daemon
from support.unix_http import get

HASH = b"h" * 32
PLAIN = b"p" * BLOCK_BYTES


@dataclass
class Box:
    """A machine with a key service and two daemons of one deployment."""

    folder: Path
    first: Daemon
    second: Daemon
    service: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        """Start the key service and wait until it answers."""
        command = [sys.executable, "-m", "kvrun", "keys", "serve", "--config"]
        with (self.folder / "keys.log").open("ab") as log:
            self.service = subprocess.Popen(
                [*command, str(self.first.config)], stdout=log, stderr=log
            )
        eventually(self._answers, (self.folder / "keys.log").read_text(), 60)

    def kill(self) -> None:
        """End the key service as a power cut would."""
        assert self.service is not None
        self.service.kill()
        self.service.wait()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / "k" / "keys.sock")) == 0


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    settings = (
        f'[keys]\nmode = "service"\nsocket = "{folder}/k/keys.sock"\nlease_s = 3\n'
        f'metrics_socket = "{folder}/k/metrics.sock"\n'
    )
    daemons = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        daemons.append(Daemon(folder / name, settings=settings))
    made = Box(folder, *daemons)
    made.serve()
    for daemon in daemons:
        daemon.start()
    yield made
    for daemon in daemons:
        daemon.stop()
    made.kill()
    shutil.rmtree(folder, ignore_errors=True)


def erase(daemon: Daemon, tenant: str) -> dict[str, object]:
    done = daemon.admin("erase", kind="tenant", tenant=tenant, requester="tests", confirmed="yes")
    assert isinstance(done, dict)
    return done


def certified(done: dict[str, object]) -> ErasureStatement:
    shown = CertificateArchive(Path(str(done["certificate"])).parent).statements()
    (statement,) = [item for item in shown if item.id == done["id"]]
    return statement


def test_the_service_says_that_it_lives_is_ready_and_whom_it_serves(box: Box) -> None:
    place = box.folder / "k" / "metrics.sock"
    grant(box.first, "alice")
    grant(box.second, "alice")
    assert get(place, "/healthz") == (200, '{"status":"ok"}')
    assert get(place, "/readyz") == (200, '{"status":"ready","keys":"keys may be used"}')
    status, text = get(place, "/metrics")
    assert status == 200
    labels = '{deployment="default",workspace="default"}'
    assert f"kvrun_key_service_daemons{labels} 2.0" in text
    assert f"kvrun_key_lease_valid{labels} 1.0" in text


def test_an_erasure_by_one_daemon_ends_what_the_other_does_and_is_certified(box: Box) -> None:
    ours, theirs = grant(box.first, "alice"), grant(box.second, "alice")
    assert (ours.salt, ours.generation) == (theirs.salt, theirs.generation)
    engine = HandEngine(box.second.socket, box.second.engine_token)
    with engine:
        claim = box.second.claim("alice", theirs.salt, theirs.generation)
        matched = engine.match(claim, theirs.salt)
        engine.store(matched.handle, [(HASH, PLAIN)])
        eventually(lambda: engine.load(matched.handle, [HASH]).plain == {HASH: PLAIN}, "sealed")
        done = erase(box.first, "alice")
        assert engine.load(matched.handle, [HASH]).failed == [HASH]
    assert done["unacknowledged"] == []
    # What the other daemon's engine cannot do is said by this one's certificate.
    assert any("zeroes none" in text for text in certified(done).exclusions)
    again = grant(box.second, "alice")
    assert again.generation > theirs.generation
    assert grant(box.first, "alice").salt == again.salt
    assert box.first.count("erased") >= 1


def sealed_files(daemon: Daemon) -> set[Path]:
    return {path for path in (daemon.data / "storage").rglob("kv/**/*") if path.is_file()}


def test_files_of_a_daemon_that_was_started_anew_stay_and_the_certificate_says_so(box: Box) -> None:
    granted = grant(box.second, "dora")
    before = sealed_files(box.second)
    with HandEngine(box.second.socket, box.second.engine_token) as engine:
        claim = box.second.claim("dora", granted.salt, granted.generation)
        matched = engine.match(claim, granted.salt)
        engine.store(matched.handle, [(HASH, PLAIN)])
        eventually(lambda: engine.load(matched.handle, [HASH]).plain == {HASH: PLAIN}, "sealed")
    box.second.admin("flush")
    left = sealed_files(box.second) - before
    assert left
    box.second.stop()
    box.second.start()
    done = erase(box.first, "dora")
    assert left <= sealed_files(box.second)
    assert any("on the disks of other daemons" in text for text in certified(done).exclusions)


def addendum(done: dict[str, object], number: int = 1) -> ErasureStatement | None:
    path = Path(str(done["certificate"])).parent / f"{done['id']}-{number}.json"
    if not path.exists():
        return None
    return decode_statement(payload_of(parse_certificate(path.read_bytes())))


def confirms(engine: HandEngine, done: dict[str, object]) -> bool:
    """Zero a page for whatever the engine is asked; whether an addendum says so."""
    asked = wait_for(engine.scheduler, Scrub, timeout_s=0.1)
    if isinstance(asked, Scrub):
        assert engine.scheduler.send(Scrubbed(asked.call, 1, 1, 0))
    return addendum(done) is not None


def test_a_daemon_that_stands_still_is_named_until_its_pages_are_zero(box: Box) -> None:
    granted = grant(box.second, "bob")
    with HandEngine(box.second.socket, box.second.engine_token, scrubs=True) as engine:
        claim = box.second.claim("bob", granted.salt, granted.generation)
        matched = engine.match(claim, granted.salt)
        engine.store(matched.handle, [(HASH, PLAIN)])
        eventually(lambda: engine.load(matched.handle, [HASH]).plain == {HASH: PLAIN}, "sealed")
        box.second.pause()
        try:
            done = erase(box.first, "bob")
        finally:
            box.second.resume()
        (named,) = certified(done).unacknowledged
        (shown,) = SigningRing(box.second.data / "signing", now=time.time).all_keys(
            KeyPurpose.INSTANCE
        )
        instance = f"instance key {shown.key_id} (process {box.second.pid})"
        assert f"{instance}: keys and pages in engine memory" in named
        assert done["unacknowledged"] == [named]
        assert engine.load(matched.handle, [HASH]).failed == [HASH]
        asked = wait_for(engine.scheduler, Scrub)
        assert isinstance(asked, Scrub)
        assert addendum(done) is None, "its engine has not zeroed anything"
        assert engine.scheduler.send(Scrubbed(asked.call, 1, 1, 0))
        eventually(lambda: confirms(engine, done), "an addendum is issued")
    later = addendum(done)
    assert later is not None
    assert later.unacknowledged == []
    assert later.gpu.scrubbed == 1
    assert later.keys == certified(done).keys


def test_an_erasure_that_is_killed_while_it_waits_names_the_daemon_all_the_same(box: Box) -> None:
    """And a key service that was started since learns of the daemon that owes an answer."""
    assert grant(box.second, "carol").salt
    jobs = JobStore(box.first.data / "erasure" / "jobs")
    before = {job.id for job in jobs.jobs()}

    def is_at(state: JobState) -> bool:
        return [job.state for job in jobs.jobs() if job.id not in before] == [state]

    with HandEngine(box.second.socket, box.second.engine_token, scrubs=True) as engine:
        box.second.pause()
        try:
            asking = threading.Thread(target=refused, args=(box.first, "carol"))
            asking.start()
            eventually(lambda: is_at(JobState.DESTROYED), "destroyed")
            box.first.kill()
            asking.join()
            box.first.start()
            eventually(lambda: is_at(JobState.CERTIFIED), "certified")
            box.kill()
        finally:
            box.second.resume()
        (job,) = [job for job in jobs.jobs() if job.id not in before]
        made = (box.first.data / "storage").rglob(f"certificates/{job.id}.json")
        done: dict[str, object] = {"id": job.id, "certificate": next(made)}
        (named,) = certified(done).unacknowledged
        assert f"process {box.second.pid})" in named
        assert [step.name for step in certified(done).steps] == [
            str(state) for state in list(JobState)[1:-1]
        ]
        box.serve()
        eventually(lambda: confirms(engine, done), "an addendum is issued", 30)
    later = addendum(done)
    assert later is not None
    assert later.unacknowledged == []
    assert addendum(done, 2) is None


def refused(daemon: Daemon, tenant: str) -> None:
    with contextlib.suppress(KvrunError):
        erase(daemon, tenant)


def test_a_service_that_was_killed_stops_the_cache_after_a_lease_and_comes_back(box: Box) -> None:
    granted = grant(box.first, "dave")
    with HandEngine(box.first.socket, box.first.engine_token, scrubs=True) as engine:
        claim = box.first.claim("dave", granted.salt, granted.generation)
        matched = engine.match(claim, granted.salt)
        engine.store(matched.handle, [(HASH, PLAIN)])
        eventually(lambda: engine.load(matched.handle, [HASH]).plain == {HASH: PLAIN}, "sealed")
        box.kill()
        eventually(lambda: engine.load(matched.handle, [HASH]).failed == [HASH], "the lease ends")
        box.serve()

        def admitted() -> bool:
            claim = box.first.claim("dave", granted.salt, granted.generation)
            found = engine.match(claim, granted.salt)
            return engine.load(found.handle, [HASH]).plain == {HASH: PLAIN}

        eventually(admitted, "the same keys are leased again")
