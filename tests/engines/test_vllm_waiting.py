"""A request that the daemon has yet to decide about waits for it in the step that it came in."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("vllm")

from kvrun.engines.admission import Admissions, State
from kvrun.engines.vllm.compat import OffloadingConnector
from kvrun.engines.vllm.connector import KvrunConnector
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import AnyMessage, Match, Matched, Message, Verdict, Welcome

OWN, LOADED = 128, 256


class Daemon:
    """A connection to a daemon that answers while it is waited for, if it does."""

    def __init__(self, verdict: Verdict | None) -> None:
        self.welcome = Welcome(1, "i", "w", "d", False, {}, 0, 1000, 1000)
        self.closed = False
        self.verdict = verdict
        self.asked: list[Match] = []
        self.waits: list[float] = []

    def send(self, message: Message) -> bool:
        if isinstance(message, Match):
            self.asked.append(message)
        return True

    def poll(self, wait_s: float = 0.0) -> Sequence[AnyMessage]:
        self.waits.append(wait_s)
        if not wait_s or self.verdict is None:
            return ()
        asked, self.asked = self.asked, []
        return [Matched(match.request, self.verdict, "", 7, (b"\1\1",)) for match in asked]


class Scheduler:
    """vLLM's part of it, in its order: its own cache first, then the connector, then whether its
    own cache is to be skipped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, daemon: Daemon) -> None:
        self.admissions = Admissions(
            cast(Connection, daemon), cast(Reconnector, None), clock=lambda: 0.0
        )
        connector = self.connector = KvrunConnector.__new__(KvrunConnector)
        connector.connector_scheduler = cast(
            Any, SimpleNamespace(manager=SimpleNamespace(admissions=self.admissions))
        )
        connector._requests, connector._denied, connector._waited = {}, set(), False
        monkeypatch.setattr(
            OffloadingConnector, "get_num_new_matched_tokens", lambda *_: (LOADED, True)
        )

    def request(self, name: str) -> Any:
        request = SimpleNamespace(request_id=name, skip_reading_prefix_cache=False)
        self.connector._requests[name] = cast(Any, request)
        self.admissions.begin(name, "claim", "salt", [bytes(32)], 32)
        return request

    def step(self, *requests: Any) -> list[tuple[int, int] | None]:
        """What each reuses of vLLM's own cache and of the daemon's; None: asked again."""
        reused: list[tuple[int, int] | None] = []
        for request in requests:
            own = 0 if request.skip_reading_prefix_cache else OWN
            loaded, _ = self.connector.get_num_new_matched_tokens(request, own)
            if request.skip_reading_prefix_cache:
                loaded = 0
            reused.append(None if loaded is None else (own, loaded))
        self.connector._skip_denied()
        self.connector._waited = False
        return reused


def test_an_answer_that_comes_meanwhile_counts_in_the_same_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(monkeypatch, Daemon(Verdict.ADMITTED))
    assert scheduler.step(scheduler.request("r")) == [(OWN, LOADED)]


def test_a_denial_that_comes_meanwhile_reuses_nothing_of_what_vllm_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(monkeypatch, Daemon(Verdict.DENIED))
    requests = scheduler.request("first"), scheduler.request("second")
    assert scheduler.step(*requests) == [None, None]
    assert scheduler.step(*requests) == [(0, 0), (0, 0)]


def test_a_request_that_was_not_announced_goes_on_and_reuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(monkeypatch, Daemon(Verdict.ADMITTED))
    request = SimpleNamespace(request_id="r", skip_reading_prefix_cache=False)
    assert scheduler.step(request) == [None]
    assert scheduler.step(request) == [(0, 0)]


def test_nothing_is_waited_for_twice_a_step_or_while_another_request_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(None)
    scheduler = Scheduler(monkeypatch, daemon)
    first, second = scheduler.request("first"), scheduler.request("second")
    assert scheduler.step(first, second) == [None, None]
    assert len(daemon.waits) == 1
    daemon.waits.clear()
    admission = scheduler.admissions.get("first")
    assert admission is not None
    admission.state = State.ADMITTED
    assert scheduler.step(second) == [None]
    assert not daemon.waits
