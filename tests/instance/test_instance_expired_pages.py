"""Pages of sessions whose keys are gone without an erasure: engines are asked all the same."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.instance.protocol import Scrub, Scrubbed, page_owner
from support.byhand import HandEngine, wait_for
from support.client import eventually, grant
from support.daemon import Daemon

SOON = "import kvrun.instance.daemon as d; d._EXPIRY_EVERY_S = 0.2"
IDLE = "[keys]\nidle_timeout_s = 1\n"


@contextmanager
def running(settings: str = "", prelude: str = "") -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    daemon = Daemon(folder, settings=settings, prelude=prelude)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Erasing:
    """An erasure that runs beside the test, which plays the engine meanwhile."""

    def __init__(self, daemon: Daemon, **asked: str) -> None:
        self._done: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, args=(daemon, asked))
        self._thread.start()

    def _run(self, daemon: Daemon, asked: dict[str, str]) -> None:
        answer = daemon.admin("erase", confirmed="yes", **asked)
        assert isinstance(answer, dict)
        self._done = answer

    def statement(self) -> ErasureStatement:
        self._thread.join()
        certificate = Path(self._done["certificate"])
        return decode_statement(payload_of(parse_certificate(certificate.read_bytes())))


def asked(engine: HandEngine) -> Scrub:
    found = wait_for(engine.scheduler, Scrub)
    assert isinstance(found, Scrub)
    return found


def test_an_engine_is_asked_when_a_session_expires() -> None:
    with (
        running(IDLE, SOON) as daemon,
        HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine,
    ):
        owner = page_owner(grant(daemon, "alice").salt)
        assert asked(engine).owners == (owner,)


def test_a_tenant_without_keys_is_not_certified_over_an_engine_that_owes_expired_pages() -> None:
    with (
        running(IDLE, SOON) as daemon,
        HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine,
    ):
        owner = page_owner(grant(daemon, "alice").salt)
        of_expiry = asked(engine)
        silent = Erasing(daemon, kind="tenant", tenant="alice")
        assert asked(engine).owners == (owner,)
        statement = silent.statement()
        assert (statement.keys, len(statement.unacknowledged)) == ([], 1)
        assert engine.scheduler.send(Scrubbed(of_expiry.call, 2, 2, 0))
        eventually(
            lambda: Erasing(daemon, kind="tenant", tenant="alice").statement().unacknowledged == [],
            "nothing is owed once the engine confirmed",
        )


def test_what_an_engine_owes_of_expired_sessions_outlives_the_daemon() -> None:
    with running(IDLE, SOON) as daemon:
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            owner = page_owner(grant(daemon, "alice").salt)
            asked(engine)
            written = daemon.data / "erasure" / "engines.json"
            eventually(lambda: b'"owners"' in written.read_bytes(), "it is written down")
        daemon.kill()
        daemon.start()
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            assert asked(engine).owners == (owner,)


def test_a_session_that_expired_when_it_was_opened_again_is_asked_for_too() -> None:
    with (
        running(IDLE) as daemon,
        HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine,
    ):
        old = grant(daemon, "alice")
        deadline = time.monotonic() + 20
        new = old
        while new == old and time.monotonic() < deadline:
            time.sleep(1.05)  # no use for longer than the timeout is what expires it
            new = grant(daemon, "alice")
        erasing = Erasing(daemon, kind="session", tenant="alice", session="default")
        owners: set[bytes] = set()
        while page_owner(new.salt) not in owners:
            found = asked(engine)
            owners |= {*found.owners}
            assert engine.scheduler.send(Scrubbed(found.call, 1, 1, 0))
        assert page_owner(old.salt) in owners
        assert erasing.statement().unacknowledged == []


@pytest.mark.parametrize(
    ("settings", "scope"),
    [
        ("", {"kind": "deployment"}),
        ("[deployment]\nstateless = true\n", {"kind": "tenant", "tenant": "alice"}),
    ],
    ids=["deployment-without-keys", "stateless"],
)
def test_an_engine_is_asked_for_all_pages_where_nobody_knows_whose_they_are(
    settings: str, scope: dict[str, str]
) -> None:
    with (
        running(settings) as daemon,
        HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine,
    ):
        erasing = Erasing(daemon, **scope)
        found = asked(engine)
        assert found.everything
        assert engine.scheduler.send(Scrubbed(found.call, 7, 7, 0))
        statement = erasing.statement()
        assert (statement.keys, statement.gpu.scrubbed) == ([], 7)
