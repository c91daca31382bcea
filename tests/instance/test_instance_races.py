"""What happens at the same time: an erasure and a question, a lost scheduler, a log that fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_instance_requests import admit, hashes, stored

from kvrun.audit.errors import AuditUnavailableError
from kvrun.audit.record import AuditEvent, Event
from kvrun.instance.connection import Connection
from kvrun.instance.handles import HandleTable
from kvrun.instance.journal import Journal
from kvrun.instance.protocol import Match, Matched, Role, Verdict
from support.byhand import HandEngine, hello, wait_for
from support.client import eventually, grant
from support.daemon import Daemon

# Holds the daemon's answer to a question back while a file exists.
HOLD = """
import time
from kvrun.instance.instance import Instance
answer = Instance.match
def held(self, message):
    answered = answer(self, message)
    flag = Path(sys.argv[1]).with_name("hold")
    while flag.exists():
        flag.with_name("held").touch()
        time.sleep(0.01)
    return answered
Instance.match = held
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder, settings='[audit]\nmode = "require"\n', prelude=HOLD)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def busy_cells(daemon: Daemon) -> int:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    return int(status["cache"]["busy_cells"])


def test_an_erasure_is_not_overtaken_by_the_answer_to_an_earlier_question(
    daemon: Daemon, engine: HandEngine
) -> None:
    made = stored(daemon, engine, "overtaken")
    granted = grant(daemon, "overtaken")
    claim = daemon.claim("overtaken", granted.salt, granted.generation)
    hold = daemon.config.with_name("hold")
    hold.touch()
    try:
        wanted = b"".join(hashes(made))
        assert engine.scheduler.send(Match(900, claim, granted.salt, 32, wanted, 64))
        eventually(daemon.config.with_name("held").exists, "the question is being answered")
        daemon.admin("erase_session", tenant="overtaken", session="default")
    finally:
        hold.unlink()
    answer = wait_for(engine.scheduler, Matched)
    assert isinstance(answer, Matched)
    assert (answer.request, answer.verdict, answer.handle) == (900, Verdict.DENIED, 0)


def test_a_lost_scheduler_holds_no_blocks_while_its_worker_lives_on(daemon: Daemon) -> None:
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        made = stored(daemon, engine, "lost")
        eventually(lambda: busy_cells(daemon) > 0, "the finished requests' blocks are pinned")
        admit(daemon, engine, "lost", hashes(made))
        engine.scheduler.close()
        daemon.admin("flush")
        eventually(lambda: busy_cells(daemon) == 0, "nothing is pinned any more")
        again = Connection.connect(
            daemon.socket, hello(Role.SCHEDULER, daemon.engine_token), timeout_s=5
        )
        again.close()


def test_a_second_question_is_refused_while_the_log_cannot_be_written(
    daemon: Daemon, engine: HandEngine
) -> None:
    made = stored(daemon, engine, "second")
    live = admit(daemon, engine, "second", hashes(made))
    assert engine.match("", "", hashes(made), handle=live.handle).verdict is Verdict.ADMITTED
    with daemon.no_disk():
        assert engine.load(live.handle, hashes(made)).plain == {}
        answer = engine.match("", "", hashes(made), handle=live.handle)
        assert answer.verdict is Verdict.DENIED


def test_blocks_pinned_after_the_end_of_a_request_are_let_go_with_its_handle() -> None:
    table, let_go = HandleTable(), []
    keys: Any = SimpleNamespace(destroyed=False, scope=None)
    cache: Any = SimpleNamespace(unpin=let_go.extend)
    handle = table.add("r", keys, cast(Any, None), cache)
    table.finish(handle.number, now=0.0)
    handle.pinned.append(b"late")
    table.forget_finished(now=100.0)
    assert let_go == [b"late"]


def test_handles_of_an_expired_key_end() -> None:
    table = HandleTable()
    gone, kept = (
        table.add("r", cast(Any, SimpleNamespace(destroyed=dead)), cast(Any, None), cast(Any, None))
        for dead in (True, False)
    )
    assert table.revoke_destroyed() == [gone]
    assert [handle.number for handle in table] == [kept.number]


class FailingLog:
    """A log that takes nothing in while ``full``."""

    def __init__(self) -> None:
        self.full = True
        self.records: list[AuditEvent] = []

    def append(self, event: AuditEvent) -> int:
        if self.full:
            raise AuditUnavailableError("full")
        self.records.append(event)
        return len(self.records)

    def commit(self) -> None:
        pass


def test_an_erasure_while_the_log_fails_is_recorded_when_it_works_again() -> None:
    log = FailingLog()
    journal = Journal(cast(Any, log), "w", "d")
    journal.key_destroyed("t" * 32, "s" * 32, "k", Event.ERASED, "erased")
    journal.write_owed()
    assert log.records == []
    log.full = False
    journal.write_owed()
    journal.write_owed()
    assert [record.event for record in log.records] == [Event.KEY_DESTROYED, Event.ERASED]


def test_a_stateless_daemon_keeps_nothing_for_a_claim_from_before_and_logs_each_request() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    settings = '[audit]\nmode = "require"\n'
    daemon = Daemon(folder, settings=settings)
    try:
        daemon.start()
        kept = grant(daemon, "alice")
        daemon.stop()
        daemon.config.write_text(daemon.config.read_text() + "[deployment]\nstateless = true\n")
        daemon.start()
        with HandEngine(daemon.socket, daemon.engine_token) as engine:
            old = engine.match(daemon.claim("alice", kept.salt, kept.generation), kept.salt)
            assert (old.verdict, old.handle) == (Verdict.DENIED, 0)
            fresh = grant(daemon, "alice")
            claim = daemon.claim("alice", fresh.salt, 0, request_id="stateless-1")
            assert engine.match(claim, fresh.salt).verdict is Verdict.ADMITTED
            daemon.admin("flush")
            assert daemon.count("allocated") == 1
            with daemon.no_disk():
                claim = daemon.claim("alice", fresh.salt, 0)
                assert engine.match(claim, fresh.salt).verdict is Verdict.DENIED
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)
