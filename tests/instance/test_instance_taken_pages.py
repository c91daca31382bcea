"""What a daemon says of its engines' pages when another one had keys destroyed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kvrun.erasure.targets import ScrubOutcome
from kvrun.instance.known_engines import KnownEngines
from kvrun.instance.protocol import Scrub, Scrubbed
from kvrun.instance.scrubbing import SchedulerScrubber
from support.client import eventually


class Reported:
    """A scrubber, an engine of it, and what was said."""

    def __init__(self, pid: int) -> None:
        self.asked: list[Scrub] = []
        self.said: list[ScrubOutcome] = []
        self.scrubber = SchedulerScrubber(deadline_s=0)
        self.scrubber.connected("one", pid=pid, software="", scrubs=True, send=self.asked.append)
        self.scrubber.expired([b"alice"], tell=self.said.append)

    def answer(self, evicted: int, scrubbed: int, held: int) -> None:
        self.scrubber.answered("one", Scrubbed(self.asked[0].call, evicted, scrubbed, held))

    def until(self, *said: ScrubOutcome) -> None:
        eventually(lambda: self.said == list(said), f"it says {said}")


def test_it_is_said_once_every_engine_answered_and_again_when_held_pages_are_zero() -> None:
    box = Reported(os.getpid())
    assert (box.said, [asked.owners for asked in box.asked]) == ([], [(b"alice",)])
    box.scrubber.look()
    assert box.said == []
    box.answer(3, 2, 1)
    box.until(ScrubOutcome(3, 2, 1))
    box.answer(3, 3, 0)
    box.until(ScrubOutcome(3, 2, 1), ScrubOutcome(3, 3, 0))
    box.scrubber.look()
    assert len(box.said) == 2


def test_an_engine_that_ended_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as engine:
        box = Reported(engine.pid)
        box.scrubber.disconnected("one")
        box.scrubber.look()
        assert box.said == [], "it runs, and may come back"
        engine.kill()
    box.scrubber.look()
    assert box.said == [ScrubOutcome()]


def test_where_nobody_knows_whose_a_page_is_all_are_asked_for_and_waited_for(
    tmp_path: Path,
) -> None:
    known = tmp_path / "engines.json"
    asked: list[Scrub] = []
    said: list[ScrubOutcome] = []
    first = SchedulerScrubber(deadline_s=0, known=KnownEngines(known))
    first.connected("blind", pid=os.getppid(), software="x", scrubs=False, send=asked.append)
    first.connected("one", pid=os.getpid(), software="", scrubs=True, send=asked.append)
    first.expired([], everything=True, tell=said.append)
    assert [(found.owners, found.everything) for found in asked] == [((), True)]
    assert said == []
    first.answered("one", Scrubbed(asked[0].call, 5, 3, 2))
    eventually(lambda: bool(said), "the engine's answer is said")
    (found,) = said
    assert (found.evicted, found.scrubbed, found.held) == (5, 3, 2)
    assert "zeroes none" in found.notes[0]
    # It ended before the last two were zero: the next daemon asks for all of them again.
    second = SchedulerScrubber(deadline_s=0, known=KnownEngines(known))
    second.connected("one", pid=os.getpid(), software="", scrubs=True, send=asked.append)
    assert [(found.owners, found.everything) for found in asked[1:]] == [((), True)]


def test_without_an_engine_and_without_a_page_it_is_said_at_once() -> None:
    said: list[ScrubOutcome] = []
    SchedulerScrubber(deadline_s=0).expired([b"alice"], tell=said.append)
    blind = SchedulerScrubber(deadline_s=0)
    blind.connected("one", pid=7, software="blind", scrubs=False, send=lambda _: None)
    blind.expired([], tell=said.append)
    blind.expired([b"alice"], tell=said.append)
    assert said[:2] == [ScrubOutcome(), ScrubOutcome()]
    assert "zeroes none" in said[2].notes[0]
