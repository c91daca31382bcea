"""Admissions without an engine or a daemon: when a request stops asking, and for whose cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from kvrun.engines.admission import Admissions, State
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import AnyMessage, Finished, Match, Matched, Message, Verdict, Welcome

HASHES = [bytes([number]) * 32 for number in range(2)]


class Line:
    """Both a connection and the search for the next one."""

    def __init__(self, *, stateless: bool = False) -> None:
        self.welcome = Welcome(1, "i", "w", "d", stateless, {}, 0, 1000, 1000)
        self.closed = False
        self.sent: list[Message] = []
        self.answers: list[AnyMessage] = []
        self.next: Line | None = None

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return not self.closed

    def poll(self, wait_s: float = 0.0) -> Sequence[AnyMessage] | Line | None:
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        self.closed = True


class Search(Line):
    def poll(self, wait_s: float = 0.0) -> Line | None:
        found, self.next = self.next, None
        return found


@pytest.fixture
def line() -> Line:
    return Line()


def admissions_over(line: Line, search: Line | None = None) -> Admissions:
    return Admissions(
        cast(Connection, line), cast(Reconnector, search or Search()), clock=lambda: 0.0
    )


def answer(line: Line, handle: int = 7) -> None:
    asked = [message for message in line.sent if isinstance(message, Match)][-1]
    line.answers.append(Matched(asked.request, Verdict.ADMITTED, "", handle, (b"\1\1",)))


def test_a_request_whose_loads_keep_failing_goes_on_without_the_cache(line: Line) -> None:
    admissions = admissions_over(line)
    admission = admissions.begin("r", "claim", "salt", HASHES, 32)
    answer(line)
    admissions.poll()
    for _ in range(100):
        if admission.state is State.DENIED:
            break
        assert admission.state is State.ADMITTED
        admissions.load_failed("r", HASHES)
        if admission.state is State.PENDING:
            answer(line)
            admissions.poll()
    assert admission.state is State.DENIED
    assert "could not be opened" in admission.reason
    assert not admission.may_store
    admissions.finish("r")
    assert line.sent[-1] == Finished(7)


def test_one_failed_load_is_asked_about_again(line: Line) -> None:
    admissions = admissions_over(line)
    admission = admissions.begin("r", "claim", "salt", HASHES, 32)
    answer(line)
    admissions.poll()
    admissions.load_failed("r", HASHES)
    answer(line)
    admissions.poll()
    assert admission.state is State.ADMITTED


def test_the_next_daemon_decides_whether_requests_leave_anything_behind(line: Line) -> None:
    search = Search()
    admissions = admissions_over(line, search)
    assert not admissions.stateless
    line.close()
    admissions.poll()
    search.next = Line(stateless=True)
    admissions.poll()
    assert admissions.stateless


def test_a_lost_daemon_is_looked_for_at_once(line: Line) -> None:
    """An engine without requests takes no further step: the search may not wait for one."""
    search = Search()
    search.next = Line()
    admissions = admissions_over(line, search)
    line.close()
    admissions.poll()
    assert admissions.connected
    assert admissions.connections == 2
