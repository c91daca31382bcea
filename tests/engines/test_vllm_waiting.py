"""A request that the daemon has yet to decide about waits for it in the step that it came in."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("vllm")

from kvrun.engines.admission import Admissions, State
from kvrun.engines.vllm.compat import OffloadingConnector, OffloadingConnectorMetadata
from kvrun.engines.vllm.connector import KvrunConnector
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import AnyMessage, Match, Matched, Message, Verdict, Welcome

OWN, LOADED = 128, 256
BUSY = SimpleNamespace(
    scheduled_cached_reqs=SimpleNamespace(req_ids=(), new_block_ids=()),
    scheduled_new_reqs=(),
    preempted_req_ids=None,
    finished_req_ids=(),
    total_num_scheduled_tokens=1,
)
"""A step in which vLLM computes, so that its end waits for nobody."""


class Daemon:
    """A connection to a daemon that answers while it is waited for, if it does."""

    def __init__(self, verdict: Verdict | None) -> None:
        self.welcome = Welcome(1, "i", "w", "d", False, {}, 0, 1000, 1000)
        self.closed = False
        self.verdict, self.at_once = verdict, False
        self.asked: list[Match] = []
        self.waits: list[float] = []

    def send(self, message: Message) -> bool:
        if isinstance(message, Match):
            self.asked.append(message)
        return True

    def poll(self, wait_s: float = 0.0) -> Sequence[AnyMessage]:
        self.waits.append(wait_s)
        if self.verdict is None or not (wait_s or self.at_once):
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
        connector._requests, connector._denied, connector._looked = {}, set(), False
        connector._scrubber = None
        monkeypatch.setattr(
            OffloadingConnector, "get_num_new_matched_tokens", lambda *_: (LOADED, True)
        )
        monkeypatch.setattr(
            OffloadingConnector,
            "build_connector_meta",
            lambda *_: OffloadingConnectorMetadata({}, {}, set()),
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
        self.connector.build_connector_meta(cast(Any, BUSY))
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


def test_a_denial_that_comes_at_the_end_of_a_step_counts_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(None)
    scheduler = Scheduler(monkeypatch, daemon)
    request = scheduler.request("r")
    assert scheduler.step(request) == [None]
    daemon.verdict, daemon.at_once = Verdict.DENIED, True
    scheduler.connector._looked = True  # it came after this step's look
    assert scheduler.step(request) == [None]
    assert scheduler.step(request) == [(0, 0)]


def test_nothing_is_waited_for_twice_a_step_but_again_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(None)
    scheduler = Scheduler(monkeypatch, daemon)
    requests = scheduler.request("first"), scheduler.request("second")
    for _ in range(2):
        assert scheduler.step(*requests) == [None, None]
        assert [wait > 0 for wait in daemon.waits] == [True, False]
        daemon.waits.clear()


@pytest.mark.parametrize("computing", ["admitted", "denied", "skips the cache"])
def test_nothing_is_waited_for_while_another_request_computes(
    monkeypatch: pytest.MonkeyPatch, computing: str
) -> None:
    daemon = Daemon(None)
    scheduler = Scheduler(monkeypatch, daemon)
    first, second = scheduler.request("first"), scheduler.request("second")
    admission = scheduler.admissions.get("first")
    assert admission is not None
    if computing == "skips the cache":
        first.skip_reading_prefix_cache = True
        assert scheduler.step(first) == [(0, 0)]
    else:
        admission.state = State(computing)
    assert scheduler.step(second) == [None]
    assert not any(daemon.waits)
