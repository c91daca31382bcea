"""Daemons of one deployment that lease their keys from one key service."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import ErasureStatement
from kvrun.instance.protocol import Scrub
from support.byhand import BLOCK_BYTES, HandEngine, wait_for
from support.client import eventually, grant
from support.daemon import Daemon

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


@pytest.fixture
def box() -> Iterator[Box]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    settings = f'[keys]\nmode = "service"\nsocket = "{folder}/k/keys.sock"\nlease_s = 3\n'
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
    assert any("other instances" in text for text in certified(done).exclusions)
    assert done["unacknowledged"] == []
    again = grant(box.second, "alice")
    assert again.generation > theirs.generation
    assert grant(box.first, "alice").salt == again.salt
    assert box.first.count("erased") >= 1


def test_a_daemon_that_stands_still_is_named_and_zeroes_its_pages_when_it_wakes(box: Box) -> None:
    granted = grant(box.second, "alice")
    with HandEngine(box.second.socket, box.second.engine_token, scrubs=True) as engine:
        claim = box.second.claim("alice", granted.salt, granted.generation)
        matched = engine.match(claim, granted.salt)
        engine.store(matched.handle, [(HASH, PLAIN)])
        eventually(lambda: engine.load(matched.handle, [HASH]).plain == {HASH: PLAIN}, "sealed")
        box.second.pause()
        try:
            done = erase(box.first, "alice")
        finally:
            box.second.resume()
        named = f"process {box.second.pid}"
        assert any(named in text for text in certified(done).exclusions)
        assert engine.load(matched.handle, [HASH]).failed == [HASH]
        asked = wait_for(engine.scheduler, Scrub)
        assert isinstance(asked, Scrub)
        assert asked.everything or asked.owners


def test_a_service_that_was_killed_stops_the_cache_after_a_lease_and_comes_back(box: Box) -> None:
    granted = grant(box.first, "alice")
    with HandEngine(box.first.socket, box.first.engine_token, scrubs=True) as engine:
        claim = box.first.claim("alice", granted.salt, granted.generation)
        matched = engine.match(claim, granted.salt)
        engine.store(matched.handle, [(HASH, PLAIN)])
        eventually(lambda: engine.load(matched.handle, [HASH]).plain == {HASH: PLAIN}, "sealed")
        box.kill()
        eventually(lambda: engine.load(matched.handle, [HASH]).failed == [HASH], "the lease ends")
        box.serve()

        def admitted() -> bool:
            claim = box.first.claim("alice", granted.salt, granted.generation)
            found = engine.match(claim, granted.salt)
            return engine.load(found.handle, [HASH]).plain == {HASH: PLAIN}

        eventually(admitted, "the same keys are leased again")
