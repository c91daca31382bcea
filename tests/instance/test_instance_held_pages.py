"""Pages that requests still held when they were to be zeroed are not forgotten."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from kvrun.erasure.certificate import GpuEntry
from kvrun.erasure.job import Job, JobStore
from kvrun.erasure.targets import ScrubOutcome
from kvrun.instance.protocol import Scrub, Scrubbed
from kvrun.instance.scrubbing import SchedulerScrubber
from support.byhand import HandEngine, wait_for
from support.client import eventually, grant
from support.daemon import Daemon


def test_an_engine_with_held_pages_is_asked_again_on_a_new_connection() -> None:
    scrubber = SchedulerScrubber(deadline_s=20)
    scrubber.listening = True
    late: list[ScrubOutcome] = []
    told = threading.Event()

    def on_late(call: int, outcome: ScrubOutcome) -> None:
        late.append(outcome)
        told.set()

    def engine(message: Scrub) -> None:
        answer = Scrubbed(message.call, 5, 3, 2)
        threading.Thread(target=scrubber.answered, args=("first", answer)).start()

    scrubber.on_late = on_late
    scrubber.connected("first", pid=os.getpid(), software="", scrubs=True, send=engine)
    assert scrubber.scrub(7, [b"alice"], everything=False, engines=[]).held == 2
    scrubber.disconnected("first")
    again: list[Scrub] = []
    scrubber.connected("second", pid=os.getpid(), software="", scrubs=True, send=again.append)
    assert again == [Scrub(7, (b"alice",))]
    scrubber.answered("second", Scrubbed(7, 0, 2, 0))
    assert told.wait(20)
    assert late == [ScrubOutcome(5, 5, 0)]
    third: list[Scrub] = []
    scrubber.connected("third", pid=os.getpid(), software="", scrubs=True, send=third.append)
    assert third == []


def test_held_pages_outlive_a_restart_of_the_daemon() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    daemon = Daemon(folder)
    daemon.start()
    try:
        done: dict[str, Any] = {}

        def erase() -> None:
            answer = daemon.admin("erase", kind="session", tenant="alice", session="default")
            assert isinstance(answer, dict)
            done.update(answer)

        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            grant(daemon, "alice")
            running = threading.Thread(target=erase)
            running.start()
            asked = wait_for(engine.scheduler, Scrub)
            assert isinstance(asked, Scrub)
            assert engine.scheduler.send(Scrubbed(asked.call, 5, 3, 2))
            running.join()
        assert job(daemon, done["id"]).gpu == GpuEntry(evicted=5, scrubbed=3, held=2)
        daemon.kill()
        daemon.start()
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            assert wait_for(engine.scheduler, Scrub) == asked
            assert engine.scheduler.send(Scrubbed(asked.call, 0, 2, 0))
            eventually(lambda: job(daemon, done["id"]).addenda == 1, "an addendum is issued")
        assert job(daemon, done["id"]).gpu == GpuEntry(evicted=5, scrubbed=5, held=0)
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


def job(daemon: Daemon, erasure_id: str) -> Job:
    found = JobStore(daemon.data / "erasure" / "jobs").load(erasure_id)
    assert found is not None
    return found
